"""A user's program runs with the start-up hook as it does without it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.profilers.base import Target
from hpcprof.submit.rendering.templates import hook_modules

SHOWN = """\
import atexit, signal, sys
def show():
    print([name for name in sorted(sys.modules) if not name.startswith("hpcprof_")])
    print(sys.path, sys.flags, sys.warnoptions, [*sys.path_importer_cache])
    print([signal.getsignal(number) for number in (1, 2, 10, 12, 15)])
    print(sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile())
    threads, warnings = sys.modules.get("threading"), sys.modules.get("warnings")
    names = [thread.name for thread in threads.enumerate()] if hasattr(threads, "enumerate") else threads
    print(names, warnings and warnings.filters)
"""
"""It does not need a module that the hook could have imported."""

OWN = (
    "json",
    "random",
    "queue",
    "logging",
    "typing",
    "threading",
    "statistics",
    "pickle",
    "ctypes",
    "string",
)
IMPORTS = "".join(f"import {name}; print({name}.__file__, getattr({name}, 'own', 0))\n" for name in OWN)
LATER = "import mpi4py\nprint('MPI')\n"

MPI = "import warnings\nwarnings.warn('old', stacklevel=2)\n"

PROGRAMS = {
    "nothing": "show()\n",
    "its own modules": f"{IMPORTS}show()\n",
    "its own modules after MPI": f"{LATER}{IMPORTS}show()\n",
    "its own modules before MPI": f"{IMPORTS}{LATER}show()\n",
    "nothing but MPI": f"{LATER}show()\n",
    "an exception": "atexit.register(show)\nraise ValueError('no such batch')\n",
    "an exception of its own modules": f"atexit.register(show)\n{IMPORTS}1 / 0\n",
    "an exception under its own hook": "sys.excepthook = lambda *_: print(1)\natexit.register(show)\n1 / 0\n",
    "the interpreter's hook again": "sys.excepthook = sys.__excepthook__\n1 / 0\n",
    "an exit code": "atexit.register(show)\nsys.exit(7)\n",
    "a text as exit code": "sys.exit('wrong')\n",
    "an interrupt": "raise KeyboardInterrupt\n",
    "a signal": "import os\nos.kill(os.getpid(), 15)\n",
    "an abort": "import os\nprint('soon', flush=True)\nos._exit(3)\n",
    "a syntax error": "print(\n",
    "a console": "import code\ncode.InteractiveInterpreter().runsource('1 / 0')\nshow()\n",
    "a module called torch": "import torch\nprint(torch.own)\nshow()\n",
    "a folder called jax": "import jax.numbers\nprint(jax.numbers.own)\nshow()\n",
    "an import that fails": "import mpi4py.broken\n",
    "no such module": "try: import no_such_module\nexcept ImportError as error: print(error)\nshow()\n",
    "no sitecustomize": "try: import sitecustomize\nexcept ImportError as error: print(error)\nshow()\n",
    "a fork": "import os\nif os.fork() == 0: show(); os._exit(0)\nos.wait()\nraise ValueError\n",
    "a helper": "import subprocess\nprint(subprocess.run([sys.executable, '-c', '1 / 0']).returncode)\n",
    "workers": (
        "import multiprocessing\n"
        "def work(i): return i, sorted(sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    for method in ('fork', 'spawn', 'forkserver'):\n"
        "        with multiprocessing.get_context(method).Pool(1) as pool: print(pool.map(work, [1]))\n"
    ),
    "runpy": "import runpy\nprint(runpy.run_path('other.py')['own'])\nshow()\n",
    "a finder": "print(len(sys.path_hooks), sys.dont_write_bytecode)\nshow()\n",
    "reload": "import importlib, queue\nimportlib.reload(queue)\nshow()\n",
    "a thread": (
        "import _thread\n"
        "shown = _thread.allocate_lock()\n"
        "shown.acquire()\n"
        "_thread.start_new_thread(lambda: (show(), shown.release()), ())\n"
        "shown.acquire()\n"
    ),
    "a thread that fails": "import _thread, time\n_thread.start_new_thread(eval, ('x',))\ntime.sleep(0.1)\n",
    "warnings": "import warnings\nwarnings.simplefilter('error')\nimport mpi4py\nshow()\n",
}
"""Programs by what they do. Each runs beside modules that have names of the standard library."""

COMMANDS: dict[str, list[str]] = {
    "-m": ["-m", "program"],
    "-c": ["-c", "exec(open('program.py').read())"],
    "-I": ["-I", "program.py"],
    "-E": ["-E", "program.py"],
    "-W error": ["-W", "error", "program.py"],
    "-X": ["-X", "warn_default_encoding", "-b", "program.py"],
    "-s": ["-s", "program.py"],
    "-P": ["-P", "program.py"],
    "-O": ["-O", "-B", "program.py"],
    "-S and site": ["-S", "-c", "import site; site.main(); exec(open('program.py').read())"],
    "a package": ["-m", "package"],
    "IPython": ["-m", "IPython", "--quick", "--no-banner", "--colors=NoColor", "program.py"],
    "pdb": ["-m", "pdb", "-c", "continue", "-c", "quit", "program.py"],
    "a zipped program": ["program.pyz"],
    "a folder": ["."],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, its own modules, a library, and a run with all files of the hook."""
    folder = tmp_path_factory.mktemp("place")
    files = hook_modules(has_pulse=True, notes_exceptions=True, keeps_memory=True)
    for profiler in ("torch", "jax"):
        files.update(PROFILERS[profiler].start_up(Target(None, ranks=1)))
    texts = {f"run/hook/{name}": text for name, text in files.items()}
    texts |= {f"program/{name}.py": f"own = '{name}'\n" for name in (*OWN, "torch", "other")}
    texts |= {
        "program/jax/numbers.py": "own = 1\n",
        "program/package/__main__.py": "import program\n",
        "library/jax.py": "1 / 0",
        "library/mpi4py/__init__.py": MPI,
        "run/state/started": "",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def runs_alike(place: Path, program: str, arguments: list[str], **environment: str) -> tuple[int, str, str]:
    """Run a program with the hook and without, compare the two, and return exit code and output."""
    (place / "program/program.py").write_text(SHOWN + program)
    results = []
    for path in (f"{place}/run/hook:{place}/library", f"{place}/library"):
        variables = {
            "PYTHONPATH": path,
            "HPCPROF_RUN_DIR": f"{place}/run",
            "HPCPROF_RANK": "0",
            "HPCPROF_STALL_TIMEOUT": "60",
            "HPCPROF_PROFILE_OUTPUT": f"{place}/rank00000",
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=place / "program",
            env={**os.environ, **variables, **environment},
            capture_output=True,
            text=True,
        )
        results.append((done.returncode, done.stdout, done.stderr))
    assert [text.splitlines() for text in results[0][1:]] == [text.splitlines() for text in results[1][1:]]
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_with_the_hook_as_without(program: str, place: Path) -> None:
    runs_alike(place, PROGRAMS[program], ["program.py"])


@pytest.mark.parametrize("way", COMMANDS)
def test_a_program_runs_with_the_hook_as_without_in_whatever_way_it_is_started(way: str, place: Path) -> None:
    program = place / "program"
    (program / "__main__.py").write_text("import program\n")
    with zipfile.ZipFile(program / "program.pyz", "w") as file:
        for name in ("__main__", "json"):
            file.write(program / f"{name}.py", f"{name}.py")
        file.writestr("program.py", SHOWN + PROGRAMS["its own modules after MPI"])
    runs_alike(place, PROGRAMS["its own modules after MPI"], COMMANDS[way])


def test_a_sitecustomize_of_conda_and_one_of_the_user_run_as_without_the_hook(place: Path) -> None:
    packages = place / "base/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (packages / "usercustomize.py").write_text("import json, sys\nprint(json.__name__, sys.path)\n")
    (place / "library/sitecustomize.py").write_text("import queue, sys\nprint(queue.__name__, sys.path)\n")
    try:
        runs_alike(place, "import sitecustomize\nprint(sitecustomize.__file__)\nshow()\n", ["program.py"])
        assert runs_alike(place, "show()\n", ["-c", "pass"], PYTHONUSERBASE=str(place / "base"))[0] == 0
    finally:
        (place / "library/sitecustomize.py").unlink()


def test_a_python_without_site_keeps_the_folder_of_the_hook_which_hides_no_module(place: Path) -> None:
    without = (
        "for folder in [one for one in sys.path if one.endswith('run/hook')]:\n"
        "    sys.path.remove(folder), sys.path_importer_cache.pop(folder, 0)\n"
        "show()\n"
    )
    runs_alike(place, without, ["-S", "program.py"])
    names = {path.stem for path in (place / "run/hook").iterdir()} - {"__pycache__"}
    assert {name for name in names if not name.startswith("hpcprof_")} == {"sitecustomize"}


def test_an_exception_is_noted_beside_a_json_of_the_programs_own(place: Path) -> None:
    runs_alike(place, "import json\nraise ValueError(json.own)\n", ["program.py"])
    note = json.loads((place / "run/state/rank00000.exception").read_text())
    assert (note["type"], note["message"], note["where"]["line"]) == (
        "ValueError",
        "json",
        len(SHOWN.splitlines()) + 2,
    )


def test_a_script_that_is_no_python_is_noted_with_its_line(place: Path) -> None:
    runs_alike(place, "print(1\n", ["program.py"])
    note = json.loads((place / "run/state/rank00000.exception").read_text())
    assert (note["type"], note["where"]["function"]) == ("SyntaxError", "<module>")


def test_invalid_python_that_a_console_was_given_is_not_noted(place: Path) -> None:
    # As consoles show it from Python 3.13 on.
    shown = "sys.last_value, sys.last_traceback = SyntaxError('no', ('<console>', 1, 1, 'x')), None\n"
    runs_alike(place, f"import sys\n{shown}sys.exit(3)\n", ["program.py"])
    assert not (place / "run/state/rank00000.exception").exists()


def test_the_start_of_python_is_read_by_every_version_and_notes_one_that_gets_no_hook(place: Path) -> None:
    text = (place / "run/hook/sitecustomize.py").read_text()
    ast.parse(text, feature_version=(3, 4))
    old = text.replace("sys.version_info", "(2, 7)")
    (place / "old").mkdir()
    (place / "old/sitecustomize.py").write_text(old)
    (place / "users").mkdir()
    (place / "users/sitecustomize.py").write_text("print('mine')\n")
    environment = {
        "PYTHONPATH": f"{place}/old:{place}/users",
        "HPCPROF_RUN_DIR": f"{place}/run",
        "HPCPROF_RANK": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.excepthook)"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("mine\n<built-in function excepthook>\n", "")
    assert (place / "run/state/rank00003.python").read_text() == f"{sys.version.split()[0]}\n"
