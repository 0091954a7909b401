"""Every script that hpcprof renders passes ShellCheck."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.submit.jobs.builder import make_job
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.rendering.job_scripts import render_array
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site, site_files
from hpcprof.submit.sites.model import Vendor


def shellcheck() -> str:
    beside = Path(sys.executable).with_name("shellcheck")
    return str(beside) if beside.is_file() else shutil.which("shellcheck") or "shellcheck"


@pytest.mark.parametrize("launch", [[], ["mpiexec", "-n", "2"]], ids=["alone", "mpiexec"])
@pytest.mark.parametrize("profiler", sorted(PROFILERS))
@pytest.mark.parametrize("site", sorted(site_files()))
def test_the_scripts_of_every_site_and_profiler_pass(
    site: str, profiler: str, launch: list[str], tmp_path: Path
) -> None:
    loaded = load_site(site)
    if profiler in ("nsys", "ncu") and loaded.node.vendor is not Vendor.NVIDIA:
        pytest.skip("refused: not NVIDIA's GPUs")
    job = make_job(
        loaded,
        workload="sequence-parallel",
        ranks_per_node=2,
        profiler=profiler,
        profiler_options={"kernel": "gemm", "launch-count": "1"} if profiler == "ncu" else {},
        account="me",
        queue=next(iter(loaded.queues), ""),
        options={k: (o.valid or ["x"])[0] for k, o in loaded.options.items() if o.required},
    )
    files = []
    for name, text in render(
        loaded, job, Rendering(tmp_path, ["hpcprof"], launch, ["python", "a b"])
    ).items():
        (tmp_path / name).write_text(text)
        if name.endswith(".sh"):
            files.append(str(tmp_path / name))
    done = subprocess.run([shellcheck(), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_wrapper_of_a_program_under_the_pytorch_profiler_passes(tmp_path: Path) -> None:
    site = load_site("generic-slurm")
    job = make_job(site, arguments=["python", "train.py"], profiler="torch")
    (tmp_path / "wrapper.sh").write_text(
        render(site, job, Rendering(tmp_path, ["hpcprof"], ["srun"], ["python", "train.py"]))["wrapper.sh"]
    )
    done = subprocess.run([shellcheck(), str(tmp_path / "wrapper.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("site", ["generic-pbs", "generic-slurm"])
def test_the_script_of_an_array_passes(site: str, tmp_path: Path) -> None:
    loaded = load_site(site)
    jobs = [make_job(loaded, arguments=["echo", word], walltime="5m") for word in ("a b", "$(c)")]
    script, _ = render_array(loaded, jobs, tmp_path / "sweep&more", ["hpcprof"])
    (tmp_path / "array.sh").write_text(script)
    done = subprocess.run([shellcheck(), str(tmp_path / "array.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
