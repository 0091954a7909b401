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

__all__ = ["__version__", "open"]


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
