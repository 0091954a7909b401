"""Collecting in a job of its own at the site of the runs, in ``collect/`` of the first run."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from sqlalchemy.engine import URL

from hpcprof.common.errors import UsageError
from hpcprof.runs.directory import Manifest, Run
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.model import Launcher, LauncherName, Site, recorded_site
from hpcprof.submit.submission import submit

FOLDER = "collect"


@dataclass(frozen=True)
class CollectPlacement:
    """The place of the collect: with ``mpi`` the ranks of an MPI job, else processes of one node.

    ``jobs`` is the number of ranks on each node, or of processes; ``step_range`` and ``program`` are passed
    on. Other values that are None come from the first run, the walltime from its site.
    """

    mpi: bool = False
    jobs: int | None = None
    nodes: int | None = None
    queue: str | None = None
    walltime: str | None = None
    step_range: str | None = None
    program: str | None = None

    def options(self) -> list[str]:
        """Return the options of ``hpcprof collect --submit`` that ask for this place."""
        words = ["--executor", "mpi"] if self.mpi else []
        for name, value in asdict(self).items():
            if name != "mpi" and value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return words


def submit_collect(
    runs: Sequence[Run], database: URL, place: CollectPlacement, command_line: list[str]
) -> Run:
    """Submit the collect of runs as one job, which starts once the runs have succeeded."""
    site, job = make_collect_job(runs, database, place)
    states = poll(runs, LISTING_SECONDS)
    unfinished = [
        str(run.path) for run in runs if states[run.id].state in (JobState.QUEUED, JobState.RUNNING)
    ]
    waiting = msgspec.structs.replace(job, after=unfinished)
    return submit(site, waiting, runs[0].path / FOLDER, command_line)


def make_collect_job(runs: Sequence[Run], database: URL, place: CollectPlacement) -> tuple[Site, Job]:
    """Return the site and the job of a collect, with the account and the site's options of the first run."""
    manifest = _manifest(runs)
    site = recorded_site(manifest)
    if find_scheduler(site.scheduler).runs_in_image:
        raise UsageError(f"--submit: the jobs of site {site.name} do not see the results database.")
    nodes = place.nodes or 1
    if place.mpi:
        ranks_per_node = place.jobs or manifest.job.ranks_per_node
        if nodes * ranks_per_node < 2:
            raise UsageError(
                "--executor mpi needs at least two ranks, one of which distributes the work: give --jobs."
            )
    elif nodes > 1:
        raise UsageError(f"--nodes {nodes}: processes run on one node; give --executor mpi.")
    else:
        # A launcher may bind each process to one core.
        site, ranks_per_node = msgspec.structs.replace(site, launcher=Launcher(LauncherName.NONE)), 1
    words = [sys.executable, *(["-m", "mpi4py.futures"] if place.mpi else []), "-m", "hpcprof", "collect"]
    inside = replace(place, jobs=None if place.mpi else place.jobs, nodes=None, queue=None, walltime=None)
    spec = JobSpec(
        (*words, *inside.options(), "--db", _public_database(database), *(str(run.path) for run in runs)),
        job_name=FOLDER,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        walltime=place.walltime,
        queue=place.queue or manifest.job.queue,
        account=manifest.job.account,
        options=manifest.job.options,
    )
    return site, make_job(site, spec)


def _manifest(runs: Sequence[Run]) -> Manifest:
    """Return the manifest of the first run, after checking that all runs are of one site."""
    for run in runs:
        if run.manifest is None:
            raise UsageError(
                f"--submit: {run.path} is a folder of profiles that hpcprof did not submit, so its site is "
                "unknown: submit hpcprof collect as a program instead."
            )
        if runs[0].manifest is not None and run.manifest.site.name != runs[0].manifest.site.name:
            raise UsageError(
                f"--submit: {runs[0].id} and {run.id} are from different sites: submit them one by one."
            )
    assert runs[0].manifest is not None
    return runs[0].manifest


def _public_database(database: URL) -> str:
    """Return the database for a script, which others may be able to read."""
    if database.get_backend_name() == "sqlite":
        return str(Path(database.database or "").absolute())
    if database.password is not None or "password" in database.query:
        reason = "which would be written to the job's script"
        raise UsageError(
            f"--submit: --db holds a password, {reason}: leave it out, and put it into ~/.pgpass."
        )
    return database.render_as_string()
