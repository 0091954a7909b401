"""Ranks that wait least for messages, since the others wait for them, and what late ranks cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.collectives.clock_alignment import AlignedClocks, later_than_others
from hpcprof.analysis.collectives.pair_matching import MatchedPairs, sender_later
from hpcprof.analysis.statistics.confidence_intervals import (
    common_correlation,
    correlation_with_next,
    expected_correlation,
    series_interval,
)
from hpcprof.analysis.statistics.level_changes import MIN_VALUES, lower_bound
from hpcprof.profiles.timeline import Floats

if TYPE_CHECKING:
    import pandas as pd

MIN_STEPS = 4
"""Minimum number of steps for an interval."""

_ASSUMED_STEPS = 20
"""The weight of an assumed correlation of neighbouring steps, as a number of steps."""


class _Assumptions(NamedTuple):
    """The assumptions behind an interval.

    `benchmarks/lateness.py` has the false alarms and the power that follow.
    """

    confidence: float
    """The probability with which the intervals of all ranks hold together."""
    correlation: float
    """The assumed correlation of neighbouring steps, of weight `_ASSUMED_STEPS`."""
    errors: float
    own_errors: float
    """Standard errors added to the measured correlation of steps: of all ranks, of a single one."""


_FEW_STEPS, _MANY_STEPS = _Assumptions(0.99, 0.5, 1.0, 0.3), _Assumptions(0.993, 0.6, 1.5, 0.3)
"""Assumptions for fewer steps than `MIN_VALUES`, which hardly measure a correlation, and for others."""

_TWO_LEVELS = _MANY_STEPS._replace(correlation=0.75, own_errors=0.5)
"""Assumptions for a lateness that changes: two levels hide more of the correlation."""

_BATCH_OF_SERIES = 512
"""Number of series that are judged at a time, which limits the memory."""

SeriesT = TypeVar("SeriesT", bound=Hashable)


class StepCosts(msgspec.Struct, frozen=True):
    """The cost of one rank's lateness in each of its n steps, in ns."""

    cost: Floats
    """The cost in the collectives to which the rank comes late beyond the clocks' uncertainty; shape (n,)."""
    most: Floats
    """The cost in all collectives to which it came late in this step, by chance or not; shape (n,)."""
    late: Floats
    """The cost in all collectives, less the time by which the rank was early to others; shape (n,)."""
    clock: Floats
    """The time that the clocks may add or hide; shape (n,)."""


def cost_intervals(costs: Mapping[SeriesT, StepCosts]) -> dict[SeriesT, tuple[float, float]]:
    """Return the interval of the cost per step of each series with enough steps, in ns.

    Each has its part of the error probability (Bonferroni), so that all intervals hold together.
    """
    judged = {key: cost for key, cost in costs.items() if len(cost.cost) >= MIN_STEPS}
    correlations: dict[SeriesT, tuple[float, float]] = {}
    for steps in sorted({len(series.cost) for series in judged.values()}):
        same_length = [key for key, series in judged.items() if len(series.cost) == steps]
        batches = [
            same_length[at : at + _BATCH_OF_SERIES] for at in range(0, len(same_length), _BATCH_OF_SERIES)
        ]
        correlation_of_batches = [
            common_correlation(np.stack([judged[key].late for key in keys])) for keys in batches
        ]
        mean = np.average(correlation_of_batches, axis=0, weights=[len(keys) for keys in batches])
        usual = _expected_correlation(mean, len(same_length), steps)
        for keys in batches:
            correlations |= _intervals({key: judged[key] for key in keys}, len(judged), usual)
    return correlations


def _intervals(
    same_length: Mapping[SeriesT, StepCosts], judged: int, usual: Floats
) -> dict[SeriesT, tuple[float, float]]:
    """Return the intervals of series with the same number of steps; ``usual`` as in `rank_intervals`."""
    names = ("cost", "most", "late", "clock")
    cost, most, late, clocks = (
        np.stack([getattr(item, name) for item in same_length.values()]) for name in names
    )
    bounds = [rank_intervals(series, late, judged, usual) for series in (cost, most)]
    middle = np.median(cost, axis=-1)
    clock = np.median(clocks, axis=-1)
    low = np.maximum(0.0, np.minimum(bounds[0][0], middle) - clock)
    high = np.maximum(np.maximum(bounds[0][1], bounds[1][1]), middle) + clock
    return dict(zip(same_length, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def rank_intervals(
    series: Floats, late: Floats, judged: int, usual: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the ends of the interval of each rank's series.

    Neighbouring steps count as correlated as the lateness of all ranks shows, and more where the rank's own
    steps show more. A series of costs alone would show less correlation, because it is 0 where a rank is not
    late. A rank whose lateness changes once is judged by its weaker level too
    (`hpcprof.analysis.statistics.level_changes`).

    ``series`` is judged, and ``late`` is the lateness that it is a part of, both of shape (..., ranks,
    steps); ``judged`` intervals hold together. ``usual`` is the expected correlation from the lateness of all
    ranks, if ``series`` has only some of the ranks. The ends have shape (..., ranks).
    """
    ranks, steps = series.shape[-2:]
    if usual is None:
        usual = _expected_correlation(common_correlation(late), ranks, steps)
    assumed = _assumptions(steps)
    maximum = np.maximum(correlation_with_next(late), correlation_with_next(series))
    maximum = expected_correlation(maximum, 1, steps, _ASSUMED_STEPS, usual, assumed.own_errors)
    confidence = 1 - (1 - assumed.confidence) / judged
    low, high = series_interval(series, confidence, np.maximum(usual, maximum))
    if steps >= MIN_VALUES:
        _, correlation, *errors = _TWO_LEVELS
        low = np.maximum(low, lower_bound(series, late, confidence, _ASSUMED_STEPS, correlation, errors))
    return low, high


def _assumptions(steps: int) -> _Assumptions:
    return _FEW_STEPS if steps < MIN_VALUES else _MANY_STEPS


def _expected_correlation(values: Floats, ranks: int, steps: int) -> Floats:
    """Return the correlation to expect of each of these ranks.

    The lateness of a rank is relative to the other ranks, so two ranks have one independent series.
    """
    assumed = _assumptions(steps)
    return expected_correlation(values, ranks / 2, steps, _ASSUMED_STEPS, assumed.correlation, assumed.errors)


def message_waits(
    pairs: Sequence[MatchedPairs], clocks: Mapping[tuple[int, int], AlignedClocks]
) -> pd.DataFrame:
    """Return a row for each kernel that carried out messages, of pairs with aligned clocks.

    ``wait`` is the time until the last partner of the kernel has begun too, see `partner_waits`. ``last`` is
    whether the rank began after its partners, and ``clock`` the uncertainty of the clocks. The columns are
    rank, start, wait, clock and last.
    """
    import pandas as pd

    ends = [_ends(pair, clocks[pair.ranks]) for pair in pairs if pair.ranks in clocks]
    if not ends:
        none: pd.DataFrame = pd.DataFrame(columns=["rank", "start", "wait", "clock", "last"])
        return none
    columns = {name: np.concatenate([end[name] for end in ends], axis=None) for name in ends[0]}
    kernels = pd.DataFrame(columns, copy=False).groupby(["rank", "start"])
    frame: pd.DataFrame = kernels[["wait", "clock"]].max().assign(last=kernels["last"].min()).reset_index()
    return frame


def partner_waits(pair: MatchedPairs, clock: AlignedClocks) -> Floats:
    """Return the wait of each end of the messages for its partner's begin, in ns, shape (m, 2).

    It is at most the time by which its kernel is longer than its partner's: a send to a buffer does not wait
    for a receive that begins later.
    """
    later = sender_later(pair, clock)
    duration = pair.end - pair.start
    longer = duration - duration.min(axis=1, keepdims=True)
    return np.clip(np.column_stack([-later, later]), 0, longer)


def _ends(pair: MatchedPairs, clock: AlignedClocks) -> dict[str, NDArray[Any]]:
    """Return the columns of both ends of the messages of a pair, each of shape (m, 2)."""
    later = sender_later(pair, clock)
    return {
        "rank": np.broadcast_to([pair.sender, pair.receiver], pair.start.shape),
        "start": pair.start,
        "wait": partner_waits(pair, clock),
        "clock": np.full(pair.start.shape, clock.uncertainty[1]),
        "last": np.column_stack([later > 0, later < 0]),
    }


def exposed_by_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the exposed communication of each rank in each step, in ns, from ``rank_collectives``.

    The columns are rank, step and exposed_ns.
    """
    # Calls that share a kernel count once.
    inside = rows[(rows["part"] == 0) & rows["step"].notna()]
    columns = {"rank": np.int64, "step": np.int64, "exposed_ns": np.float64}
    inside = inside[list(columns)].astype(columns)
    frame: pd.DataFrame = inside.groupby(["rank", "step"], as_index=False)["exposed_ns"].sum()
    return frame


def balanced_costs(exposed: pd.DataFrame, lowest: Mapping[int, int]) -> dict[int, StepCosts]:
    """Return the excess work of each rank over the others in each step: its lack of exposed communication.

    Ranks that send each other messages take turns, so that each waits for the others by design. A step takes
    all of them the same time, and a rank works whenever it is not in exposed communication. The median of the
    others' exposed communication minus the rank's own is therefore its excess work, whatever the transfers
    take. The durations are on each rank's own clock. The first step is left out: in it ranks also wait for a
    rank whose capture began later. ``exposed`` comes from `exposed_by_step`, and ``lowest`` has the lowest
    rank of each rank's component (`connected_components`).
    """
    import pandas as pd

    inside = exposed[exposed["rank"].isin(list(lowest))]
    rank, ranks = pd.factorize(inside["rank"], sort=True)
    step, steps = pd.factorize(inside["step"], sort=True)
    times = np.full((len(steps), len(ranks)), np.nan)
    times[step, rank] = inside["exposed_ns"]
    first = np.array([lowest[number] for number in ranks.tolist()], np.int64)
    step_costs: dict[int, StepCosts] = {}
    for group in np.unique(first).tolist():
        together = np.flatnonzero(first == group)
        recorded = ~np.isnan(times[:, together])
        has_record = recorded.any(axis=1)
        often = together[recorded.sum(axis=0) * 2 >= has_record.sum()]
        # A step that lacks a rank was cut by the capture.
        complete = times[has_record][:, often]
        complete = complete[~np.isnan(complete).any(axis=1)][1:]
        if not len(complete) or len(often) < 2:
            continue
        less: Floats = -later_than_others(complete)
        for member, costs in zip(ranks[often].tolist(), less.T, strict=True):
            step_costs[member] = StepCosts(costs, np.maximum(costs, 0), costs, np.zeros_like(costs))
    return step_costs
