"""Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.schedulers.scheduler import DaskJobs, JobArrays, Scheduler, batch_job_name
from hpcprof.submit.schedulers.slurm.options import OWN_SETTINGS, slurm_settings
from hpcprof.submit.sites.model import LauncherName, NodeRequest, Site

if TYPE_CHECKING:
    from hpcprof.submit.schedulers.slurm.client import SlurmClient
    from hpcprof.submit.sites.machine import Ask, Machine


class SlurmScheduler(Scheduler):
    """Slurm, by sbatch, squeue, sacct and scancel."""

    name = "slurm"
    title = "Slurm"
    commands = ("sbatch", "squeue", "scancel")
    job_id_variable = "SLURM_JOB_ID"
    silence_remedy = "Ask the operators whether Slurm is running."
    arrays = JobArrays("#SBATCH", "#SBATCH --array={}", "SLURM_ARRAY_TASK_ID", "%a")
    dask_jobs = DaskJobs(
        "SLURMCluster",
        replaced=tuple(
            f"#SBATCH {flag}" for flag in ("-p ", "-A ", "-n ", "--cpus-per-task=", "--mem=", "-t ")
        ),
        kept=("--job-name=", "--output=", "--error="),
    )
    starters = (LauncherName.SRUN,)
    resources = ("cpus_per_rank", "gpus_per_rank", "mem", "constraint", "scheduler_args")
    node_request = NodeRequest.GPUS_PER_NODE
    masks_gpus = True

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

    def resource_directives(self, job: Job) -> dict[str, str]:
        """Return the directives for CPUs, memory and kind of nodes."""
        values = {"cpus_per_rank": job.cpus_per_rank, "mem": job.mem, "constraint": job.constraint}
        flags = {"cpus_per_rank": "--cpus-per-task", "mem": "--mem", "constraint": "--constraint"}
        return {field: f"{flags[field]}={value}" for field, value in values.items() if value}

    def settings(self, directive: str) -> frozenset[str]:
        """Return the long name of the option, or what several options set in common."""
        return slurm_settings(directive)

    def own_settings(self, site: Site) -> dict[str, str]:
        """Return the options that the script or another option of hpcprof has."""
        return {**OWN_SETTINGS, site.queue_directive: "give --queue"}

    def job_name(self, name: str) -> str:
        """Return the name without spaces, and short."""
        return batch_job_name(name)

    def question(self, site: Site) -> list[str]:
        """Return the command that fails at once if no controller runs; others ask for a minute."""
        return ["scontrol", "ping"]

    def probe(self, ask: Ask) -> Machine:
        """Return the partitions and nodes that scontrol or sinfo show."""
        from hpcprof.submit.schedulers.slurm.probe import probe_slurm

        return probe_slurm(ask)
