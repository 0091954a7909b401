"""The step of a run: its length, its kinds, and the parts of its time.

Every answer about the step of a run comes from here: `step_series` gives its median, `step_kinds` its
account, its elapsed time and its kinds.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import Floats, Ints
from hpcprof.runs.step_time import single_long_steps

PARTS = ("compute_ns", "exposed_comm_ns", "wait_for_peer_ns", "exposed_mem_ns", "idle_ns")
"""The columns of ``step_account`` that add up to ``wall_ns``."""

_WORK_PARTS = ("compute_ns", "exposed_comm_ns", "exposed_mem_ns")
"""The parts in which a GPU works and no rank waits."""

_MIN_KIND_DIFFERENCE = 0.1
"""Minimum difference of two kinds, as a share of the mean step."""

_MIN_KIND_SHARE, _MIN_KIND_STEPS = 1 / 8, 3
"""Minimum share and minimum number of the steps of a kind; fewer are exceptions."""

_MIN_EMPTINESS, _EMPTINESS_BY_ROOT = 0.4, 1.4
"""Minimum gap between two kinds, as a share of the distance of their medians: 0.4 + 1.4 / √steps.

`benchmarks/step_kinds.py` measures the false alarms for series with a single mode.
"""

_MAX_PHASE_CHANGES = 3
"""Maximum number of begins and ends of a kind that is a phase of the capture: one run, one exception."""

_MAX_STEP_GAP = 0.001
"""Maximum share of a step between its end and the next begin, for consecutive steps."""

_TAIL = 10
"""Tails of 1/10 of two kinds may lie in the valley between them."""


@dataclass(frozen=True)
class StepSeries:
    """The wall time of each step on its slowest rank.

    ``steps`` are the numbers of the steps, and ``ranks`` the slowest ranks.
    """

    steps: Ints
    wall: Ints
    ranks: Ints

    @property
    def p50(self) -> float:
        """The median, in ns."""
        return float(np.median(self.wall))


def step_series(table: pd.DataFrame) -> StepSeries:
    """Return the series of the steps that all ranks have; ``table`` has rank, step and wall_ns."""
    if not len(table):
        return StepSeries(*np.empty((3, 0), np.int64))
    whole = whole_steps(table)
    step, wall, rank = (whole[name].to_numpy(np.int64) for name in ("step", "wall_ns", "rank"))
    steps, place = numbered(step)
    longest = np.zeros(len(steps), np.int64)
    np.maximum.at(longest, place, wall)
    rows = np.flatnonzero(wall == longest[place])
    rows = rows[np.lexsort((rank[rows], place[rows]))]
    rows = rows[np.unique(place[rows], return_index=True)[1]]
    return StepSeries(steps, longest, rank[rows])


@computed_once
def whole_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the steps that all ranks have; each rank's are in ascending order.

    Ranks without common numbers were captured in different steps, or by different profilers. Their steps are
    then counted from 0 on each rank.
    """
    on_all = _on_all_ranks(table)
    if len(table) and not on_all.any():
        table = table.assign(step=table.groupby("rank").cumcount())
        on_all = _on_all_ranks(table)
    whole: pd.DataFrame = table[on_all]
    return whole


def _on_all_ranks(table: pd.DataFrame) -> "pd.Series[bool]":
    return table.groupby("step")["rank"].transform("size") == table["rank"].nunique()


@computed_once
def kinds_of_steps(account: pd.DataFrame) -> Ints:
    """Return the kind of each step that all ranks have, in their order; the most frequent kind is 1.

    Steps are of several kinds where their wall times, or a part of their account (the mean over the ranks),
    have several modes: gradient accumulation, inputs of several lengths, a warm-up inside the capture.
    """
    if not len(account):
        return np.empty(0, np.int64)
    by_step = whole_steps(account).fillna({"wait_for_peer_ns": 0}).astype({"wait_for_peer_ns": float})
    grouped = by_step.groupby("step")
    features = np.column_stack([grouped["wall_ns"].max(), grouped[[*PARTS]].mean()]).astype(float)
    clusters = [
        *_split_by_kind(
            features, np.arange(len(features)), _MIN_KIND_DIFFERENCE * float(features[:, 0].mean())
        )
    ]
    clusters.sort(key=lambda rows: (-len(rows), rows[0]))
    kind = np.empty(len(features), np.int64)
    for number, rows in enumerate(clusters, 1):
        kind[rows] = number
    return kind


def kind_of_rows(account: pd.DataFrame) -> Ints:
    """Return the kind of the step of each row; 0 if all steps are of one, or not all ranks have the step."""
    kind_of_step, kind = np.zeros(len(account), np.int64), kinds_of_steps(account)
    if kind.max(initial=0) > 1:
        whole = whole_steps(account.reset_index(drop=True))
        kind_of_step[whole.index] = kind[numbered(whole["step"].to_numpy(np.int64))[1]]
    return kind_of_step


def _split_by_kind(features: Floats, rows: Ints, apart: float) -> Iterator[Ints]:
    """Yield the rows of each kind: the clearest valley of any feature divides them, and so on recursively."""
    least = max(_MIN_KIND_STEPS, int(np.ceil(_MIN_KIND_SHARE * len(features))))
    best, clearest = None, 0.0
    for feature in features[rows].T:
        count, margin = _valley(np.sort(feature), least, apart)
        if margin > clearest:
            best, clearest = rows[np.argsort(feature, kind="stable")], margin
            below = count
    if best is None:
        yield rows
        return
    for side in (best[:below], best[below:]):
        yield from _split_by_kind(features, np.sort(side), apart)


def _valley(values: Floats, least: int, apart: float) -> tuple[int, float]:
    """Return the number of sorted values below their clearest valley, and its margin over the threshold.

    A valley is the distance between the upper tenth of the values below and the lower tenth of those above,
    as a share of the distance of both medians.
    """
    size = len(values)
    below = np.arange(least, size - least + 1)
    if not len(below):
        return 0, 0.0
    above = size - below
    low = (values[(below - 1) // 2] + values[below // 2]) / 2
    high = (values[below + (above - 1) // 2] + values[below + above // 2]) / 2
    gap = values[below + above // _TAIL] - values[below - 1 - below // _TAIL]
    distance = high - low
    valley = np.where(distance >= max(apart, 1.0), gap / np.maximum(distance, 1.0), 0.0)
    clearest = int(np.argmax(valley))
    count = int(below[clearest])
    # Within the tails, the widest step between two values divides them.
    cuts = np.arange(
        max(least, count - count // _TAIL), min(size - least, count + (size - count) // _TAIL) + 1
    )
    widest = int(cuts[np.argmax(values[cuts] - values[cuts - 1])])
    return widest, float(valley[clearest]) - _MIN_EMPTINESS - _EMPTINESS_BY_ROOT / size**0.5


def steady_series(account: pd.DataFrame) -> StepSeries:
    """Return the series, with kinds of more or less work shifted to the length of the usual kind.

    Such a kind has a different length by design. A kind that only waits or idles longer keeps its length, and
    so does a kind whose steps are consecutive: that is a change of level.
    """
    series, kind = step_series(account), kinds_of_steps(account)
    if not len(kind):
        return series
    work = whole_steps(account).groupby("step")[[*_WORK_PARTS]].mean().sum(axis=1).to_numpy(float)
    wall = series.wall.copy()
    for number in range(2, int(kind.max()) + 1):
        more, longer = (
            float(np.median(times[kind == number]) - np.median(times[kind == 1]))
            for times in (work, series.wall)
        )
        alternates = np.count_nonzero(np.diff(kind == number)) > _MAX_PHASE_CHANGES
        if alternates and abs(more) > abs(longer) / 2:
            wall[kind == number] -= round(longer)
    return replace(series, wall=wall)


def step_kinds(
    account: pd.DataFrame, start: Ints, own_start: Ints, aligned: Set[int]
) -> list[dict[str, Any]]:
    """Return the account of all steps that all ranks have, and of each kind of them where there are several.

    ``account`` has the rows of ``step_account``, and ``start`` the front of each row, shape (rows,): on the
    common clock for the ranks in ``aligned``, else on the rank's own, as all are in ``own_start``. The rows
    have the columns of the analysis ``step_kinds``. A part is its mean over the steps and ranks;
    ``uneven_ns`` is the rest of ``elapsed_ns``.

    If steps end at the front of the next one, the last one has no end: the host's time before a next step is
    missing. Its times count only in a kind without any other step, and so do those of steps that take long
    once (`hpcprof.runs.step_time`).
    """
    if not len(account):
        return []
    rows = whole_steps(account.assign(start_ns=start, own_start_ns=own_start)).sort_values(["step", "rank"])
    # A common clock may run faster by more than the time between two steps.
    follow = _are_contiguous(*_by_step(rows))
    kind, series = kinds_of_steps(account), step_series(account)
    elapsed = _elapsed_times(rows, aligned, follow)
    steps, ended = rows["step"].to_numpy(), np.ones(len(kind), bool)
    ended[-1] = not follow
    once = np.isin(np.arange(len(kind)), single_long_steps(series.wall.tolist()))
    ended[once] = False
    kind_masks = [np.ones(len(kind), bool)]
    kind_masks += [kind == number for number in range(1, int(kind.max()) + 1) if kind.max() > 1]
    return [
        {
            "kind": number,
            "steps": int(in_kind.sum()),
            "counted_steps": int(whole.sum()),
            "once_steps": int((in_kind & once & ~whole).sum()),
            "share_pct": round(100 * float(in_kind.mean()), 2),
            "wall_p50_ns": round(float(np.median(series.wall[in_kind]))),
            **_parts(rows[np.isin(steps, series.steps[whole])], float(elapsed[whole].mean())),
        }
        for number, in_kind in enumerate(kind_masks)
        for whole in (in_kind & ended if (in_kind & ended).any() else in_kind,)
    ]


def _by_step(rows: pd.DataFrame) -> tuple[Ints, Ints]:
    """Return begin, by the ranks' clocks, and time of sorted steps, each of shape (steps, ranks)."""
    ranks = rows["rank"].nunique()
    start, wall = (rows[name].to_numpy(np.int64).reshape(-1, ranks) for name in ("own_start_ns", "wall_ns"))
    return start, wall


def _are_contiguous(start: Ints, wall: Ints) -> bool:
    """Return whether each step ends where the next one begins; the arrays begin with an axis of steps."""
    apart = np.abs(np.diff(start, axis=0) - wall[:-1])
    return len(wall) > 1 and bool(np.median(apart) <= _MAX_STEP_GAP * np.median(wall))


def ended_steps(start: Ints, wall: Ints) -> int:
    """Return the number of whole steps of a rank: all but the last, if each ends where the next one begins.

    See the notes of `step_kinds`.
    """
    return len(wall) - _are_contiguous(start, wall)


def account_of_all_steps(kinds: pd.DataFrame) -> dict[str, float]:
    """Return ``elapsed_ns`` and its parts over all steps from the rows of ``step_kinds``; 0 if unknown."""
    all_steps = kinds.iloc[0]
    return {
        name: 0.0 if pd.isna(all_steps[name]) else float(all_steps[name]) for name in ("elapsed_ns", *PARTS)
    }


def _elapsed_times(rows: pd.DataFrame, aligned: Set[int], follow: bool) -> Floats:
    """Return the elapsed time of each step; without a common clock, that of the slowest rank, in ns."""
    ranks = np.unique(rows["rank"])
    start = rows["start_ns"].to_numpy(np.int64).reshape(-1, len(ranks))
    end = start + rows["wall_ns"].to_numpy(np.int64).reshape(-1, len(ranks))
    common = np.isin(ranks, [*aligned])
    alone = [[place] for place in np.flatnonzero(~common).tolist()]
    groups = [*([np.flatnonzero(common).tolist()] if common.any() else []), *alone]
    intervals = [_intervals(start[:, group], end[:, group], follow) for group in groups]
    return max(intervals, key=lambda times: float(times.sum()))


def _intervals(start: Ints, end: Ints, follow: bool) -> Floats:
    """Return the elapsed time of each step of ranks with a common clock; arrays have shape (steps, ranks).

    If steps follow each other, a step begins when the last rank begins it, as in a replay. Otherwise it
    begins at the mean of the ranks' fronts, and the sum is the time from the first front to the last end.
    """
    first, last = int(start[0].min()), int(end[-1].max())
    begins = (start - first).max(axis=1).astype(float) if follow else (start - first).mean(axis=1)
    if not follow:
        begins[0] = 0.0
    return np.diff(begins, append=float(last - first))


def _parts(rows: pd.DataFrame, elapsed: float) -> dict[str, int | None]:
    """Return the mean of each part over some steps and ranks, and the rest of their elapsed time."""
    unknown = bool(rows["wait_for_peer_ns"].isna().all())
    means = {name: round(float(rows[name].fillna(0).astype(float).mean())) for name in PARTS}
    # Within one kind, the slowest rank may take less than the others.
    elapsed = max(elapsed, float(rows["wall_ns"].mean()))
    whole, uneven = round(elapsed), round(elapsed - float(rows["wall_ns"].mean()))
    # The largest part takes what rounding leaves.
    means[max(means, key=lambda name: means[name])] += whole - sum(means.values()) - uneven
    parts: dict[str, int | None] = {"elapsed_ns": whole, **means, "uneven_ns": uneven}
    return parts | ({"wait_for_peer_ns": None} if unknown else {})
