"""Intervals of 90 % of savings and predictions: how far off they may be, and why.

The interval of a saving has five parts:

1. The steps differ (`half_width`).
2. The replay is a model: its error for the unchanged run, and the spread of the cause
   (`hpcprof.analysis.explain.cause.CauseDeclaration.spread`).
3. The slowdown of kernels by communication is an estimate: the difference from the saving without it.
4. The profiler slows the host: the difference from the saving with quicker calls (`CALL_COST_NS`), which
   counts on its side of the interval.
5. Hosts of one kind differ (`HOST_SPREAD`), for programs with a GPU: the part of the saving that follows the
   host, by a replay with a slower host, counts by that spread.
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
"""Error of a saving as a share of it, because of what the replay leaves out."""

HOST_SPREAD = 0.4
"""Half width of the interval of the logarithm of the ratio of two times of the host, in other processes or on
other machines of a kind.

The explained steps of 22 programs of `docs/explain.md` whose host limits them, over their steps alone: their
logarithms deviate by 0.22 (root mean square), and nine of ten are within 0.4."""

_SLOWER_HOST = 1.1
"""Factor of the host times in the replay that shows the host's part of a saving."""

CALL_COST_NS = {"nsys": 3_000, "torch": 12_000}
"""Maximum time that a profiler adds to each call and the Python before it, in ns.

Replays of host-bound loops without this time take as long as the loops without a profiler."""

MPI_CALL_COST_NS = 1_000
"""Maximum time that a profiler adds to each call of MPI, in ns.

Calls that follow each other at once are 0.45 µs apart in profiles of nsys 2023.4."""

_MAX_STEPS = 500
"""Maximum number of steps that a user is asked to record: wider intervals have another reason than few
steps."""


@dataclass(frozen=True)
class Interval:
    """The interval of a saving, in ns of a step."""

    low: float
    high: float
    by_profiler: float = 0.0
    """The part of the saving that the profiler causes."""
    beside_steps: tuple[float, float] = (0.0, 0.0)
    """The widths below and above the saving if all steps were alike."""
    steps_needed: int | None = None
    """The number of steps that would narrow the interval so that it can be shown; None if more steps do not
    help, or are not needed.
    """


class Uncertainty(msgspec.Struct, frozen=True):
    """The uncertainty of the savings of a replay."""

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

    def saving_interval(
        self,
        times: Times,
        change: Callable[[Times], Times],
        saving: float,
        by_step: Floats,
        spread: float = MODEL_SHARE,
    ) -> Interval:
        """Return the interval of the saving of a change of ``times``, in ns.

        ``by_step``, of shape (steps,), are the savings of the steps, in ns, and ``spread`` is the half width
        of the interval of the logarithm of the saving over the cost that a cause has alone.
        """
        alone = replace(times, contended=False)
        without = self._saving(alone, change)
        contention = without - saving if change(times).contended else 0.0
        profiler = self._saving(self._at_other_call_cost(alone), change) - without
        steps = half_width(by_step)
        host = HOST_SPREAD * self._host_share(alone, change, without) if self.other_host else 0.0
        gains = saving > 0 and by_step.min() >= -MODEL_SHARE * saving
        fewer = width_below(saving, steps) if gains else steps
        spread = float(np.hypot(spread, host))
        off = [float(np.hypot(contention, max(0.0, sign * profiler))) for sign in (-1, 1)]
        # With the differences of the steps, and as if all steps were alike.
        (low, high), (alike_low, alike_high) = (
            _spread_ends(
                saving, self.error + np.hypot(below, off[0]), self.error + np.hypot(above, off[1]), spread
            )
            for below, above in ((fewer, steps), (0.0, 0.0))
        )
        needed = None
        if low < self.least:
            distance = float(np.log(saving / self.least)) if 0 < self.least < saving else 0.0
            most = saving * -float(np.expm1(-np.sqrt(max(0.0, distance**2 - spread**2))))
            allowed = float(np.sqrt(max(0.0, max(0.0, most - self.error) ** 2 - off[0] ** 2)))
            if gains and allowed < saving:
                allowed = saving * -float(np.log1p(-allowed / saving))
            enough = len(by_step) * (steps / allowed) ** 2 if allowed else _MAX_STEPS + 1
            needed = max(len(by_step) + 1, int(np.ceil(enough))) if enough <= _MAX_STEPS else None
        return Interval(low, high, max(0.0, -profiler), (saving - alike_low, alike_high - saving), needed)

    def _host_share(self, times: Times, change: Callable[[Times], Times], saving: float) -> float:
        """Return the share of a saving that follows the host, which also moves pageable memory."""
        graph = self.replay.graph
        host_edges = graph.edges.of(EdgeKind.HOST, EdgeKind.CALL)
        by_host = graph.work.host_memory == HostMemory.PAGEABLE

        def slower(times: Times) -> Times:
            return times.scale_lag(host_edges, _SLOWER_HOST).scale_alone(by_host, _SLOWER_HOST)

        longer = self.time(slower(times)) - self.time(slower(change(times)))
        return min(1.0, abs(longer / saving - 1) / (_SLOWER_HOST - 1)) if saving > 0 else 0.0

    def _at_other_call_cost(self, times: Times) -> Times:
        """Return times with the other bound of the profiler's cost of calls; removed causes stay removed."""
        if self.slower is None or self.faster is None:
            return (
                Removals(self.replay).quicker_calls(times, self.call_cost_ns) if self.call_cost_ns else times
            )
        lag = self.replay.measured.lag
        unchanged = (times.lag == lag) | (times.lag == lag - self.faster)
        return replace(times, lag=np.where(unchanged, lag + self.slower, times.lag))

    def on_quick_host(self, times: Times) -> Times:
        """Return times on the quickest host of this kind of machine."""
        if self.faster is None:
            return times
        return replace(times, lag=times.lag - self.faster * (times.lag == self.replay.measured.lag))

    def _saving(self, times: Times, change: Callable[[Times], Times]) -> float:
        return self.time(times) - self.time(change(times))


def _spread_ends(saving: float, below: float, above: float, spread: float) -> tuple[float, float]:
    """Return the ends of an interval with the widths ``below`` and ``above``, widened by a factor's spread.

    ``spread`` is the half width of the interval of the factor's logarithm. It is added as an independent
    error, so that the lower end stays above 0 where it was.
    """
    low, high = saving - below, saving + above
    if low > 0:
        low = saving * float(np.exp(-np.hypot(np.log(saving / low), spread)))
    return low, saving * float(np.exp(np.hypot(np.log(high / saving), spread))) if saving > 0 else high


def width_below(saving: float, half: float) -> float:
    """Return the distance of an interval's lower end from a positive saving to which each step adds.

    The interval is symmetric in the logarithm, since its half width ``half`` may exceed the saving where few
    steps have most of it.
    """
    return saving * -float(np.expm1(-half / saving))


def half_width(values: Floats) -> float:
    """Return the half width of the interval of the mean or the median of values, one for each step.

    1. The standard deviation is estimated from the mean absolute deviation, with Student's factor for few
       steps.
    2. A quarter is added, as for a median instead of a mean: few steps may not show outliers.
    3. Neighbouring steps may be correlated without showing it, so some correlation is added to the measured
       one.
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
