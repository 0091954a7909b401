"""Intervals of 90 % of savings and predictions: how far off they may be, and why.

Five things go into the interval of a saving. The steps differ (`half_width`). The replay is a model: its
error for the unchanged run, and `MODEL_SHARE` or `ESTIMATED_SHARE` of the saving. By how much communication
slows kernels is an estimate: the saving is computed once more without that slowdown. The profiler slows the
host: the saving is computed once more with quicker calls (`CALL_COST_NS`), and the difference counts on its
side. The host of a program with a GPU is another one each time (`HOST_SPREAD`): the saving is computed once
more with a slower host, and the part of it that follows the host counts by that spread.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.explain.removals import Removals
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.statistics.confidence_intervals import (
    correlated_freedom,
    own_correlation,
    variance_of_mean,
)
from hpcprof.analysis.statistics.student import student_quantile
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.timeline import Floats, Ints

CONFIDENCE = 0.9

MODEL_SHARE = 0.1
"""By this share of itself a saving may be off because of what the replay leaves out.

Twelve savings of `docs/explain.md` on which no profiler weighs are off by 7 % (root mean square), so 90 % by
11 % or less."""

ESTIMATED_SHARE = 0.25
"""The same where something else takes the place of a cause, so that its removal is not known exactly.

Eleven such savings on GPUs of `docs/explain.md` are off by 16 % (root mean square)."""

HOST_SPREAD = 0.4
"""Half width of the interval of the logarithm of the ratio of two times of the host, in other processes or on
other machines of a kind.

The explained steps of 22 programs of `docs/explain.md` whose host limits them, over their steps alone: their
logarithms deviate by 0.22 (root mean square), and nine of ten are within 0.4."""

_SLOWER_HOST = 1.1
"""The host times of the replay that tells which part of a saving is the host's."""

CALL_COST_NS = {"nsys": 3_000, "torch": 12_000}
"""The most that a profiler adds to each call and the Python before it.

Without as much, the replays of a loop whose host decides take as long as the loop without a profiler."""

MPI_CALL_COST_NS = 1_000
"""The most that a profiler adds to each call of MPI.

Calls that follow each other at once are 0.45 µs apart in profiles of nsys 2023.4."""

_MOST_STEPS = 500
"""An interval that needs more steps than these is wide for another reason than few steps."""


@dataclass(frozen=True)
class Interval:
    """The interval of a saving, in ns of a step."""

    low: float
    high: float
    by_profiler: float = 0.0
    """By how much less a step saves without the profiler."""
    beside_steps: tuple[float, float] = (0.0, 0.0)
    """How far below and above the saving the interval would reach if all steps were alike."""
    steps_needed: int | None = None
    """The number of steps that would narrow the interval so that it can be shown; None if more steps do not
    help, or are not needed.
    """


class Uncertainty(msgspec.Struct, frozen=True):
    """Gives savings of a replay their intervals."""

    replay: Replay
    time: Callable[[Times], float]
    """Returns the time of a step with some times, in ns."""
    error: float
    """The distance of the median of the unchanged replay from the measured one, in ns."""
    least: float = 0.0
    """The lower end of an interval that is shown, in ns."""
    call_cost_ns: int = 0
    """See `CALL_COST_NS`; 0 for the steps as they are when profiled."""
    slower: Ints | None = None
    faster: Ints | None = None
    """See `hpcprof.analysis.explain.profiler_share.ProfilerShare`."""
    other_host: bool = False
    """True for savings on any machine of the kind, False for those of the recorded program."""

    def of_saving(
        self,
        times: Times,
        change: Callable[[Times], Times],
        saving: float,
        by_step: Floats,
        model_share: float = MODEL_SHARE,
    ) -> Interval:
        """Return the interval of what a change of ``times`` saves, in ns.

        ``by_step``, of shape (steps,), is what each step saves, in ns. The model may be off by
        ``model_share`` of the saving.
        """
        alone = replace(times, contended=False)
        without = self._saving(alone, change)
        contention = without - saving if change(times).contended else 0.0
        profiler = self._saving(self._at_other_cost(alone), change) - without
        steps = half_width(by_step)
        model = float(np.hypot(contention, model_share * saving))
        host = HOST_SPREAD * self._host_share(alone, change, without) if self.other_host else 0.0
        gains = saving > 0 and by_step.min() >= -MODEL_SHARE * saving
        fewer = width_below(saving, steps) if gains else steps
        parts = (-saving * np.expm1(-host), -profiler), (saving * np.expm1(host), profiler)
        off = [float(np.linalg.norm([model, other, max(0.0, cost)])) for other, cost in parts]
        below, above = float(np.hypot(fewer, off[0])), float(np.hypot(steps, off[1]))
        low, high = saving - self.error - below, saving + self.error + above
        needed = None
        if low < self.least:
            room = max(0.0, saving - self.error - self.least) ** 2 - (below**2 - fewer**2)
            allowed = float(np.sqrt(max(0.0, room)))
            if gains and allowed < saving:
                allowed = saving * -float(np.log1p(-allowed / saving))
            enough = len(by_step) * (steps / allowed) ** 2 if allowed else _MOST_STEPS + 1
            needed = max(len(by_step) + 1, int(np.ceil(enough))) if enough <= _MOST_STEPS else None
        return Interval(low, high, max(0.0, -profiler), (off[0] + self.error, off[1] + self.error), needed)

    def _host_share(self, times: Times, change: Callable[[Times], Times], saving: float) -> float:
        """Return the share of a saving that follows the host, which also moves pageable memory."""
        graph = self.replay.graph
        host_edges = np.isin(graph.edges.kind, (EdgeKind.HOST, EdgeKind.CALL))
        by_host = graph.work.host_memory == HostMemory.PAGEABLE

        def slower(times: Times) -> Times:
            longer = np.rint(times.lag[host_edges] * _SLOWER_HOST).astype(np.int64)
            alone = np.where(by_host, times.alone * _SLOWER_HOST, times.alone)
            return times.set_lag(host_edges, longer).with_alone(alone)

        longer = self.time(slower(times)) - self.time(slower(change(times)))
        return min(1.0, abs(longer / saving - 1) / (_SLOWER_HOST - 1)) if saving > 0 else 0.0

    def _at_other_cost(self, times: Times) -> Times:
        """Return times at the other end of what calls may cost; what was taken out before stays out."""
        if self.slower is None or self.faster is None:
            return (
                Removals(self.replay).quicker_calls(times, self.call_cost_ns) if self.call_cost_ns else times
            )
        lag = self.replay.measured.lag
        unchanged = (times.lag == lag) | (times.lag == lag - self.faster)
        return replace(times, lag=np.where(unchanged, lag + self.slower, times.lag))

    def on_quick_host(self, times: Times) -> Times:
        """Return times on a host of another machine of the kind, on which calls cost less than here."""
        if self.faster is None:
            return times
        return replace(times, lag=times.lag - self.faster * (times.lag == self.replay.measured.lag))

    def _saving(self, times: Times, change: Callable[[Times], Times]) -> float:
        return self.time(times) - self.time(change(times))


def width_below(saving: float, half: float) -> float:
    """Return how far the lower end of an interval is from a positive saving to which each step adds.

    It is the lower end for the logarithm. ``half``, that of the saving itself, may exceed the saving where
    few steps have most of it.
    """
    return saving * -float(np.expm1(-half / saving))


def half_width(values: Floats) -> float:
    """Return half of the interval of the mean or the median of values, one for each step.

    The deviation follows from the mean absolute one, with Student's factor for few steps. The width is that
    for a median, a quarter more than for a mean: few steps may not show how far single ones are off.
    Neighbouring steps may be alike and hardly show it, so some correlation is assumed and added to theirs.
    """
    count = len(values)
    if count < 2:
        return 0.0
    distance = values - np.median(values)
    deviation = 1.2533 * float(np.mean(np.abs(distance))) * np.sqrt(count / (count - 1))
    correlation = own_correlation(values)
    freedom = correlated_freedom(count - 1, correlation)
    student = float(student_quantile(freedom, (1 + CONFIDENCE) / 2))
    return float(student * 1.2533 * deviation * np.sqrt(variance_of_mean(count, correlation) / count))
