"""Growth of the memory of ranks on the host, as far as it is beyond chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcprof.analysis.statistics.student import student_quantile
from hpcprof.analysis.telemetry.tables import RunTelemetry, StepMark
from hpcprof.profiles.readers.telemetry import NodeTelemetry, Series
from hpcprof.profiles.timeline import Floats

_MOST_BLOCKS, _FEWEST_BLOCKS, _SAMPLES = 12, 6, 2
_PROBABILITY = 0.9975
"""One minus the chance that the lower end of the interval is above the growth."""

_LEAST_BYTES = 16 << 20
_STEADY = 0.5
"""The growth of the second half of the time, as a share of that of the first half, from which it goes on."""


class Growth(NamedTuple):
    """The growth of a level by second or step, with an interval of 99.5 %; ``grows`` if that is no chance."""

    rate: float
    low: float
    high: float
    grows: bool


def growth(times: Floats, values: Floats) -> Growth | None:
    """Return the growth of a level over time, or over the steps until then; None with too few samples.

    The first third is left out: programs fill caches and import modules. The rest is divided into equal
    times, and the differences of their medians are taken for independent, as they are in a random walk; noise
    around a steady level makes the interval wider.
    """
    if len(times) < 2:
        return None
    late = times >= times[0] + (times[-1] - times[0]) / 3
    times, values = times[late], values[late]
    blocks = min(_MOST_BLOCKS, len(times) // _SAMPLES)
    span = float(times[-1] - times[0]) if len(times) else 0.0
    if blocks < _FEWEST_BLOCKS or span <= 0:
        return None
    at = np.minimum(((times - times[0]) / span * blocks).astype(np.int64), blocks - 1)
    if len(np.unique(at)) < blocks:
        return None
    levels, middles = (
        np.array([of(some[at == block]) for block in range(blocks)])
        for of, some in ((np.median, values), (np.mean, times))
    )
    steps = np.diff(levels) / np.diff(middles)
    error = float(np.std(steps, ddof=1)) / len(steps) ** 0.5
    wide = float(student_quantile(len(steps) - 1, _PROBABILITY)) * error
    mean = float(steps.mean())
    half = len(steps) // 2
    first, second = float(steps[:half].mean()), float(steps[-half:].mean())
    goes_on = second >= _STEADY * first
    grows = mean - wide > 0 and goes_on and levels[-1] - levels[0] >= _LEAST_BYTES
    return Growth(mean, mean - wide, mean + wide, bool(grows))


def host_rows(run: RunTelemetry) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``host_memory``."""
    for node in run.nodes:
        found = [
            (rank, series, run.steps.get(rank, ()))
            for rank in sorted(node.ranks)
            if (series := node.series.get((f"rank{rank}", "resident_bytes"))) is not None
        ]
        grown = [_growth(series, marks) for _, series, marks in found]
        growing = [one for one in grown if one.grows]
        by_s, by_step = (sum(by.rate for each in growing if (by := each[at]) is not None) for at in (0, 1))
        free = _free(node)
        for (rank, series, marks), one in zip(found, grown, strict=True):
            yield _row(node, rank, series, marks, one, free, (by_s, by_step))


class _Grown(NamedTuple):
    """The growth of a rank by second and by step: steps need not take equally long."""

    by_s: Growth | None
    by_step: Growth | None

    @property
    def grows(self) -> bool:
        one = self.by_step or self.by_s
        return one is not None and one.grows


def _growth(series: Series, marks: Sequence[StepMark]) -> _Grown:
    times, values = series.times, series.values
    if len(marks) < 2:
        return _Grown(growth(times, values), None)
    inside = (times >= marks[0].time) & (times <= marks[-1].time)
    times, values = times[inside], values[inside]
    steps = np.interp(times, [mark.time for mark in marks], [float(mark.step) for mark in marks])
    return _Grown(growth(times, values), growth(steps, values))


def _free(node: NodeTelemetry) -> float | None:
    """Return the bytes that the job left free on a node when it used most."""
    limit = node.limits.get("memory_bytes")
    used = node.series.get(("node", "cgroup_memory_bytes")) or node.series.get(("node", "memory_used_bytes"))
    return None if limit is None or used is None else max(0.0, float(limit - used.values.max()))


def _last(series: Series) -> float:
    """Return the last value that is not zero, which it is when the processes have ended."""
    known = series.values[series.values > 0]
    return float(known[-1]) if len(known) else 0.0


def _row(
    node: NodeTelemetry,
    rank: int,
    series: Series,
    marks: Sequence[StepMark],
    grown: _Grown,
    free: float | None,
    rates: tuple[float, float],
) -> dict[str, Any]:
    """Return the row of a rank; ``rates`` are those of all ranks of the node, by second and by step."""
    by_step = grown.by_step
    full_in, full_after = (
        free / rate if grown.grows and free is not None and rate > 0 else None for rate in rates
    )
    shared = node.series.get((f"rank{rank}", "proportional_bytes"))
    return {
        "rank": rank,
        "node": node.node,
        "samples": len(series.times),
        "first_step": marks[0].step if marks else None,
        "last_step": marks[-1].step if marks else None,
        "resident_bytes": int(_last(series)),
        "proportional_bytes": None if shared is None else int(_last(shared)),
        "growth_bytes_per_step": by_step and round(by_step.rate, 1),
        "growth_low_bytes_per_step": by_step and round(by_step.low, 1),
        "growth_high_bytes_per_step": by_step and round(by_step.high, 1),
        "growth_bytes_per_s": grown.by_s and round(grown.by_s.rate, 1),
        "node_free_bytes": None if free is None else int(free),
        "full_in_s": None if full_in is None else round(full_in),
        "full_at_step": None if full_after is None else int(marks[-1].step + full_after),
        "grows": int(grown.grows),
    }
