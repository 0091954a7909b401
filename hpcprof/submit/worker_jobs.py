"""Batch jobs by dask-jobqueue: nodes with several Dask workers, set up like every job of the site."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.runs.directory import Run
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.request import make_job, resolve
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT
from hpcprof.submit.sites.environment import expanded
from hpcprof.submit.sites.model import Launcher, LauncherName, Site, recorded_site

_WITHOUT_PROFILE = "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"
"""Before Python 3.11.9, a worker that looks at its own threads can stop for ever (python/cpython#106883)."""

_NAME = "dask-worker"


@dataclass(frozen=True)
class WorkerPlacement:
    """Site by name, nodes (jobs) and workers on each; None is that of the first run or the site."""

    site: str | None = None
    nodes: int = 1
    workers: int | None = None
    queue: str | None = None
    walltime: str | None = None


@dataclass(frozen=True)
class WorkerJobs:
    """Jobs with Dask workers."""

    scheduler: str
    cluster: str
    options: dict[str, Any]
    nodes: int
    workers: int
    """The number of jobs, and of the workers in each."""


def make_worker_jobs(runs: Sequence[Run], place: WorkerPlacement, folder: Path) -> WorkerJobs:
    """Return the jobs for workers that collect runs; ``folder`` is for their logs."""
    site, job = _site_and_job(runs, place)
    scheduler = find_scheduler(site.scheduler)
    dask_jobs = scheduler.dask_jobs
    if dask_jobs is None or scheduler.arrays is None:
        raise UsageError(
            f"--executor dask: site {site.name} uses {scheduler.title}, but Dask starts workers in jobs of "
            "PBS and Slurm; leave out --site and --nodes for workers on this machine."
        )
    workers = place.workers or site.node.cores
    if workers is None:
        advice = "give --jobs, the number of workers on each node"
        raise UsageError(
            f"--executor dask: site {site.name} does not say how many cores a node has; {advice}."
        )
    # One process starts the workers, so no launcher is needed.
    alone = msgspec.structs.replace(site, launcher=Launcher(LauncherName.NONE))
    script = render_scripts(alone, job, folder, ["hpcprof", "collect"])[JOB_SCRIPT]
    mark = f"{scheduler.arrays.mark} "
    directives = [line.removeprefix(mark) for line in script.splitlines() if line.startswith(mark)]
    # The environment is prepared as the template of job.sh does it.
    modules = [f"module load {shlex.quote(name)}" for name in site.modules]
    variables = [f"export {name}={shlex.quote(value)}" for name, value in site.environment.items()]
    temporary = [f'export TMPDIR={expanded(site.tmpdir)} && mkdir -p "$TMPDIR"'] if site.tmpdir else []
    options = {
        "cores": workers,
        "processes": workers,
        # Required, but without effect: the job has the memory that the site gives it, for all its workers.
        "memory": "1GiB",
        "worker_extra_args": ["--memory-limit", "0", "--no-dashboard"],
        "job_name": _NAME,
        "job_directives_skip": list(dask_jobs.replaced),
        "job_extra_directives": [line for line in directives if not line.startswith(tuple(dask_jobs.kept))],
        "job_script_prologue": [*modules, *site.setup, *variables, *temporary, _WITHOUT_PROFILE],
        "log_directory": str(folder),
    }
    return WorkerJobs(site.scheduler, dask_jobs.cluster, options, place.nodes, workers)


def _site_and_job(runs: Sequence[Run], place: WorkerPlacement) -> tuple[Site, Job]:
    manifest = runs[0].manifest
    if place.site is None and manifest is None:
        folder = f"{runs[0].path} is a folder of profiles that hpcprof did not submit"
        raise UsageError(f"--executor dask: {folder}, so its site is unknown: give --site.")
    spec = JobSpec(
        (_NAME,),
        site=place.site,
        walltime=place.walltime,
        queue=place.queue,
        cpus_per_rank=place.workers,
        job_name=_NAME,
    )
    if manifest is None or place.site not in (None, manifest.site.name):
        return resolve(spec)
    job = manifest.job
    as_before = JobSpec(queue=job.queue, account=job.account, options=job.options)
    site = recorded_site(manifest)
    return site, make_job(site, spec.over(as_before))
