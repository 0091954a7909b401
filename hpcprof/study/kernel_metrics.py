"""The study of kernels by hardware counters."""

from __future__ import annotations

import pandas as pd

from hpcprof.analysis.roofline import roofline
from hpcprof.rank_collect import as_result
from hpcprof.store import Store, Stored

LAUNCHES = 100
"""How many launches are replayed unless the user says another number."""

_OVER_RANKS = -1


def in_situ_roofline(store: Store, counted: str, timed: str) -> Stored:
    """Return the roofline of a run under ncu with the times that its kernels take in a run under nsys.

    Parameters
    ----------
    store : Store
        Both runs have been collected into it.
    counted, timed : str
        The ids of the runs under ncu and under nsys.
    """
    frames = [
        pd.DataFrame(store.read(run, analysis).rows)
        for run, analysis in ((counted, "ncu_kernels"), (timed, "kernels_by_shape"), (counted, "ncu_peaks"))
    ]
    result = as_result(roofline(*frames))
    return Stored(list(result.rows), {_OVER_RANKS: result.reason} if result.reason else {})
