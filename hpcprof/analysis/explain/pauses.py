"""Pauses between steps: ranges of the program outside every step, such as a validation between epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcprof.analysis.explain.explanation import NotJudged
from hpcprof.analysis.explain.host_activity import marking_thread
from hpcprof.analysis.explain.step_series import MOST_SPIKES, spikes
from hpcprof.analysis.steps.run_step import StepSeries
from hpcprof.analysis.steps.step_ranges import shown_name, steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.units import format_ns
from hpcprof.profiles.timeline import NO_NAME, Ints, Timeline

_NAMED = 5


@dataclass(frozen=True)
class Pause:
    """The work of a program after a step and outside every step.

    Attributes
    ----------
    step : int
        The step before it.
    place : str
        The range that takes longest.
    length : int
        From the end of the step, on the host and on the GPU, to the front of the next one, in ns.
    """

    step: int
    place: str
    length: int


def pauses_of(timeline: Timeline) -> dict[int, Pause]:
    """Return the pauses of a timeline by the step before them.

    A pause is a range of the thread that marks the steps, between the end of one step and the start of the
    next. A range that lies there after more than a third of the steps, such as the loading of each batch, is
    a part of the steps.
    """
    steps = steps_of(timeline)
    between = _between(timeline)
    usual = Counter(name for name, _ in {(name, step) for _, name, step in between})
    longest: dict[int, tuple[int, str]] = {}
    for own, name, step in between:
        if usual[name] <= MOST_SPIKES * len(steps):
            longest[step] = max(longest.get(step, (0, "")), (own, name))
    times = step_intervals(timeline)
    ended = np.maximum(times.gpu_end, steps.ranges.end)
    length = np.where(times.on_gpu, np.maximum(times.end - ended, 0), 0)
    number = steps.number.tolist()
    return {
        number[place]: Pause(number[place], name, int(length[place])) for place, (_, name) in longest.items()
    }


def _between(timeline: Timeline) -> list[tuple[int, str, int]]:
    """Return the length and the name of each range between two steps, and the step before it."""
    steps, ranges = steps_of(timeline), timeline.ranges
    if len(steps) < 2:
        return []
    process, thread = marking_thread(timeline)
    chosen = (ranges.process == process) & (ranges.thread == thread)
    rows = np.flatnonzero(chosen & (ranges.domain == NO_NAME) & (ranges.one_thread == 1))
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


def outside_steps(pauses: Sequence[Pause]) -> Iterator[NotJudged]:
    """Yield a sentence for each range that pauses the steps."""
    for place in dict.fromkeys(pause.place for pause in pauses):
        same = [pause for pause in pauses if pause.place == place]
        named = ", ".join(str(pause.step) for pause in same[:_NAMED]) + (", …" if len(same) > _NAMED else "")
        longest = format_ns(max(pause.length for pause in same))
        yield NotJudged(
            f"the range {place}",
            f"it takes up to {longest} after step{'s' if len(same) > 1 else ''} {named}, outside the steps: "
            "it is neither a spike nor a cost of a step",
        )
