"""Find the jobs that a user names, for commands that need a job and not only profiles."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.runs.directory import Run, find_run, find_submitted_runs, find_sweep


def find_jobs(references: Sequence[str], runs_dir: Path) -> list[Run]:
    """Return the submitted runs and the members of sweeps that a user named.

    Raises UsageError if a name matches nothing, several runs, or a run that was imported: it has no job.
    """
    try:
        return find_submitted_runs(references, runs_dir)
    except UsageError:
        _refuse_imported(references, runs_dir)
        raise


def find_job(reference: str, runs_dir: Path) -> Run:
    """Return the one submitted run that a user named, with the errors of `find_jobs`."""
    try:
        run = find_run(reference, runs_dir)
        assert run.submission
    except UsageError:
        _refuse_imported([reference], runs_dir)
        raise
    return run


def _refuse_imported(references: Sequence[str], runs_dir: Path) -> None:
    # The database is not needed for runs that are found in their folder.
    from hpcprof.results.collect.run_names import find_known_runs
    from hpcprof.results.store.store import open_store

    runs, collected = list[Run](), set[str]()
    with suppress(HpcprofError):
        store = open_store(None, runs_dir)
        collected = {row.id for row in store.runs()} if store.exists() else set()
        names = [name for name in references if name != "last"]
        runs = [run for run in find_known_runs(names, runs_dir, store) if run.id in collected]
    for run in runs:
        if run.manifest is None and run.path.parent == runs_dir.absolute() and not run.path.exists():
            sentence = f"the folder of {run.id} was removed, with its output: {run.path}"
            raise UsageError(f"{sentence}. Its results remain: hpcprof report {run.id}.") from None
        if run.manifest is None:
            raise UsageError(f"{run.id} was imported from {run.path}: it has no job.") from None
    for reference in references:
        if not find_sweep(reference, runs_dir):
            find_run(reference, runs_dir, [*collected])
