"""Launchers: the command that starts a job's ranks."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from hpcprof.errors import UsageError
from hpcprof.job import Job
from hpcprof.site import LauncherName, Site


def launch_command(site: Site, job: Job) -> list[str]:
    """Return the launcher's argv, to be followed by the program of each rank.

    Raises
    ------
    UsageError
        If the job needs a launcher that is not there.
    """
    if site.launcher.name is LauncherName.NONE:
        if job.ranks > 1:
            raise UsageError(f"site {site.name} has no launcher: it runs one rank, not {job.ranks}.")
        return []
    mpiexec = job.options.get("mpiexec") or find_mpiexec()
    if mpiexec is None:
        if job.ranks == 1 and job.workload is None:
            return []
        raise UsageError(
            f"no mpiexec beside {sys.executable} nor on the PATH: install hpcprof[workloads], load the "
            "site's MPI module, or give -o mpiexec=PATH."
        )
    return [mpiexec, *site.launcher.arguments, "-n", str(job.ranks)]


def find_mpiexec() -> str | None:
    """Return mpiexec: beside hpcprof's own Python first, so that an unactivated environment works."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.is_file() else shutil.which("mpiexec")
