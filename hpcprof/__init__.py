"""hpcprof: batch submission and profiling for HPC and machine-learning runs.

In Python, ``hpcprof.open("last").kernels()`` is an analysis of a run as a DataFrame. Importing hpcprof
imports nothing else; `open` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcprof.common import __version__

if TYPE_CHECKING:
    import os

    from hpcprof.results.api import Results
    from hpcprof.results.collect import Collected, Progress

__all__ = ["__version__", "collect_profiles", "open"]


def open(
    run: str | os.PathLike[str] = "last",
    *,
    runs_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
) -> Results:
    """Open a run and what was collected of it.

    Parameters
    ----------
    run : str or path
        A run id, a unique beginning of one, ``last``, or the path of a run or of any folder of profiles.
    runs_dir : str or path, optional
        The folder of runs; else ``$HPCPROF_RUNS``, else ``runs``.
    db : str, optional
        The results database, a path or an SQLAlchemy URL; else ``$HPCPROF_DB``, else the one among the runs.

    Raises
    ------
    hpcprof.common.errors.UsageError
        If there is no such run, or the database cannot be used.
    """
    from hpcprof.results.api import open_results

    return open_results(run, runs_dir, db)


def collect_profiles(
    run: str | os.PathLike[str] = "last",
    *,
    runs_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Read the profiles of a run into the results database, as ``hpcprof collect`` does.

    Profiles whose results the database already has are left alone; damaged ones are skipped.

    Parameters
    ----------
    run, runs_dir, db
        As for `open`.
    jobs : int, optional
        The number of processes that read profiles. By default this process reads them, one after another.
        With more than one, call this from a module that can be imported without side effects (below
        ``if __name__ == "__main__":``), as `multiprocessing` requires.
    progress : callable, optional
        Called after each rank with the number of ranks done, the number of all, and the rank's profile.

    Returns
    -------
    hpcprof.results.collect.Collected
        The profiles that were read, those that were unchanged, and a sentence for each that was skipped.

    Raises
    ------
    hpcprof.common.errors.UsageError
        If there is no such run, or the database cannot be used.
    hpcprof.common.errors.HpcprofError
        If there are no profiles, or two have the same rank; then nothing is stored.
    """
    from hpcprof.results import collect

    return collect.collect_profiles(run, runs_dir=runs_dir, db=db, jobs=jobs, progress=progress)
