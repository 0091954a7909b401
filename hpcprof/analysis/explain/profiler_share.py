"""The profiler's share of a step, and the run without it.

A profiler slows the calls of the host. A step alone, without the profiler, is known if somebody measured it.
Then

1. the cost of a launch is the one with which a replay takes as long as a step alone (bisection); other calls
   cost less, also those that the graph leaves out, in ratios of the site (``hpcprof study call-costs``) or
   the typical ones (`WEIGHTS`);
2. each call, and where it is too short its thread before it, takes that much less, and the run is replayed.

If it is unknown, a launch costs between the bounds of `TYPICAL_NS`, or less where launches take less time
than there (`typical_launch`). The run is replayed without the upper bound: a step gains the remaining savings
in any case. Findings about the speed of the host itself leave out `_OTHER_HOST` times that bound.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.explain.explanation import GIVEN, MEASURED, TYPICAL, CallCost, NotJudged, StepAlone
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.removals import Removals
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.explain.replayable import Replayable
from hpcprof.analysis.explain.run_graph import RunGraph
from hpcprof.analysis.statistics.grouped import summarize
from hpcprof.common.units import counted, format_ns
from hpcprof.profiles.timeline import Floats, Ints, Mask
from hpcprof.profiles.waiting_calls import launches_graph

TYPICAL_NS = {"nsys": (5_000, 16_000)}
"""Minimum and maximum cost of a launch in a program, by the kind of the profile.

Trainings of 500 to 1,300 calls a step, on eight H200, with nsys 2025.3: launches took `_RECORDED_CALL_NS` or
more there. In seven programs of `docs/explain.md` that launches limit, they took 5.0 to 6.6 µs, and the cost
that leaves the step alone is 3.2 to 10.6 µs."""

_QUICK_LAUNCH_NS, _RECORDED_CALL_NS = 5_000, 7_000
"""Time of a recorded launch where nsys costs nothing that steps show, and where it costs `TYPICAL_NS`.

Launches of four programs whose steps were as long as alone, or whose savings were, took 4.0 to 5.0 µs."""

_RUNTIME = re.compile("cuda")
"""The beginning of the names of the runtime's calls; the driver's begin with ``cu`` alone."""

_OF_RUNTIME_NS = 1_500
"""The time that a launch by the runtime takes more than one by the driver, alone and recorded: a loop of XLA
launched once in 3.7 µs alone, with its own work, and in 7.8 µs under nsys, of which the call took 5.0."""

WEIGHTS = {
    CallKind.LAUNCH: 1.0,
    CallKind.COPY: 1.0,
    CallKind.WAIT: 0.3,
    CallKind.ALLOCATE: 0.5,
    CallKind.FREE: 0.5,
    CallKind.RECORD: 0.3,
    CallKind.STREAM_WAIT: 0.3,
    CallKind.OTHER: 0.3,
    CallKind.MPI: 0.06,
}
"""Cost of a call over that of a launch: medians of a loop with and without nsys
(``benchmarks/profiler_cost.py``); a call of MPI costs up to 1 µs where a launch costs up to 16."""

_GRAPH_LAUNCH_WEIGHT = 0.3
"""The same for the launch of a CUDA graph: 3.6 µs there, whatever its size."""

_MAX_LAUNCH_NS = 32_000
"""Maximum cost of a launch that explains a step alone."""

_MAX_LESS_WORK = 0.1
"""Maximum excess of a replay without the largest cost over a step alone with the same work, as a share."""

_SLOWER_HOST = 0.3
"""Maximum share by which the host of another machine of the same kind is slower; 25 % were seen."""

_OTHER_HOST = 1.25
"""Ratio of the costs of a profiler on two machines of one kind: their hosts differ by 25 %."""

_NEGLIGIBLE_SHARE = 0.005
"""Maximum change of a step, as a share, that counts as none."""

_STEP_ALONE = "the step alone"

_OTHER_CALLS = "other calls"
"""The row of the calls that the graph leaves out."""

_ROUNDS = 9
"""Rounds of the bisection: 32 µs are divided down to 0.06 µs."""


@dataclass(frozen=True)
class ProfilerShare:
    """The replay that is explained, and the time of a step without the profiler.

    ``scale`` is the elapsed time of the replayed steps over that of all steps. If the cost of calls is
    unknown, ``slower`` is the increase of the replay's lags for the minimum cost of calls, and ``faster`` the
    decrease for `_OTHER_HOST` times the maximum; both in ns, shape (edges,). ``doubts`` has the reason why a
    noted step alone is not used.
    """

    replay: Replay
    alone: StepAlone | None = None
    costs: tuple[CallCost, ...] = ()
    scale: float = 1.0
    slower: Ints | None = None
    faster: Ints | None = None
    doubts: tuple[NotJudged, ...] = ()


def profiler_share(
    inputs: ExplainInputs, built: Replayable, replay: Replay, weights: Floats | None, elapsed: int | None
) -> ProfilerShare:
    """Take the profiler's share out of a run if its step alone is known."""

    def time(moments: Ints) -> float:
        steps = replay.elapsed(moments)
        return float(np.average(steps, weights=None if weights is None else weights[: len(steps)]))

    removals = Removals(replay)
    weights_of_calls = _weights(replay.graph, inputs.call_weights)
    each, other = weights_of_calls
    with_others = each + other * replay.graph.calls.others

    def quicker(cost_ns: int) -> Times:
        costs = np.rint(with_others * cost_ns).astype(np.int64)
        return removals.quicker_calls(replay.measured, costs)

    @cache
    def time_at(cost_ns: int) -> float:
        return time(replay.moments(quicker(cost_ns)))

    # By whatever the replay is too long: the steps as recorded take the elapsed time.
    scale = max(time(replay.graph.observed), time_at(0)) / elapsed if elapsed else 1.0
    measured, doubts = inputs.alone, _other_steps(inputs, built)
    doubts = doubts or _doubts(measured, time_at(_MAX_LAUNCH_NS) / scale)
    measured = None if doubts else measured
    # A step that its GPU limits does not tell what calls cost, which decides once the GPU has less to do.
    if measured is None or time(replay.unchanged) <= (1 + _NEGLIGIBLE_SHARE) * time_at(_MAX_LAUNCH_NS):
        launch = typical_launch(removals, built.profiler)
        if launch is None or inputs.as_recorded:
            return ProfilerShare(replay, measured, scale=scale, doubts=doubts)
        costs = _costs_by_call(replay.graph, weights_of_calls, (sum(launch) // 2, *launch), TYPICAL)
        costly = round(_OTHER_HOST * launch[1])
        least_taken, most_taken, more_taken = (quicker(cost) for cost in (*launch, costly))
        without = replay.without_profiler(most_taken)
        if measured is None:
            least, most = (round(wall / scale) for wall in (time(without.unchanged), time_at(launch[0])))
            measured = StepAlone((least + most) // 2, least, most, TYPICAL)
        slower, faster = least_taken.lag - most_taken.lag, most_taken.lag - more_taken.lag
        return ProfilerShare(without, measured, costs, scale, slower, faster, doubts)
    ends = (measured.value * scale, measured.high * scale, measured.low * scale)
    cost, low, high = (_launch_cost(removals, each, time_at) for each in ends)
    costs = _costs_by_call(replay.graph, weights_of_calls, (cost, low, high), measured.source)
    return ProfilerShare(replay.without_profiler(quicker(cost)), measured, costs, scale)


def _other_steps(inputs: ExplainInputs, built: Replayable) -> tuple[NotJudged, ...]:
    """Return the reason why the steps alone that were noted are others than the captured ones, if they are.

    A range of the program is the step that was noted only if the capture has as many as were to be recorded.
    """
    alone = inputs.alone
    same = built.step == "step" or built.steps == inputs.captured_steps
    if alone is None or alone.source != MEASURED or same:
        return ()
    reason = (
        f"the program's steps took {format_ns(alone.value)} without the profiler, but {built.step} may be "
        f"another step: the profile has {built.steps:,} of them"
    )
    if inputs.captured_steps:
        reason += f", and {counted(inputs.captured_steps, 'step')} of the program"
    return (NotJudged(_STEP_ALONE, reason),)


def _doubts(alone: StepAlone | None, least_ns: float) -> tuple[NotJudged, ...]:
    """Return the reason why a noted step alone does not belong to the captured steps, if there is one.

    ``least_ns`` is the minimum time of a captured step whatever the profiler costs. A profiler slows calls
    and no kernels: steps alone that are shorter by more than `_MAX_LESS_WORK` did less work.
    """
    if alone is None or alone.source == GIVEN or least_ns <= (1 + _MAX_LESS_WORK) * alone.high:
        return ()
    reason = (
        f"steps without the profiler took {format_ns(alone.value)}, and the captured ones take "
        f"{format_ns(least_ns)} whatever the profiler costs: they do more work"
    )
    return (NotJudged(_STEP_ALONE, reason),)


def unused_step_alone(alone: StepAlone | None) -> Iterator[NotJudged]:
    """Yield the step alone of a run that cannot be replayed, if it is known."""
    if alone is not None:
        yield NotJudged(
            _STEP_ALONE,
            f"steps without the profiler took {format_ns(alone.value)}; without a replay nothing takes the "
            "profiler's share out, so savings are of the recorded step",
        )


def _launch_cost(removals: Removals, alone_ns: float, time_at: Callable[[int], float]) -> int:
    """Return the cost of a launch in ns with which a replay takes as long as a step alone.

    It is negative where the step alone is longer than the recorded one, as on a node whose host is slower, by
    `_SLOWER_HOST` at most. ``time_at`` returns the elapsed time of a step without such a cost.
    """
    # A GPU that limits the step hides any further cost.
    target = max(alone_ns, (1 + _NEGLIGIBLE_SHARE) * time_at(_MAX_LAUNCH_NS))
    # A step alone that is longer than the recorded one is of a slower host: its calls take longer.
    low, high = (0, _MAX_LAUNCH_NS) if target <= time_at(0) else (-_slower_host(removals), 0)
    for _ in range(_ROUNDS):
        middle = (low + high) // 2
        low, high = (middle, high) if time_at(middle) > target else (low, middle)
    return high


def _slower_host(removals: Removals) -> int:
    """Return the time by which a launch takes longer on a host slower by `_SLOWER_HOST`, in ns."""
    calls = removals.graph.calls
    launches = np.flatnonzero(calls.kind == CallKind.LAUNCH)
    each = (calls.gap + removals.call_times)[launches]
    return min(_MAX_LAUNCH_NS, round(_SLOWER_HOST * float(np.median(each)))) if len(launches) else 0


def typical_launch(removals: Removals, profiler: str) -> tuple[int, int] | None:
    """Return the bounds of the typical cost of a launch in ns; None if launches are quick.

    Where launches take less time than on the machines of `TYPICAL_NS`, the bounds are reduced in proportion
    to what a launch takes longer than `_QUICK_LAUNCH_NS`. The profiler slows all ranks, so the rank with the
    quickest launches counts. Launches by the driver, as of XLA, count where the runtime has none, and those
    of graphs where there are no others.
    """
    graph, time = removals.graph, removals.call_times
    is_launch = graph.calls.kind == CallKind.LAUNCH
    is_single = is_launch & ~_launches_graph(graph)
    by_runtime = is_single & graph.is_named(graph.calls.name, _RUNTIME.match)
    less = 0 if by_runtime.any() or not is_single.any() else _OF_RUNTIME_NS
    chosen = next((each for each in (by_runtime, is_single) if each.any()), is_launch)
    launches = np.flatnonzero(chosen)
    if profiler not in TYPICAL_NS or not len(launches):
        return None
    quickest = float(summarize(graph.call_rank[launches], time[launches]).median.min()) + less
    share = min(1.0, (quickest - _QUICK_LAUNCH_NS) / (_RECORDED_CALL_NS - _QUICK_LAUNCH_NS))
    if share <= 0:
        return None
    low, high = (round(share * cost) for cost in TYPICAL_NS[profiler])
    return low, high


def _weights(graph: RunGraph, measured: Mapping[str, float]) -> tuple[Floats, float]:
    """Return the costs over that of a launch of each call, shape (calls,), and of one that is left out."""
    by_kind = np.array([measured.get(kind.name.lower(), WEIGHTS.get(kind, 0.0)) for kind in CallKind])
    each = np.where(_launches_graph(graph), _GRAPH_LAUNCH_WEIGHT, by_kind[graph.calls.kind])
    return each, float(by_kind[CallKind.OTHER])


def _launches_graph(graph: RunGraph) -> Mask:
    """Return a mask of the calls that launch a graph."""
    return graph.is_named(graph.calls.name, launches_graph)


def _costs_by_call(
    graph: RunGraph, weights: tuple[Floats, float], launch: tuple[int, int, int], source: str
) -> tuple[CallCost, ...]:
    """Return what the profiler adds to the calls of each name, the most costly in a step first.

    ``weights`` is as in `_weights`, and ``launch`` the cost of a launch in ns with its interval.
    """
    (weight, weight_of_others), name = weights, graph.calls.name
    named = [(number, name == number) for number in np.unique(name[weight > 0]).tolist()]
    counts = [
        (graph.names[number], int(is_named.sum()), float(weight[is_named].mean()))
        for number, is_named in named
    ]
    counts.append((_OTHER_CALLS, int(graph.calls.others.sum()), weight_of_others))
    rows = []
    for call, count, share in counts if counts[-1][1] else counts[:-1]:
        calls = round(count / graph.steps / len(graph.ranks), 1)
        value, low, high = (max(0, round(share * each)) for each in launch)
        rows.append(CallCost(call, calls, value, low, high, source))
    return tuple(sorted(rows, key=lambda row: -row.calls_per_step * row.cost_ns))
