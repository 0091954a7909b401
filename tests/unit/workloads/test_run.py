"""A workload under a Python that hpcprof is not installed in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.submit.jobs.builder import make_job
from hpcprof.submit.rendering.job_scripts import scripts
from hpcprof.submit.sites.files import load_site
from hpcprof.workloads.catalogue import WORKLOADS

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
    assert done.stderr.endswith(f". The workload needs a Python with {needs}: name one by -o python=PATH.\n")


def test_the_packages_beside_hpcprof_are_not_put_on_the_path(tmp_path: Path) -> None:
    _, run_py, _ = WORKLOAD.foreign_command(sys.executable, [])
    (tmp_path / "shown.py").write_text("import sys, hpcprof\nprint(*sys.path, sep='\\n')\n")
    path = run([*BARE, run_py, "shown"], tmp_path).stdout.splitlines()
    assert path[0] == ""
    package = Path(run_py).parents[1]
    assert not {str(package.parent), str(package), str(package / "workloads")} & set(path)


def test_a_site_names_the_python_that_has_pytorch_there(tmp_path: Path) -> None:
    polaris = load_site("polaris")
    given = {"account": "me", "queue": "debug", "options": {"filesystems": "home"}}
    job = make_job(polaris, workload="sequence-parallel", **given)  # type: ignore[arg-type]
    script = scripts(polaris, job, tmp_path, ["hpcprof"])["job.sh"]
    assert "workloads/run.py hpcprof.workloads.sequence_parallel" in script
    assert "\n    python /" in script
