"""Programs and profilers that are not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcprof.cli.job_options import show_remarks
from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.presence import borrowed_program, check_present, unshared_folder
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Slurm's commands, python and bash, and with two scripts in the working directory."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sbatch", "squeue", "scancel", "python", "bash", "torchrun"):
        (commands / name).write_text("#!/bin/sh\n")
        (commands / name).chmod(0o755)
    for name in ("train.py", "n.ipynb", "a.json"):
        (tmp_path / name).touch()
    (tmp_path / "plain.py").write_text("import torch\n")
    (tmp_path / "plain.py").chmod(0o755)
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*program: str, site: str = "generic-slurm", profiler: str = "none", **changes: Any) -> None:
    loaded = msgspec.structs.replace(load_site(site), **changes)
    check_present(loaded, make_job(loaded, arguments=list(program), profiler=profiler, walltime="5m"))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("pyhton train.py", r"pyhton is not on the PATH \(did you mean python\?\)\."),
        ("no-such-solver", r"no-such-solver is not on the PATH; if only the nodes have it, name its folder"),
        ("train.py", r"train.py is not on the PATH; write \./train.py, or name .* as in python train.py\.$"),
        ("n.ipynb", r"n.ipynb is not on the PATH; .* as in jupyter execute n.ipynb\.$"),
        ("a.json", r"a.json is not on the PATH; write \./a.json, or name what runs it\.$"),
        ("./bin", r"^\./bin is a folder, and no program\.$"),
        ("./train.py", r"\./train.py is not executable"),
        ("./plain.py", r"\./plain.py has no first line such as #!/usr/bin/env python3, so .* write python "),
        ("./solver", r"\./solver: there is no such file in "),
        ("python -u tarin.py --lr 1", r"tarin.py: there is no such file in "),
        ("torchrun --nproc-per-node 2 tarin.py", r"tarin.py: there is no such file in "),
        ("bash run.sh", r"run.sh: there is no such file in "),
    ],
)
def test_a_program_that_is_not_there_is_named(program: str, says: str, here: Path) -> None:
    with pytest.raises(UsageError, match=says):
        check(*program.split())


def test_a_whole_command_in_quotes_is_told_apart_from_a_program(here: Path) -> None:
    for command in ("python train.py && echo done", "./solver -i x"):
        with pytest.raises(
            UsageError, match=rf"^'{re.escape(command)}' names one file: leave out its quotes"
        ):
            check(command)
    (here / "my solver").touch(0o755)
    check("./my solver")


@pytest.mark.parametrize(
    ("program", "script"),
    [("./a.sh", "a.sh"), ("python a.py", "a.sh"), ("bash a.sh", "a.sh"), ("./b.py", "b.py")],
)
def test_a_script_with_the_line_ends_of_windows_is_refused(program: str, script: str, here: Path) -> None:
    (here / "a.sh").write_bytes(b"#!/bin/bash\r\npython train.py\r\n")
    (here / "b.py").write_bytes(b"#!/usr/bin/env python3\r\nprint(1)\r\n")
    for name in ("a.sh", "b.py"):
        (here / name).chmod(0o755)
    (here / "a.py").write_text("import os\nos.system('bash a.sh')\n")
    with pytest.raises(UsageError, match=f"{script} has the line ends of Windows"):
        check(*program.split())
    check("python", "b.py")


def test_an_absolute_path_that_is_not_there_is_named_where_jobs_run_on_this_machine(here: Path) -> None:
    with pytest.raises(UsageError, match=r"^/opt/nothing: there is no such file\.$"):
        check("/opt/nothing", site="local")


def test_a_program_without_the_profiler_that_has_to_be_built_in_is_refused(here: Path) -> None:
    for name, content in (
        ("plain", b"\x7fELF main"),
        ("traced", b"\x7fELF SCOREP_Init"),
        ("script", b"#!/bin/sh"),
    ):
        (here / name).write_bytes(content)
        (here / name).chmod(0o755)
    with pytest.raises(UsageError, match=r"\./plain is not built with it; build it again with scorep before"):
        check("./plain", profiler="scorep")
    for program in ("./traced", "./script"):
        check(*program.split(), profiler="scorep")
    with pytest.raises(UsageError, match=r"--profiler scorep: scorep is not on the PATH; install it"):
        check("python", "train.py", profiler="scorep")
    (here / "bin/scorep").write_text("#!/bin/sh\n")
    (here / "bin/scorep").chmod(0o755)
    check("python", "train.py", profiler="scorep")


def test_eztrace_is_refused_for_a_script_and_for_a_link_such_as_that_of_python(here: Path) -> None:
    (here / "bin/eztrace").write_text("#!/bin/sh\n")
    (here / "bin/eztrace").chmod(0o755)
    for name in ("solver-1.2", "bin/python3.11"):
        (here / name).write_bytes(b"\x7fELF")
        (here / name).chmod(0o755)
    (here / "solver").symlink_to("solver-1.2")
    (here / "bin/python3").symlink_to("python3.11")
    check("./solver-1.2", profiler="eztrace")
    (here / "run.sh").write_text("#!/bin/sh\n./solver-1.2\n")
    (here / "run.sh").chmod(0o755)
    with pytest.raises(UsageError, match=r"it cannot start run.sh, a script; use nsys .* that it runs\.$"):
        check("./run.sh", profiler="eztrace")
    (here / "pyvenv.cfg").touch()
    packages = f", and PYTHONPATH={here}/lib/python3.11/site-packages before hpcprof"
    for program, link, says in (
        ("./solver", "solver-1.2", f"or write {here}/solver-1.2 instead of solver"),
        ("python3 train.py", "python3.11", f"or write {here}/bin/python3.11 instead of python3{packages}"),
    ):
        with pytest.raises(UsageError, match=f"it cannot start .*, a link to {link}; use nsys") as error:
            check(*program.split(), profiler="eztrace")
        assert says in str(error.value)
    with pytest.raises(UsageError, match="EZTrace starts no link: write --profiler eztrace, and /") as error:
        make_job(load_site("local"), arguments=["python3", "train.py"], profiler="auto")
    assert packages in str(error.value)


@pytest.mark.parametrize(
    "program",
    ["python train.py", "python -m tarin", "python -c x.py", "bash -c run.sh", "/opt/only/on/nodes"],
)
def test_a_program_that_is_there_or_may_be_is_accepted(program: str, here: Path) -> None:
    check(*program.split())


def test_a_program_of_the_environment_that_is_staged_is_there(here: Path) -> None:
    (here / "env/bin").mkdir(parents=True)
    (here / "env/pyvenv.cfg").touch()
    (here / "env/bin/solve").write_text("#!/bin/sh\n")
    (here / "env/bin/solve").chmod(0o755)
    site = load_site("generic-slurm")
    check_present(site, make_job(site, arguments=["solve"], walltime="5m", stage_env="env"))


def test_a_profiler_that_is_not_there_is_named(here: Path) -> None:
    with pytest.raises(UsageError, match=r"--profiler nsys: nsys is not on the PATH; install it"):
        check("python", "train.py", profiler="nsys")


def test_what_modules_and_setup_lines_bring_is_not_known_unless_they_name_a_folder(here: Path) -> None:
    check("solver", modules=["solver/1.0"])
    check("solver", setup=[". /opt/solver/env.sh"])
    own = here / "venv/bin"
    own.mkdir(parents=True)
    for setup in (f"source {own}/activate", f'export PATH={own}:"$PATH"'):
        with pytest.raises(UsageError, match="solver is not on the PATH"):
            check("solver", setup=[setup])
    (own / "solver").write_text("#!/bin/sh\n")
    (own / "solver").chmod(0o755)
    check("solver", setup=[f"source {own}/activate"])


def test_a_program_of_the_active_environment_is_told_where_a_job_does_not_have_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(site: str, *program: str, **changes: Any) -> str:
        loaded = msgspec.structs.replace(load_site(site), **changes)
        return borrowed_program(loaded, make_job(loaded, arguments=list(program), walltime="5m"))

    monkeypatch.setenv("VIRTUAL_ENV", str(here))
    (here / "bin/activate").touch()
    setup = f"source {here}/bin/activate"
    assert said("generic-pbs", "python", "train.py").endswith(f'add to the site: setup: ["{setup}"]')
    assert said("generic-pbs", "python", "train.py", setup=[setup]) == ""
    assert said("generic-pbs", "./train.py") == said("generic-slurm", "python", "train.py") == ""
    monkeypatch.setenv("VIRTUAL_ENV", "/another")
    assert said("generic-pbs", "python", "train.py") == ""


def test_a_run_in_an_allocation_has_the_environment_of_its_shell(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(here))
    (here / "bin/activate").touch()
    site = load_site("generic-pbs")
    job = make_job(site, arguments=["python", "train.py"], walltime="5m")
    show_remarks(site, [job], Path("runs"), here=True)
    assert "passes no environment on" not in capsys.readouterr().err
    show_remarks(site, [job], Path("runs"))
    assert "passes no environment on" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_a_folder_of_runs_that_each_node_has_for_itself_is_told() -> None:
    slurm, local, elsewhere = load_site("generic-slurm"), load_site("local"), load_site("generic-pbs")
    warning = unshared_folder(slurm, Path("/var/tmp/me/runs"))
    assert warning.startswith("most nodes have a /var/tmp of their own, and would not see the run: give --")
    assert unshared_folder(slurm, Path("/scratch/tmp/runs")) == ""
    assert unshared_folder(local, Path("/tmp/runs")) == unshared_folder(elsewhere, Path("/tmp/runs")) == ""


@pytest.mark.parametrize("site", ["polaris", "kubernetes", "generic-pbs"])
def test_a_site_that_is_another_machine_or_has_images_is_not_checked(site: str, here: Path) -> None:
    loaded = load_site(site)
    options = {k: (o.valid or ["x"])[0] for k, o in loaded.options.items() if o.required}
    job = make_job(
        loaded, arguments=["pyhton"], options=options, account="me", queue=next(iter(loaded.queues), "")
    )
    check_present(loaded, job)
