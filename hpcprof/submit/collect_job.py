"""A collect as a job of its own, on the site of the runs that it reads.

The job is described, rendered, submitted and watched as every other one. Its run directory stands in
``collect/`` of the first run that it reads: it is no run whose results anybody asks for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy.engine import URL

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.builder import make_job
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.runs.directory import Manifest, Run
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.polling import poll
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.model import Launcher, LauncherName, Site
from hpcprof.submit.submission import submit

FOLDER = "collect"


@dataclass(frozen=True)
class CollectPlacement:
    """Where the collect runs: with ``mpi`` on the ranks of an MPI job, else in processes of one node.

    ``jobs`` are the ranks of each node, or the processes. What is None is as in the run that is collected,
    but for the walltime, which is the site's.
    """

    mpi: bool = False
    jobs: int | None = None
    nodes: int | None = None
    queue: str | None = None
    walltime: str | None = None


def submit_collect(
    runs: Sequence[Run], database: URL, place: CollectPlacement, command_line: list[str]
) -> Run:
    """Submit the collect of runs as one job; it starts when those that have not ended have succeeded.

    Raises
    ------
    UsageError
        If it can be no job, or a value does not fit the site.
    SchedulerError
        If the scheduler did not take it.
    """
    site, job = make_collect_job(runs, database, place)
    states = poll(runs)
    left = [str(run.path) for run in runs if states[run.id].state in (JobState.QUEUED, JobState.RUNNING)]
    waiting = msgspec.structs.replace(job, after=left)
    return submit(site, waiting, runs[0].path / FOLDER, command_line)


def make_collect_job(runs: Sequence[Run], database: URL, place: CollectPlacement) -> tuple[Site, Job]:
    """Return the site and the job of a collect.

    It has the account and the site's options of the first run.

    Raises
    ------
    UsageError
        If it can be no job, or a value does not fit the site.
    """
    manifest = _manifest(runs)
    site = manifest.site
    if find_scheduler(site.scheduler).runs_in_image:
        raise UsageError(f"--submit: the jobs of site {site.name} do not see the results database.")
    nodes = place.nodes or 1
    if place.mpi:
        ranks_per_node = place.jobs or manifest.job.ranks_per_node
        if nodes * ranks_per_node < 2:
            raise UsageError("--executor mpi needs two ranks or more, of which one hands out: give --jobs.")
    elif nodes > 1:
        raise UsageError(f"--nodes {nodes}: processes are of one node; give --executor mpi.")
    else:
        # A launcher may bind what it starts to one core.
        site, ranks_per_node = msgspec.structs.replace(site, launcher=Launcher(LauncherName.NONE)), 1
    return site, make_job(
        site,
        arguments=_command(runs, database, place),
        name=FOLDER,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        walltime=place.walltime,
        queue=place.queue or manifest.job.queue,
        account=manifest.job.account,
        options=manifest.job.options,
    )


def _manifest(runs: Sequence[Run]) -> Manifest:
    """Return the manifest of the first run; all have to be of one site."""
    for run in runs:
        if run.manifest is None:
            raise UsageError(
                f"--submit: {run.path} is a folder of profiles that hpcprof did not submit, so that its site "
                "is not known: submit hpcprof collect as a program instead."
            )
        if runs[0].manifest is not None and run.manifest.site.name != runs[0].manifest.site.name:
            raise UsageError(f"--submit: {runs[0].id} and {run.id} are of two sites: submit one by one.")
    assert runs[0].manifest is not None
    return runs[0].manifest


def _command(runs: Sequence[Run], database: URL, place: CollectPlacement) -> list[str]:
    """Return the collect's own command, with absolute paths."""
    words = [sys.executable, *(["-m", "mpi4py.futures"] if place.mpi else []), "-m", "hpcprof", "collect"]
    if place.mpi:
        words += ["--executor", "mpi"]
    elif place.jobs:
        words += ["--jobs", str(place.jobs)]
    return [*words, "--db", _shown(database), *(str(run.path) for run in runs)]


def _shown(database: URL) -> str:
    """Return the database as it stands in a script, which anybody may be able to read."""
    if database.get_backend_name() == "sqlite":
        return str(Path(database.database or "").absolute())
    if database.password is not None or "password" in database.query:
        raise UsageError(
            "--submit: --db holds a password, which would stand in the job's script: leave it out there, and "
            "put it into ~/.pgpass."
        )
    return database.render_as_string()
