"""Outliers and change points in the times of the steps, and the pauses between steps."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcprof.analysis.account.host_activity import marking_thread
from hpcprof.analysis.explain.explanation import NotJudged
from hpcprof.analysis.statistics.confidence_intervals import correlation_factor
from hpcprof.analysis.steps.run_step import StepSeries
from hpcprof.analysis.steps.step_ranges import shown_name, steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.robust import MAD_TO_DEVIATION
from hpcprof.common.units import format_ns
from hpcprof.profiles.timeline import NO_NAME, Floats, Ints, Timeline

_MIN_FOR_SPIKES = 5
"""Minimum number of steps to look for spikes."""
_SPIKE_RATIO, _SPIKE_DEVIATIONS = 1.25, 8
"""Minimum ratio of a spike to the median step, and minimum distance from it in standard deviations."""
MAX_SPIKES = 0.34
"""Maximum share of the steps that are spikes: more are no exceptions."""

_MIN_FOR_DRIFT, _MIN_AT_LEVEL = 10, 3
"""Minimum number of steps to look for a drift, and at each level."""
_MAX_LEVELS = 1_000
"""Maximum number of values in the search for a level, whose time grows with their square."""

_DRIFT_RATIO, _DRIFT_ERRORS = 1.03, 7.0
"""Minimum ratio of the levels of a drift, and minimum change in its standard errors."""
_SHRINKS = 2.0
"""Maximum ratio of the longest to the shortest step on a falling line for the same work."""
_WANDERS, _SPANS, _MIN_OF_SPAN = 4.0, 12, 8
"""Minimum change of a level in deviations of spans' medians, number of spans, minimum steps of a span."""


def spikes(series: StepSeries) -> Ints:
    """Return the rows of the steps that take much longer than the others.

    The first step of a capture does not count: the profiler starts in it, and queues are empty. The last one
    runs to its own end instead of to the next front, and often waits for the GPU: it counts only beside
    others.

    A spike takes a quarter longer than the median and is eight deviations above it; the deviation is that of
    the median distance. If a third of the steps are far off, they are no exceptions.
    """
    wall = series.wall[1:].astype(float)
    if len(wall) < _MIN_FOR_SPIKES:
        return np.empty(0, np.int64)
    usual = float(np.median(wall))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(wall - usual)))
    high = np.flatnonzero((wall > _SPIKE_RATIO * usual) & (wall - usual > _SPIKE_DEVIATIONS * deviation))
    none = len(high) > MAX_SPIKES * len(wall) or high.tolist() == [len(wall) - 1]
    return np.empty(0, np.int64) if none else high + 1


_SETTLING_NS = 200_000_000
"""Maximum time in ns for which a GPU that was idle runs at clocks that its power does not allow for long; an
H200 computed 8 % quicker for 70 ms."""
_SETTLING_RATIO = 1.5
"""Maximum ratio of the times of steps at the clocks that a GPU keeps and at those."""


class Drift(NamedTuple):
    """A level of the steps that changes."""

    excess: float
    """The time by which the mean step is longer than a step at the better end, in ns."""
    error: float
    """The standard error of ``excess``, from how far the steps are from the level."""
    steps: Ints
    """The steps at the worse level; empty if the level drifts."""


def drift(series: StepSeries) -> Drift | None:
    """Return the change of the level of the steps; None if that is chance.

    1. Leave out the first and the last step and spikes; replace neighbours among many steps by their median.
    2. Fit two models: a line (Theil and Sen), and one level up to a change point and another after it. The
       model with the smaller sum of distances is the level.
    3. A line on which steps shrink to less than half is no drift: they do less and less work, as in an
       elimination. Steps that get shorter otherwise count, as the level is not steady.
    4. Steps that are quicker for `_SETTLING_NS` at first, by up to `_SETTLING_RATIO`, are no better level.
    5. The change counts if it is at least 3 %, seven of its standard errors, with the correlation of
       neighbouring steps, and four times the deviation of longer spans of steps from the level. The steps of
       many runs wander: ``benchmarks/drift.py`` measures the false alarms.
    """
    rows = np.setdiff1d(np.arange(1, len(series.wall) - 1), spikes(series))
    rows, wall = _blocks(rows, series.wall[rows].astype(float))
    count = len(rows)
    if count < _MIN_FOR_DRIFT:
        return None
    all_steps = np.arange(len(series.wall))
    fewest = max(_MIN_AT_LEVEL, count // 6)
    # The change point: two medians as levels are closest to the steps.
    possible = range(fewest, count - fewest + 1)
    first = min(possible, key=lambda first: _distance(wall[:first]) + _distance(wall[first:]))
    line = _line(rows, wall)
    below, above = np.median(wall[:first]), np.median(wall[first:])
    change, lines = np.where(all_steps < rows[first], below, above), np.polyval(line, all_steps).astype(float)
    changes = np.abs(wall - change[rows]).sum() <= np.abs(wall - lines[rows]).sum()
    level: Floats = change if changes else lines
    # A line may end far below the shortest step.
    low, high = max(float(level.min()), float(wall.min()) / _DRIFT_RATIO), float(level.max())
    if not changes and line[0] < 0 and high > _SHRINKS * low:
        return None
    if high < _DRIFT_RATIO * low:
        return None
    settles = series.wall[: rows[first]].sum() < _SETTLING_NS and below < above < _SETTLING_RATIO * below
    if changes and settles:
        return None
    # A line through n steps changes from end to end with a variance of 12 / n of a step's.
    variance = 1 / first + 1 / (count - first) if changes else 12 / count
    residuals = wall - level[rows]
    error = (
        1.2533 * float(np.mean(np.abs(residuals))) * correlation_factor(residuals) * float(np.sqrt(variance))
    )
    # Residuals of few steps are too close to the fit.
    if high - low < _DRIFT_ERRORS * (1 + _DRIFT_ERRORS / count) * error:
        return None
    if high - low < _WANDERS * _span_deviation(residuals):
        return None
    worse = series.steps[level > (low + high) / 2] if changes else np.empty(0, np.int64)
    excess = float(np.mean(level)) - low
    return Drift(excess, error * excess / (high - low), worse)


def _span_deviation(residuals: Floats) -> float:
    """Return the standard deviation of the medians of spans of steps from the level, 0 for short series."""
    size = -(-len(residuals) // _SPANS)
    if size < _MIN_OF_SPAN:
        return 0.0
    # Means of steps with a long tail are off a level that is a median.
    middles = np.median(residuals[len(residuals) % size :].reshape(-1, size), axis=1)
    # The level of the steps takes two degrees of freedom.
    return float(np.sqrt((middles**2).sum() / (len(middles) - 2)))


def _blocks(rows: Ints, wall: Floats) -> tuple[Ints, Floats]:
    """Return steps and their times, or blocks of neighbours by the middle one and the median time."""
    size = -(-len(rows) // _MAX_LEVELS) or 1
    whole = slice(len(rows) % size, None)
    middle = rows[whole].reshape(-1, size)[:, size // 2]
    return middle, np.median(wall[whole].reshape(-1, size), axis=1)


def _line(number: Ints, wall: Floats) -> tuple[float, float]:
    """Return the slope and the intercept of the Theil-Sen line, which is robust against single steps."""
    first, second = np.triu_indices(len(wall), 1)
    slope = float(np.median((wall[second] - wall[first]) / (number[second] - number[first])))
    return slope, float(np.median(wall - slope * number))


def _distance(wall: Floats) -> float:
    return float(np.abs(wall - np.median(wall)).sum())


_MAX_NAMED_STEPS = 5


@dataclass(frozen=True)
class Pause:
    """The work of a program after a step and outside every step."""

    step: int
    """The step before it."""
    place: str
    """The range that takes longest."""
    length: int
    """From the end of the step, on the host and on the GPU, to the front of the next one, in ns."""


def pauses_of(timeline: Timeline) -> dict[int, Pause]:
    """Return the pauses of a timeline by the step before them.

    A pause is a range of the thread that marks the steps, between the end of one step and the start of the
    next. A range that lies there after more than a third of the steps, such as the loading of each batch, is
    a part of the steps.
    """
    steps = steps_of(timeline)
    between = _pauses_between(timeline)
    usual = Counter(name for name, _ in {(name, step) for _, name, step in between})
    longest: dict[int, tuple[int, str]] = {}
    for pause, name, step in between:
        if usual[name] <= MAX_SPIKES * len(steps):
            longest[step] = max(longest.get(step, (0, "")), (pause, name))
    times = step_intervals(timeline)
    ended = np.maximum(times.gpu_end, steps.ranges.end)
    length = np.where(times.on_gpu, np.maximum(times.end - ended, 0), 0)
    number = steps.number.tolist()
    return {
        number[place]: Pause(number[place], name, int(length[place])) for place, (_, name) in longest.items()
    }


def _pauses_between(timeline: Timeline) -> list[tuple[int, str, int]]:
    steps, ranges = steps_of(timeline), timeline.ranges
    if len(steps) < 2:
        return []
    process, thread = marking_thread(timeline)
    on_thread = (ranges.process == process) & (ranges.thread == thread)
    rows = np.flatnonzero(on_thread & (ranges.domain == NO_NAME) & (ranges.one_thread != 0))
    step = np.searchsorted(steps.ranges.end, ranges.start[rows], side="right") - 1
    following = np.append(steps.ranges.start[1:], np.iinfo(np.int64).min)
    inside = (step >= 0) & (ranges.end[rows] <= following[step])
    rows, step = rows[inside], step[inside]
    names = [shown_name(timeline, text) or "" for text in timeline.names(ranges.name[rows])]
    length = ranges.end[rows] - ranges.start[rows]
    return list(zip(length.tolist(), names, step.tolist(), strict=True))


def spikes_and_pauses(series: StepSeries, timelines: Mapping[int, Timeline]) -> tuple[Ints, list[Pause]]:
    """Return the rows of the steps that take much longer, and the pauses after steps that only seem to."""
    high = spikes(series)
    slowest = series.ranks[high].tolist()
    pauses = {rank: pauses_of(timelines[rank]) for rank in set(slowest) & set(timelines)}
    after = {
        row: pauses[rank][step]
        for row, rank, step in zip(high.tolist(), slowest, series.steps[high].tolist(), strict=True)
        if step in pauses.get(rank, {})
    }
    wall = series.wall.copy()
    for row, pause in after.items():
        wall[row] -= pause.length
    inside = np.intersect1d(high, spikes(replace(series, wall=wall)))
    return inside, [pause for row, pause in after.items() if row not in inside]


def named_steps(steps: Sequence[int]) -> str:
    """Return steps in words, at most `_MAX_NAMED_STEPS`: ``"step 3"``, ``"steps 3, 4"``."""
    named = ", ".join(map(str, steps[:_MAX_NAMED_STEPS])) + (", …" if len(steps) > _MAX_NAMED_STEPS else "")
    return f"step{'s' if len(steps) > 1 else ''} {named}"


def outside_steps(pauses: Sequence[Pause]) -> Iterator[NotJudged]:
    """Yield a sentence for each range that pauses the steps."""
    for place in dict.fromkeys(pause.place for pause in pauses):
        pauses_of_place = [pause for pause in pauses if pause.place == place]
        longest = format_ns(max(pause.length for pause in pauses_of_place))
        yield NotJudged(
            f"the range {place}",
            f"it takes up to {longest} after {named_steps([pause.step for pause in pauses_of_place])}, "
            "outside the steps: it is neither a spike nor a cost of a step",
        )
