"""The examples do what their READMEs say, on a CPU and with few steps."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_server import CommandServer
from tests.integration.mpi import forking_python

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _hpcprof_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an ``hpcprof`` of this checkout on the PATH, and the programs beside this Python.

    The Python of a workload's ranks, of torchrun and of its workers is forked.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    python = forking_python(tmp_path)
    forked = f'case $* in *torchrun*) ;; submit*) shift; set -- submit -o python={python} "$@" ;; esac\n'
    scripts = {
        "hpcprof": f'{forked}exec {shlex.quote(sys.executable)} -m hpcprof "$@"\n',
        "torchrun": f'exec {python} -m torch.distributed.run "$@"\n',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(python))
    path = os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))
    monkeypatch.setenv("PATH", path)


def copy_of(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / name, tmp_path / name))


def commands(name: str) -> list[str]:
    """Return the commands of an example's README, without comments."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    return [" ".join(shlex.split(line[2:], comments=True)) for line in text.splitlines() if line[:2] == "$ "]


def do(command: str, folder: Path, *more: str) -> str:
    done = subprocess.run(
        [*shlex.split(command), *more], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quickstart_leaves_a_report(tmp_path: Path) -> None:
    folder = copy_of("quickstart", tmp_path)
    first, second = commands("quickstart")
    do(second.replace("--steps 50", "--steps 3"), folder)
    assert first in second
    assert "<summary>Phase time" in (folder / "runs/report.html").read_text(encoding="utf-8")


def test_the_trainer_of_the_graph_example_leaves_traces_that_can_be_analysed(
    tmp_path: Path, command_server: CommandServer
) -> None:
    folder = copy_of("gat", tmp_path)
    for command in commands("gat"):
        do(command, folder)
    assert (folder / "report.html").is_file()
    assert len(list(folder.glob("runs/*/profiles/*.trace.json.gz"))) == 2
    asked = ["report", "--analysis", "step_times", "--format", "json"]
    steps = json.loads(command_server.run(asked, folder, 240).stdout)
    assert [row["rank"] for row in steps] == [0, 0, 1, 1]


def test_exactly_two_processes_fine_tune_the_language_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = copy_of("language-model", tmp_path)
    command = commands("language-model")[1]
    assert command.endswith("train.py --steps 20")
    said = do(command.replace("--steps 20", "--steps 11 --length 16"), folder)
    losses = [line for line in said.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in losses] == ["step 0", "step 10"]
    assert float(losses[1].split()[-1]) < float(losses[0].split()[-1])
