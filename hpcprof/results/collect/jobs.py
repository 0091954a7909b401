"""Jobs that a user names, for commands that need a job and not only its profiles."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.runs.directory import Run, find_run, find_submitted_runs


def find_jobs(references: Sequence[str], runs_dir: Path) -> list[Run]:
    """Return the submitted runs and the members of sweeps that a user named.

    Raises UsageError if a name matches nothing, several runs, or a run that was imported: it has no job.
    """
    with _name_imported_runs(references, runs_dir):
        return find_submitted_runs(references, runs_dir)


def find_job(reference: str, runs_dir: Path) -> Run:
    """Return the one submitted run that a user named, with the errors of `find_jobs`."""
    with _name_imported_runs([reference], runs_dir):
        run = find_run(reference, runs_dir)
        assert run.submission
        return run


@contextmanager
def _name_imported_runs(references: Sequence[str], runs_dir: Path) -> Iterator[None]:
    try:
        yield
    except UsageError:
        # The database is not needed for runs that are found in their folder.
        for reference in references:
            if reference != "last" and (imported := _imported_run(reference, runs_dir)):
                raise UsageError(f"{imported.id} was imported from {imported.path}: it has no job.") from None
        raise


def _imported_run(reference: str, runs_dir: Path) -> Run | None:
    from hpcprof.results.collect.run_names import find_known_runs
    from hpcprof.results.store.store import open_store

    with suppress(HpcprofError):
        store = open_store(None, runs_dir)
        collected = {row.id for row in store.runs()} if store.exists() else set()
        known_runs = find_known_runs([reference], runs_dir, store)
        return next((run for run in known_runs if run.manifest is None and run.id in collected), None)
    return None
