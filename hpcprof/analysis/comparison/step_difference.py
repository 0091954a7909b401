"""The difference of the step between two sides of runs, as parts of the account that add up to it exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.explain.step_series import step_series
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, welch_interval
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints

STEP = "step"
"""The row of the whole step, which is the sum of the others."""

COMMUNICATION, WAITING = "exposed communication", "waiting for peers"
_PARTS = {
    "compute_ns": "compute",
    "exposed_comm_ns": COMMUNICATION,
    "wait_for_peer_ns": WAITING,
    "exposed_mem_ns": "exposed copies",
    "idle_ns": "idle",
}
_REST = "median against mean"
"""What the median step takes longer than the mean of the steps in the middle."""

_ONE_RUN = (
    "with one run per side, the difference is exact for these two runs, but another pair of runs may differ "
    "by another amount"
)
_NO_WAITING = (
    "exposed communication includes the waiting for peers, which is unknown in at least one of the runs"
)


def step_difference(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Divide the difference of the step between ``runs`` (side b) and ``against`` (side a) into parts.

    The step is the one that `hpcprof explain` shows: the median over the steps that all ranks have, each on
    the rank that takes longest. A part of the account is its mean over the middle half of these steps on
    these ranks, and a side is the mean of its runs. The median differs a little from the mean of the middle
    half; that is the row ``median against mean``. So the rows add up to the row ``step``, in ``a_ns``, in
    ``b_ns`` and in ``difference_ns``, to the nanosecond.

    With two or more runs on both sides, ``ci_low_ns`` and ``ci_high_ns`` are a 95 % interval of the
    difference (Welch's t).
    """
    accounts = [[_account(run.tables["step_account"]) for run in side] for side in (against, runs)]
    a, b = ([one for one in side if one is not None] for side in accounts)
    if not a or not b:
        return no_rows("the account of a step needs profiles with steps on both sides")
    names, said = list(_PARTS), []
    if not all(one.waiting_is_known for one in (*a, *b)):
        names.remove("wait_for_peer_ns")
        said.append(_NO_WAITING)
    rows = [_row(STEP, [one.step for one in a], [one.step for one in b])]
    rows += [_row(_PARTS[name], *(_values(side, name, names) for side in (a, b))) for name in names]
    rest = {key: rows[0][key] - sum(row[key] for row in rows[1:]) for key in ("a_ns", "b_ns")}
    if any(rest.values()):
        middle = [[one.step - sum(one.parts.values()) for one in side] for side in (a, b)]
        rows.append(_row(_REST, *middle) | rest | {"difference_ns": rest["b_ns"] - rest["a_ns"]})
    if min(len(a), len(b)) < 2:
        said.append(_ONE_RUN)
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


@dataclass(frozen=True)
class _Account:
    """The median step of a run, and the mean of each part over the middle half of its steps, in ns."""

    step: float
    parts: dict[str, float]
    waiting_is_known: bool


def _account(table: pd.DataFrame) -> _Account | None:
    """Return the account of a run; None if it has no steps."""
    series = step_series(table)
    if not len(series.wall):
        return None
    chosen = _middle_half(series.wall)
    places = pd.MultiIndex.from_arrays([series.ranks[chosen], series.steps[chosen]])
    rows = table.set_index(["rank", "step"]).loc[places]
    parts = {name: float(rows[name].fillna(0).astype(float).mean()) for name in _PARTS}
    # Half a nanosecond of the median is rounded as explain rounds it.
    known = not bool(table["wait_for_peer_ns"].isna().any())
    return _Account(float(round(series.p50)), parts, known)


def _middle_half(wall: Ints) -> Ints:
    """Return the steps without the shortest and the longest quarter."""
    cut = len(wall) // 4
    middle: Ints = np.argsort(wall, kind="stable")[cut : len(wall) - cut]
    return middle


def _values(side: Sequence[_Account], name: str, names: Sequence[str]) -> list[float]:
    """Return a part of each run; communication takes over the waiting where that is no part of its own."""
    joined = name == "exposed_comm_ns" and "wait_for_peer_ns" not in names
    return [one.parts[name] + joined * one.parts["wait_for_peer_ns"] for one in side]


def _row(name: str, a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    of_a, of_b = round(float(np.mean(a))), round(float(np.mean(b)))
    low, high = _interval(np.array(a), np.array(b))
    return {
        "part": name,
        "a_ns": of_a,
        "b_ns": of_b,
        "difference_ns": of_b - of_a,
        "ci_low_ns": low,
        "ci_high_ns": high,
    }


def _interval(a: Floats, b: Floats) -> tuple[int | None, int | None]:
    if min(len(a), len(b)) < 2:
        return None, None
    low, high = welch_interval(b, a, CONFIDENCE)
    return round(low), round(high)
