"""The start of a workload: its imports, its help, and a Python that hpcprof is not installed in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.workloads.catalogue import WORKLOADS
from tests.conftest import Hpcprof

# -S leaves site-packages out, and -E the variables: this Python has its standard library alone.
BARE = [sys.executable, "-S", "-E"]
WORKLOAD = WORKLOADS["sequence-parallel"]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_workload_starts_without_hpcprof_being_installed(tmp_path: Path) -> None:
    assert "No module named 'hpcprof'" in run([*BARE, "-m", WORKLOAD.module, "--help"], tmp_path).stderr
    _, *words = WORKLOAD.foreign_command(sys.executable, ["--help"])
    done = run([*BARE, *words], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: sequence-parallel")


@pytest.mark.parametrize(("workload", "needs"), [("sequence-parallel", "torch and mpi4py"), ("ddp", "torch")])
def test_a_python_without_torch_gets_one_sentence(workload: str, needs: str, tmp_path: Path) -> None:
    _, *words = WORKLOADS[workload].foreign_command(sys.executable, [])
    done = run([*BARE, *words], tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"{sys.executable}: No module named " in done.stderr
    assert done.stderr.endswith(
        f". The workload needs a Python with {needs}: name one with -o python=PATH.\n"
    )


def test_the_packages_beside_hpcprof_are_not_put_on_the_path(tmp_path: Path) -> None:
    _, run_py, _ = WORKLOAD.foreign_command(sys.executable, [])
    (tmp_path / "shown.py").write_text("import sys, hpcprof\nprint(*sys.path, sep='\\n')\n")
    path = run([*BARE, run_py, "shown"], tmp_path).stdout.splitlines()
    assert path[0] == ""
    package = Path(run_py).parents[1]
    assert not {str(package.parent), str(package), str(package / "workloads")} & set(path)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workloads_help_is_shown_without_submitting_anything(
    workload: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    done = hpcprof("submit", "--workload", workload, "--", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {workload}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "module", ["schema", "rankenv", "catalogue", "sequence_parallel.options", "ddp.options"]
)
def test_the_other_sides_can_import_it_without_torch(module: str) -> None:
    code = (
        f"import sys, hpcprof.workloads.{module}\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'mpi4py', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
