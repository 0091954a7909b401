"""Remove runs with their rows in the store, and orphaned rows.

Nothing outside a folder of runs or behind a link is removed.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles.event_folders import remove_shared_events
from hpcprof.results.store.overview import StoredRun, baselined_runs, stored_runs
from hpcprof.runs.directory import (
    ARRAY_SCRIPT,
    MANIFEST,
    Run,
    all_runs,
    find_run,
    find_runs,
    sweep_of,
    typed_name,
)
from hpcprof.runs.tags import imported_run_files, read_tags
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll

_COLLECT_JOBS = "collect"


def check_in_runs_dir(run: Run, runs: Path) -> None:
    """Check that a run is a directory in a folder of runs."""
    if run.path.parent.resolve() != runs.resolve():
        raise UsageError(f"{run.path} is not in {runs}: give --runs-dir {run.path.parent}.")
    if run.path.is_symlink():
        raise UsageError(f"{run.path} is a link to {run.path.readlink()}: remove it yourself.")


def jobs_of(run: Run) -> list[Run]:
    """Return a run and the jobs that collect it, whose directories are in its own."""
    return [run, *all_runs(run.path / _COLLECT_JOBS, [])]


def size_of(folder: Path) -> int:
    """Return the size of the files in a folder in bytes; links are not followed."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # another process may just have removed it
                total += (Path(place) / name).lstat().st_size
    return total


def remove_directory(run: Run) -> None:
    """Remove the directory of a run, its manifest last, so that an interrupted removal can be repeated.

    With the last member of an array, the directory of the array goes too.
    """
    try:
        for path in sorted(run.path.iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != MANIFEST:
                path.unlink()
        (run.path / MANIFEST).unlink()
        run.path.rmdir()
        _remove_empty_sweep(run)
    except OSError as error:
        raise HpcprofError(f"cannot remove {run.path}: {error.filename}: {error.strerror}.") from None


def _remove_empty_sweep(run: Run) -> None:
    sweep = sweep_of(run.id)
    if sweep is None or any(run.path.parent.glob(f"{sweep}.*/{MANIFEST}")):
        return
    folder = run.path.with_name(sweep)
    if (
        folder.is_dir()
        and not folder.is_symlink()
        and [path.name for path in folder.iterdir()] == [ARRAY_SCRIPT]
    ):
        (folder / ARRAY_SCRIPT).unlink()
        folder.rmdir()


class Removal(msgspec.Struct, frozen=True):
    """The removal of one id: the directory of a run, rows in the store, or both."""

    id: str
    run: Run | None = None
    """The run whose directory is removed; None to remove only rows."""
    status: JobStatus | None = None
    bytes: int = 0
    """The size of the directory."""
    rows: StoredRun | None = None
    """The rows that are removed."""


def chosen_removals(references: Sequence[str], runs_dir: Path, db: str | None = None) -> list[Removal]:
    """Return the removals of the runs, sweeps and collected profiles that a user names.

    Raises UsageError if a name matches nothing, a run is outside the folder of runs or in a baseline, and
    HpcprofError if the job of a run has not ended or its state is unknown.
    """
    stored = {row.id: row for row in stored_runs(db, runs_dir)}
    removals: dict[str, Removal] = {}
    for reference in references:
        for run in _runs_named(reference, runs_dir, stored):
            removals[run.id] = _removal(run, runs_dir, stored, db)
    for run_id, (name, *_) in baselined_runs(db, runs_dir).items():
        if run_id in removals:
            raise UsageError(
                f"{run_id} is in the baseline {name!r}: first give the baseline other runs (hpcprof baseline "
                "set), or remove it (hpcprof baseline rm)."
            )
    return list(removals.values())


def old_removals(
    before: datetime, runs_dir: Path, db: str | None = None, protected: set[str] | None = None
) -> list[Removal]:
    """Return the removals of runs that were submitted before a time, have ended and have no tag.

    Runs of a baseline are left out; ``protected`` gets their ids.
    """
    stored = {row.id: row for row in stored_runs(db, runs_dir)}
    old = [
        run
        for run in all_runs(runs_dir, [])
        if run.manifest
        and datetime.fromisoformat(run.manifest.created) < before
        and not read_tags(run, runs_dir)
        and not run.path.is_symlink()
    ]
    statuses = poll(old, LISTING_SECONDS)
    ended = [run for run in old if statuses[run.id].state.ended and _open_job(jobs_of(run)[1:]) is None]
    removable = _without_baselines([run.id for run in ended], runs_dir, db, protected)
    return [_removal_of_ended(run, statuses[run.id], stored) for run in ended if run.id in removable]


def missing_removals(
    runs_dir: Path, db: str | None = None, protected: set[str] | None = None
) -> list[Removal]:
    """Return the removals of orphaned rows: the folder of the run is gone, but its parent folder exists.

    Without the parent, a file system may not be mounted. Rows of a baseline are left out, because comparisons
    need only these; ``protected`` gets the ids of their runs.
    """
    missing = [
        row
        for row in stored_runs(db, runs_dir)
        if not Path(row.path).exists() and Path(row.path).parent.is_dir()
    ]
    removable = _without_baselines([row.id for row in missing], runs_dir, db, protected)
    return [Removal(row.id, rows=row) for row in missing if row.id in removable]


def _without_baselines(
    run_ids: Sequence[str], runs_dir: Path, db: str | None, protected: set[str] | None
) -> set[str]:
    baselined = baselined_runs(db, runs_dir).keys() & set(run_ids)
    if protected is not None:
        protected |= baselined
    return set(run_ids) - baselined


def remove(removals: Sequence[Removal], runs_dir: Path, db: str | None = None) -> Iterator[Removal]:
    """Remove directories and rows, and yield each removal when it is done.

    Raises HpcprofError if a file or the rows cannot be removed; what was yielded before is gone.
    """
    store = None
    if any(removal.rows for removal in removals):
        # SQLAlchemy is not needed for runs that were never collected.
        from hpcprof.results.store.store import open_store

        store = open_store(db, runs_dir)
        store.exists()  # a store of another version is refused before anything is removed
    for removal in removals:
        if removal.run is not None:
            remove_directory(removal.run)
        _remove_events(runs_dir, removal.id)
        if store is not None and removal.rows is not None:
            store.delete_run(removal.id)
        yield removal


def page_path(runs_dir: Path, run_id: str) -> Path:
    """Return the file of the page that ``hpcprof open`` shows."""
    return runs_dir / "pages" / f"{run_id}.html"


def _remove_events(runs_dir: Path, run_id: str) -> None:
    try:
        for path in (*imported_run_files(run_id, runs_dir), page_path(runs_dir, run_id)):
            path.unlink(missing_ok=True)
        remove_shared_events(runs_dir, run_id)
    except OSError as error:
        raise HpcprofError(f"cannot remove {error.filename}: {error.strerror}.") from None


def compact_store(removals: Sequence[Removal], runs_dir: Path, db: str | None = None) -> int:
    """Return the space of removed rows to the file system; the result is its size in bytes."""
    if not any(removal.rows for removal in removals):
        return 0
    from hpcprof.results.store.store import open_store

    return open_store(db, runs_dir).compact()


def _runs_named(reference: str, runs_dir: Path, stored: Mapping[str, StoredRun]) -> list[Run]:
    try:
        return find_runs(reference, runs_dir)
    except UsageError:
        # SQLAlchemy is not needed for runs that are found in their folder.
        from hpcprof.results.collect.run_names import stored_run

        run = stored_run(reference, runs_dir, {name: row.path for name, row in stored.items()})
        run = run or find_run(reference, runs_dir, list(stored))
    return [Run(run.id, run.path)]


def _removal(run: Run, runs_dir: Path, stored: Mapping[str, StoredRun], db: str | None) -> Removal:
    if run.manifest is None:
        if run.id not in stored:
            raise UsageError(f"nothing was collected from {run.path}, and hpcprof did not submit it.")
        return Removal(run.id, rows=stored[run.id])
    check_in_runs_dir(run, runs_dir)
    still_open = _open_job(jobs_of(run))
    if still_open is not None:
        job, status = still_open
        if status.state is JobState.UNKNOWN:
            from hpcprof.results.collect.run_names import command_line
            from hpcprof.results.store.store import open_store

            raise HpcprofError(
                f"{job.id} may still run: {status.reason.rstrip('.')}. If its scheduler is gone for good, "
                f"remove {run.path} yourself, and then its rows with "
                f"{command_line(open_store(db, runs_dir), 'gc', '--missing')}."
            )
        raise HpcprofError(
            f"{job.id} is {status.state.value}: end it first, with hpcprof cancel {typed_name(job.path)}."
        )
    return _removal_of_ended(run, poll([run], LISTING_SECONDS)[run.id], stored)


def _open_job(jobs: Sequence[Run]) -> tuple[Run, JobStatus] | None:
    """Return the first job that has not ended, with its status; None if all have."""
    statuses = poll(jobs, LISTING_SECONDS)
    return next(((job, statuses[job.id]) for job in jobs if not statuses[job.id].state.ended), None)


def _removal_of_ended(run: Run, status: JobStatus, stored: Mapping[str, StoredRun]) -> Removal:
    return Removal(run.id, run, status, size_of(run.path), _collected_rows(run, stored))


def _collected_rows(run: Run, stored: Mapping[str, StoredRun]) -> StoredRun | None:
    row = stored.get(run.id)
    if row is None or (Path(row.path).exists() and not Path(row.path).samefile(run.path)):
        return None
    return row
