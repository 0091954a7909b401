"""An uncaught exception in one rank of a Python program with MPI, under a real mpiexec."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcprof.runs.directory import Run
from hpcprof.submit.rendering.templates import hook_modules
from hpcprof.submit.runs.failure_causes import TracebackLine, read_exception
from tests.integration.mpi import Finished, mpi

START = """\
import atexit, code, os, sys, traceback
from mpi4py import MPI
world = MPI.COMM_WORLD
atexit.register(lambda: open(f"handler{world.rank}", "w").close())
world.Barrier()
"""
ONE_FAILS = "if world.rank == 1: raise ValueError('no such batch')\nworld.Barrier()\n"
SLOW_OUTPUT = """\
import threading, time
class Slow:
    def write(self, text): return len(text)
    def flush(self): threading.current_thread().name == "hpcprof" and time.sleep(3)
sys.stdout = Slow()
atexit.register(time.sleep, 0.25)
"""
GRACE = 1.0


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for name, text in hook_modules(has_pulse=False, notes_exceptions=True).items():
        (folder / "hook").mkdir(parents=True, exist_ok=True)
        shortened = text.replace("GRACE_SECONDS = 20.0", f"GRACE_SECONDS = {GRACE}")
        assert shortened != text or name in ("sitecustomize.py", "hpcprof_start.py")
        (folder / "hook" / name).write_text(shortened)
    (folder / "state").mkdir()
    (folder / "state/started").write_text("now\n")
    return folder


def ranks(run_directory: Path, program: str, **variables: str) -> Finished:
    """Run a program on two ranks with the hook, in the folder above the run."""
    script = run_directory.parent / "program.py"
    script.write_text(START + program)
    wrapper = 'HPCPROF_RANK=$PMI_RANK exec "$@"'
    return mpi(
        2,
        ["sh", "-c", wrapper, "sh", sys.executable, str(script)],
        run_directory.parent,
        PYTHONPATH=f"{run_directory}/hook",
        HPCPROF_RUN_DIR=str(run_directory),
        HPCPROF_WORLD_SIZE="2",
        **variables,
    )


def notes(run_directory: Path) -> dict[str, str]:
    """Return what the ranks have noted; of an exception its type and message."""
    run, found = Run("run", run_directory), {}
    for path in (run_directory / "state").iterdir():
        if path.suffix == ".exception":
            found[path.name] = str(read_exception(run, int(path.stem.removeprefix("rank"))))
        elif path.stem != "started":
            found[path.name] = path.read_text().rstrip("\n")
    return found


NAMED = {"rank00001.exception": "ValueError: no such batch", "failed.now": "1 1"}


@pytest.mark.parametrize(
    "program",
    [
        ONE_FAILS,
        # Its own hook does not call the one before it.
        f"sys.excepthook = traceback.print_exception\n{ONE_FAILS}",
        # An exit handler that waits for ever.
        f"atexit.register(lambda: world.rank == 1 and world.Barrier())\n{ONE_FAILS}",
        # Output that is slow to write out, while the main thread comes to its end.
        f"{SLOW_OUTPUT}{ONE_FAILS}",
    ],
)
@pytest.mark.parametrize("watched", ["", "1"])
def test_an_exception_in_one_rank_ends_the_program_and_is_named(
    program: str, watched: str, run_directory: Path
) -> None:
    done = ranks(run_directory, program, **({"HPCPROF_WATCHED": watched} if watched else {}))
    assert done.code != 0
    assert notes(run_directory) == NAMED
    assert "ValueError: no such batch" in done.stderr


def test_the_programs_own_exit_handlers_run_before_it_is_ended(run_directory: Path) -> None:
    ranks(run_directory, ONE_FAILS)
    assert (run_directory.parent / "handler1").exists()


@pytest.mark.parametrize(
    "program",
    [
        # Tracebacks of errors that the program has handled.
        "try: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc(); sys.excepthook(*sys.exc_info())\n",
        "code.InteractiveInterpreter().runsource('1 / 0')\n",
        # A helper process that fails.
        "child = os.fork()\nif child == 0: 1 / 0\nos.waitpid(child, 0)\n",
        "sys.exit(3)\n",
        "raise KeyboardInterrupt\n",
        # A helper program that fails.
        "import subprocess; subprocess.run([sys.executable, '-c', '1 / 0'])\n",
    ],
)
def test_what_does_not_end_a_rank_or_leaves_mpi_alone_is_no_failure(
    program: str, run_directory: Path
) -> None:
    with_hook = ranks(run_directory, program)
    assert notes(run_directory) == {}
    (run_directory / "hook/sitecustomize.py").unlink()
    # Hydra joins the codes of its ranks bit by bit; the one that ends later may be killed.
    assert with_hook.code | signal.SIGKILL == ranks(run_directory, program).code | signal.SIGKILL


def test_an_exception_after_mpi_is_noted_and_ends_no_other_rank(run_directory: Path) -> None:
    program = "MPI.Finalize()\nif os.environ['PMI_RANK'] == '1': raise ValueError\n"
    done = ranks(run_directory, program)
    assert (done.code, notes(run_directory)) == (1, {"rank00001.exception": "ValueError"})


@pytest.mark.parametrize("alone", ["", "torchrun"])
def test_the_last_line_of_the_users_own_code_is_noted_without_mpi_too(
    alone: str, run_directory: Path
) -> None:
    program = run_directory.parent / "train.py"
    program.write_text("import json\ndef load():\n    json.loads('{')\nload()\n")
    variables = {"RANK": "5", "TORCHELASTIC_RUN_ID": "x"} if alone else {}
    environment = {"PYTHONPATH": f"{run_directory}/hook", "HPCPROF_RUN_DIR": str(run_directory)}
    subprocess.run(
        [sys.executable, program], env={**environment, "HPCPROF_RANK": "2", **variables}, check=False
    )
    note = read_exception(Run("run", run_directory), 5 if alone else 2)
    assert (note.type, note.started_as) == ("json.decoder.JSONDecodeError", 2)
    assert note.where == TracebackLine(str(program), 3, "load")


def test_a_program_that_a_script_tries_again_until_it_succeeds_has_not_failed(run_directory: Path) -> None:
    folder = run_directory.parent
    (folder / "probe.py").write_text(
        "import json, os, sys\nos.path.exists('up') or json.loads(sys.argv[1])\n"
    )
    environment = {"PYTHONPATH": f"{run_directory}/hook", "HPCPROF_RUN_DIR": str(run_directory)}
    environment |= {"HPCPROF_RANK": "1"}

    def run(*program: str) -> str | None:
        subprocess.run([sys.executable, *program], env=environment, cwd=folder, check=False)
        return notes(run_directory).get("rank00001.exception", "").partition(":")[0]

    assert run("probe.py", "x") == "json.decoder.JSONDecodeError"
    (folder / "up").touch()
    assert run("probe.py", "y") == "json.decoder.JSONDecodeError"
    assert run("probe.py", "x") == ""
    # A failure of python -c is known by it, wherever in a library it was.
    run("-c", "import json; json.loads('x')")
    note = read_exception(Run("run", run_directory), 1)
    assert note.where == TracebackLine("<string>", 1, "<module>")


def test_ranks_that_fail_together_end_as_without_the_hook(run_directory: Path) -> None:
    done = ranks(run_directory, "raise ValueError(world.rank)\n")
    assert notes(run_directory) == {f"rank0000{rank}.exception": f"ValueError: {rank}" for rank in (0, 1)}
    assert done.code == 1
    assert all((run_directory.parent / f"handler{rank}").exists() for rank in (0, 1))


def test_the_hook_runs_under_python_3_8_and_without_hpcprof() -> None:
    for text in hook_modules(has_pulse=False, notes_exceptions=True).values():
        tree: Any = ast.parse(text, feature_version=(3, 8))
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
        assert {name.partition(".")[0] for name in modules} <= set(sys.stdlib_module_names)
