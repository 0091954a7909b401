"""Collect the runs that a command needs and the store does not have yet."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hpcprof.common.errors import HpcprofError, StoreError
from hpcprof.results.collect.darshan_logs import logs_of
from hpcprof.results.collect.run_memory import snapshots_of
from hpcprof.results.collect.run_names import find_known_run, find_known_runs
from hpcprof.results.collect.run_profiles import profiles_of, sampled_so_far
from hpcprof.results.collect.stalls import has_live_results, is_unprofiled
from hpcprof.results.store.analysis_version import earlier_version
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run, sweep_of, typed_name
from hpcprof.submit.remote.mirror import connect, host_of
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll

Collect = Callable[[Run, Store], object]
"""Collects a run into a store."""


def find_collected_run(reference: str, store: Store, runs_dir: Path, collect: Collect) -> Run:
    """Return the run that a user named, after it has been collected if nothing of it was."""
    run = find_known_run(reference, runs_dir, store)
    collect_missing([run], store, collect)
    return run


def find_collected_sides(
    sides: Sequence[Sequence[str]], store: Store, runs_dir: Path, collect: Collect
) -> list[list[Run]]:
    """Return the runs of each side that a user named, after `collect_missing`."""
    known_runs = [find_known_runs(side, runs_dir, store) for side in sides]
    collect_missing([run for side in known_runs for run in side], store, collect)
    return known_runs


def collect_missing(runs: Sequence[Run], store: Store, collect: Collect) -> None:
    """Collect each run whose profiles are not in the store, or are there from an earlier version of hpcprof.

    A stalled run is not collected while its job runs. The node samples of a run without a profiler are stored
    silently, and again whenever there are more. Raises HpcprofError if the job of another run has not ended,
    since its profiles are incomplete.
    """
    exists = store.exists()
    stored = {run.id: store.profiles(run.id) if exists else {} for run in runs}
    missing = [run for run in runs if not stored[run.id]]
    connect(missing)
    statuses = poll(missing, LISTING_SECONDS)
    unfinished = set()
    for run in missing:
        status = statuses.get(run.id)
        if status is not None and status.state is JobState.RUNNING and has_live_results(run):
            unfinished.add(run.id)
        elif status is not None and status.state in (JobState.QUEUED, JobState.RUNNING):
            sweep = run.path.with_name(sweep_of(run.id) or run.id) if len(runs) > 1 else run.path
            raise HpcprofError(
                f"{run.id} is {status.state.value}: wait with hpcprof status {typed_name(sweep)} --watch, "
                "then report."
            )
    for run in runs:
        profiles = stored[run.id].values()
        if not profiles and run.manifest is not None and not host_of(run) and is_unprofiled(run, store):
            _store_samples(run, store)
            continue
        uncollected = (snapshots_of(run) or logs_of(run)) and not (exists and store.has_run(run.id))
        if (
            run.id not in unfinished
            and (not profiles or earlier_version(profiles))
            and (profiles_of(run) or host_of(run) or uncollected)
        ):
            collect(run, store)
            if not host_of(run) and profiles_of(run) and not store.has_run(run.id):
                raise HpcprofError(f"nothing of {run.id} could be collected: its profiles cannot be read.")


def _store_samples(run: Run, store: Store) -> None:
    """Store the node samples, memory and logs of a run without profiles, if there are new ones."""
    # A user who cannot write gets the results of the database and of the run's folder.
    with suppress(StoreError, OSError):
        row = store.run(run.id) if store.exists() else None
        if (row.sampled if row else None) == sampled_so_far(run):
            return
        from hpcprof.results.collect.collection import collect  # imports pandas

        store.prepare()
        collect(run, store)
