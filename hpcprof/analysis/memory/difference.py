"""Contents of the GPU memory of some runs at the peak, compared with that of other runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData

_KEY = ["event", "kind", "module", "line"]


def memory_difference(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Return what grew in ``runs``, which are side B.

    Of each side it is the mean over its runs, of each run the GPU that held most at a peak.
    """
    sides = [[_fullest(run.tables["memory"]) for run in side] for side in (against, runs)]
    known = [[table for table in side if table is not None] for side in sides]
    if not all(known):
        return no_rows("not all sides have snapshots of PyTorch's memory (--memory-history keeps some)")
    joined = pd.concat([_mean(known[0], "a_bytes"), _mean(known[1], "b_bytes")], axis=1).fillna(0.0)
    joined["difference_bytes"] = joined["b_bytes"] - joined["a_bytes"]
    rows = joined.reset_index()
    rows = rows[rows["difference_bytes"] != 0]
    if not len(rows):
        return no_rows("the memory at the peak is the same on both sides")
    order = np.argsort(-rows["difference_bytes"].abs().to_numpy(), kind="stable")
    rows = rows.iloc[order].reset_index(drop=True)
    return Outcome(rows.astype(dict.fromkeys(("a_bytes", "b_bytes", "difference_bytes"), np.int64)))


def _fullest(table: pd.DataFrame) -> pd.Series[Any] | None:
    """Return the bytes by place of the rank that holds most in each event; steps are one event."""
    if not len(table):
        return None
    table = table.assign(**{name: table[name].fillna("") for name in _KEY})
    of_gpu = ["event", "rank", "step", "device"]
    whole = table.groupby(of_gpu, dropna=False)["bytes"].sum().reset_index()
    chosen = whole.loc[whole.groupby("event")["bytes"].idxmax(), of_gpu]
    own = table.merge(chosen, on=of_gpu)
    sums: pd.Series[Any] = own.groupby(_KEY)["bytes"].sum()
    return sums


def _mean(tables: Sequence[pd.Series[Any]], name: str) -> pd.Series[Any]:
    mean: pd.Series[Any] = pd.concat(tables, axis=1).fillna(0.0).mean(axis=1)
    mean.name = name
    return mean
