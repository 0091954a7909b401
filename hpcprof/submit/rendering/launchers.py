"""Launchers: the command that starts a job's ranks, and which variables tell a rank who it is.

Each launcher is one function of a few lines, in the table at the end.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.sites.model import LauncherName, Site

# The order in which the wrapper asks: a launcher's own variables first. One launcher inside another
# (mpirun in a Slurm job), the outer one's describe the launcher's helpers, not the ranks.
_MPI = ("pals", "ompi", "pmi", "flux", "pmix", "slurm", "torchrun")
_SLURM = ("slurm", "pmi", "pmix", "ompi", "flux")
_TORCHRUN = ("torchrun",)

MEETING = "{meeting}"
"""Stands in an argv for the first node of the job and a port there, which the script finds out."""


def rank_variables(launcher: LauncherName) -> tuple[str, ...]:
    """Return the families of variables that the wrapper asks, the first that has a rank being believed."""
    return {LauncherName.SRUN: _SLURM, LauncherName.TORCHRUN: _TORCHRUN}.get(launcher, _MPI)


def launch_command(site: Site, job: Job) -> list[str]:
    """Return the launcher's argv, to be followed by the program of each rank; empty for none.

    Raises
    ------
    UsageError
        If the job needs a launcher that is not there.
    """
    return _LAUNCHERS[site.launcher.name](site, job)


def find_mpiexec() -> str | None:
    """Return mpiexec: beside hpcprof's own Python first, so that an unactivated environment works."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.is_file() else shutil.which("mpiexec")


def _none(site: Site, job: Job) -> list[str]:
    if job.ranks > 1:
        raise UsageError(f"site {site.name} has no launcher: it runs one rank, not {job.ranks}.")
    return []


def _mpiexec(site: Site, job: Job) -> list[str]:
    """Whichever MPI is found, on this machine: ``-n`` is what all of them understand."""
    mpiexec = job.options.get("mpiexec") or find_mpiexec()
    if mpiexec is None:
        if job.ranks == 1 and job.workload is None:
            return []
        raise UsageError(
            f"no mpiexec beside {sys.executable} nor on the PATH: install hpcprof[workloads], load the "
            "site's MPI module, or give -o mpiexec=PATH."
        )
    return [mpiexec, *site.launcher.arguments, "-n", str(job.ranks)]


def _pals(site: Site, job: Job) -> list[str]:
    return [
        "mpiexec",
        *site.launcher.arguments,
        "-n",
        str(job.ranks),
        "--ppn",
        str(job.ranks_per_node),
        *_cpu_bind(site, job, "list:", ":"),
    ]


def _mpich(site: Site, job: Job) -> list[str]:
    return ["mpiexec", *site.launcher.arguments, "-n", str(job.ranks), "-ppn", str(job.ranks_per_node)]


def _openmpi(site: Site, job: Job) -> list[str]:
    return [
        "mpirun",
        *site.launcher.arguments,
        "-n",
        str(job.ranks),
        "--map-by",
        f"ppr:{job.ranks_per_node}:node",
    ]


def _srun(site: Site, job: Job) -> list[str]:
    # --wait=0: by default srun ends the other ranks a while after the first has ended, and with them a
    # profiler that is still writing.
    patient = ["--wait=0"] if job.profiled_ranks else []
    return [
        "srun",
        *site.launcher.arguments,
        f"--nodes={job.nodes}",
        f"--ntasks={job.ranks}",
        f"--ntasks-per-node={job.ranks_per_node}",
        *_cpu_bind(site, job, "map_cpu:", ","),
        *patient,
    ]


def _torchrun(site: Site, job: Job) -> list[str]:
    """One torchrun a node; on several nodes they meet at the first one."""
    local = ["torchrun", "--no-python", f"--nproc-per-node={job.ranks_per_node}"]
    if job.nodes == 1:
        return [*local, "--standalone", *site.launcher.arguments]
    meeting = [f"--nnodes={job.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={MEETING}"]
    return [*on_each_node(site, job), *local, *meeting, *site.launcher.arguments]


def on_each_node(site: Site, job: Job) -> list[str]:
    """Return the argv that starts one process on each node of the job; empty where there is one node."""
    if job.nodes == 1:
        return []
    starter = site.launcher.starter if site.launcher.name is LauncherName.TORCHRUN else site.launcher.name
    nodes = str(job.nodes)
    return {
        LauncherName.SRUN: ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"],
        LauncherName.PALS: ["mpiexec", "-n", nodes, "--ppn", "1", "--cpu-bind", "none"],
        LauncherName.MPICH: ["mpiexec", "-n", nodes, "-ppn", "1"],
        LauncherName.OPENMPI: ["mpirun", "-n", nodes, "--map-by", "ppr:1:node", "--bind-to", "none"],
    }[starter]


def _cpu_bind(site: Site, job: Job, prefix: str, separator: str) -> list[str]:
    cores = site.launcher.cpu_bind
    if cores and job.ranks_per_node == len(cores):
        return [f"--cpu-bind={prefix}{separator.join(cores)}"]
    return [f"--cpu-bind={site.launcher.cpu_bind_default}"] if site.launcher.cpu_bind_default else []


_LAUNCHERS: dict[LauncherName, Callable[[Site, Job], list[str]]] = {
    LauncherName.NONE: _none,
    LauncherName.MPIEXEC: _mpiexec,
    LauncherName.PALS: _pals,
    LauncherName.MPICH: _mpich,
    LauncherName.OPENMPI: _openmpi,
    LauncherName.SRUN: _srun,
    LauncherName.TORCHRUN: _torchrun,
}
