"""Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.schedulers.scheduler import JobArrays, Scheduler, batch_job_name
from hpcprof.submit.sites.model import LauncherName, Site

if TYPE_CHECKING:
    from hpcprof.submit.schedulers.slurm.client import SlurmClient
    from hpcprof.submit.sites.machine import Ask, Machine


class SlurmScheduler(Scheduler):
    """Slurm, by sbatch, squeue, sacct and scancel."""

    name = "slurm"
    title = "Slurm"
    commands = ("sbatch", "squeue", "scancel")
    silence_remedy = "Ask the operators whether Slurm is running."
    arrays = JobArrays("#SBATCH", "#SBATCH --array={}", "SLURM_ARRAY_TASK_ID", "%a")
    starters = (LauncherName.SRUN,)

    def client(self) -> SlurmClient:
        """Return the client of this machine's Slurm."""
        from hpcprof.submit.schedulers.slurm.client import SlurmClient

        return SlurmClient()

    def check(self, job: Job, site: Site) -> None:
        """Check that the walltime is one of whole minutes: Slurm would round it up."""
        if job.walltime % 60:
            longer = job.walltime + 60 - job.walltime % 60
            nearest = " or ".join(format_walltime(seconds) for seconds in (longer - 60, longer) if seconds)
            raise UsageError(
                f"walltime {format_walltime(job.walltime)}: Slurm counts in minutes and would round it up; "
                f"write {nearest}."
            )

    def job_name(self, name: str) -> str:
        """Return the name without spaces, and short."""
        return batch_job_name(name)

    def question(self, site: Site) -> list[str]:
        """Return the command that asks for the partitions."""
        return ["sinfo", "--noheader", "--format=%P"]

    def probe(self, ask: Ask) -> Machine:
        """Return the partitions and nodes that scontrol or sinfo show."""
        from hpcprof.submit.schedulers.slurm.probe import probe_slurm

        return probe_slurm(ask)
