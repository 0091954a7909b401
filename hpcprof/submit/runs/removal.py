"""Removing the directory of a run, and nothing else: nothing outside a folder of runs or behind a link."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.submit.runs.directory import ARRAY_SCRIPT, MANIFEST, Run, all_runs, sweep_of

_COLLECT_JOBS = "collect"


def check_place(run: Run, runs: Path) -> None:
    """Check that a run is a directory in a folder of runs.

    Raises
    ------
    UsageError
        If it is elsewhere, or a link.
    """
    if run.path.parent.resolve() != runs.resolve():
        raise UsageError(f"{run.path} is not in {runs}: give --runs-dir {run.path.parent}.")
    if run.path.is_symlink():
        raise UsageError(f"{run.path} is a link to {run.path.readlink()}: remove it yourself.")


def jobs_of(run: Run) -> list[Run]:
    """Return a run and the jobs that collect it, whose directories are in its own."""
    return [run, *all_runs(run.path / _COLLECT_JOBS, [])]


def size_of(folder: Path) -> int:
    """Return how many bytes the files in a folder have; links are not followed."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # another process may just have removed it
                total += (Path(place) / name).lstat().st_size
    return total


def remove_directory(run: Run) -> None:
    """Remove the directory of a run, its manifest last, so that an interrupted removal can be repeated.

    With the last member of an array, the directory of the array goes too.

    Raises
    ------
    HpcprofError
        If a file cannot be removed.
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
        raise HpcprofError(f"cannot remove {error.filename}: {error.strerror}.") from None


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
