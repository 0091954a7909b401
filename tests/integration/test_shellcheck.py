"""Every script that hpcprof renders passes ShellCheck."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import hpcprof
from hpcprof.submit.profilers import PROFILERS, find_profiler
from hpcprof.submit.rendering.job_scripts import render_array
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site, site_files
from tests.jobs import make_job


def shellcheck() -> str:
    beside = Path(sys.executable).with_name("shellcheck")
    return str(beside) if beside.is_file() else shutil.which("shellcheck") or "shellcheck"


def scripts_of(site: str, profiler: str) -> dict[str, str]:
    """Return the scripts of a job alone and under mpiexec; a profiler of other GPUs has none."""
    loaded = load_site(site)
    vendors = find_profiler(profiler).vendors
    if vendors and loaded.node.vendor not in vendors:
        return {}
    job = make_job(
        loaded,
        workload="sequence-parallel-jax" if profiler == "jax" else "sequence-parallel",
        ranks_per_node=min(2, loaded.node.gpus or 2),
        profiler=profiler,
        profiler_options={"kernel": "gemm", "launch-count": "1"} if profiler == "ncu" else {},
        account="" if site == "local" else "me",
        queue=next(iter(loaded.queues), ""),
        options={k: (o.valid or ["x"])[0] for k, o in loaded.options.items() if o.required},
    )
    return {
        f"{site} {profiler} {' '.join(launch)} {name}": text
        for launch in ([], ["mpiexec", "-n", "2"])
        for name, text in render(
            loaded, job, Rendering(Path("/runs/run"), ["hpcprof"], launch, ["python", "a b"])
        ).items()
        if name.endswith(".sh")
    }


def other_scripts() -> dict[str, str]:
    """Return the scripts of a program with the PyTorch profiler that runs again if it stalls; of arrays."""
    site = load_site("generic-slurm")
    chosen = "local=0,nodes=0,every=2"
    words = ["python", "train.py"]
    job = make_job(site, arguments=words, profiler="torch", profile_ranks=chosen, on_stall="resubmit")
    scripts = render(site, job, Rendering(Path("/runs"), ["hpcprof"], ["srun"], words))
    found = {f"{name} of train.py": scripts[name] for name in ("job.sh", "wrapper.sh")}
    for name in ("generic-pbs", "generic-slurm"):
        loaded = load_site(name)
        jobs = [make_job(loaded, arguments=["echo", word], walltime="5m") for word in ("a b", "$(c)")]
        found[f"array {name}"], _ = render_array(loaded, jobs, Path("/runs/sweep&more"), ["hpcprof"])
    return found


def lines_of(script: str) -> list[str]:
    return [line for line in script.splitlines() if not line.startswith(("#SBATCH", "#PBS"))]


def test_all_scripts_pass(tmp_path: Path) -> None:
    rendered = other_scripts()
    for site in site_files():
        for profiler in PROFILERS:
            rendered |= scripts_of(site, profiler)
    # Nearly all are alike: those are checked that have, together, all pairs of successive lines.
    pairs = {name: set(pairwise(lines_of(text))) for name, text in rendered.items()}
    missing = set().union(*pairs.values())
    while missing:
        # Most new pairs for what ShellCheck has to read.
        name = max(pairs, key=lambda name: len(pairs[name] & missing) / len(pairs[name]))
        missing -= pairs[name]
        (tmp_path / f"{name}.sh").write_text(rendered[name])
    assert len(list(tmp_path.iterdir())) > 20
    shipped = Path(hpcprof.__file__).parent.rglob("*.sh")
    done = subprocess.run([shellcheck(), *tmp_path.iterdir(), *shipped], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
