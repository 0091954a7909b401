"""Steps without the profiler: what is explained is the program, not its profile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import GIVEN, MEASURED, TYPICAL, Explanation, StepAlone
from hpcprof.analysis.explain.findings import Search
from hpcprof.analysis.explain.intervals import Uncertainty
from hpcprof.analysis.explain.profiler_share import ProfilerShare, profiler_share
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.explain.replayable import Replayable, replayable
from hpcprof.analysis.explain.scene import Scene
from hpcprof.profiles.timeline import NO_CORRELATION, ApiCalls, Timeline, concatenate
from tests.unit.analysis.explain.programs import (
    CALL,
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Place,
    Wait,
    inputs_of,
    simulate,
)

STEPS = 12
BY_PROFILER = 9 * US


def loop(*more: Instruction, cost: int = 0, kernel: int = 5 * US) -> list[Instruction]:
    """Return 400 launches whose calls take ``cost`` longer, and ``more`` before them in ``data``."""
    launch = Launch(kernel, call_ns=CALL + cost)
    return [Place("data", more), Place("forward", (Host(5 * US), launch) * 400), Wait()]


@cache
def elapsed(*more: Instruction) -> int:
    """Return the elapsed time of a step of the program alone."""
    found = explain_run(inputs_of(simulate([loop(*more)], STEPS)))[0].step.elapsed_ns
    assert found is not None
    return found


def explained(program: list[Instruction], alone: int | None, *, as_recorded: bool = False) -> Explanation:
    inputs = inputs_of(simulate([program], STEPS))
    known = None if alone is None else StepAlone(alone, alone, alone, GIVEN)
    return explain_run(replace(inputs, alone=known, as_recorded=as_recorded))[0]


def test_a_saving_is_that_of_the_program_where_the_step_alone_is_known() -> None:
    pause = Host(4 * MS)
    cost = elapsed(pause) - elapsed()
    recorded = explained(loop(pause, cost=BY_PROFILER), None, as_recorded=True)
    found = explained(loop(pause, cost=BY_PROFILER), elapsed(pause))
    assert found.step.recorded_elapsed_ns == recorded.step.elapsed_ns
    assert found.step.elapsed_ns == pytest.approx(elapsed(pause), rel=0.01)
    (first, *_) = found.shown()
    assert (first.cause, first.where) == (Cause.HOST_WORK, "data")
    assert first.saving_ns == pytest.approx(cost, rel=0.05)
    assert first.share_pct == pytest.approx(100 * cost / elapsed(pause), rel=0.05)


def test_the_profilers_share_is_no_finding_of_a_program_that_its_gpu_limits() -> None:
    recorded = explained(loop(cost=BY_PROFILER, kernel=10 * US), None, as_recorded=True)
    assert (recorded.step.elapsed_ns or 0) > 1.4 * 400 * 10 * US
    alone = 400 * 11 * US
    found = explained(loop(cost=BY_PROFILER, kernel=10 * US), alone)
    # The queue of the GPU, not the host, decides: nothing is left to gain.
    assert sum(one.saving_ns or 0 for one in found.shown()) < 0.1 * alone


def test_the_calls_have_the_cost_that_explains_the_step_alone() -> None:
    (launch, *_) = explained(loop(cost=BY_PROFILER), elapsed()).step.profiler_cost
    assert (launch.call, launch.calls_per_step, launch.source) == ("cudaLaunchKernel", 400, GIVEN)
    assert launch.cost_ns == pytest.approx(BY_PROFILER, rel=0.05)
    assert launch.low_ns == launch.cost_ns == launch.high_ns


def test_an_uncertain_step_alone_gives_the_costs_an_interval() -> None:
    inputs = inputs_of(simulate([loop(cost=BY_PROFILER)], STEPS))
    alone = StepAlone(elapsed(), elapsed() - 400 * US, elapsed() + 400 * US, GIVEN)
    (launch, *_) = explain_run(replace(inputs, alone=alone))[0].step.profiler_cost
    assert launch.low_ns == pytest.approx(BY_PROFILER - US, abs=0.2 * US)
    assert launch.high_ns == pytest.approx(BY_PROFILER + US, abs=0.2 * US)


def test_a_step_alone_that_is_longer_is_that_of_a_slower_host() -> None:
    recorded = explained(loop(), None).step.elapsed_ns or 0
    found = explained(loop(), recorded * 5 // 4).step
    assert found.elapsed_ns == pytest.approx(recorded * 5 // 4, rel=0.01)
    assert found.recorded_elapsed_ns == recorded and not any(one.cost_ns for one in found.profiler_cost)


def test_a_host_is_slower_by_as_much_as_hosts_differ() -> None:
    recorded = explained(loop(), None).step.elapsed_ns or 0
    found = explained(loop(), 2 * recorded).step
    assert found.alone_ns is not None and found.alone_ns.value == 2 * recorded
    assert found.elapsed_ns == pytest.approx(1.3 * recorded, rel=0.02)


def test_steps_before_the_capture_that_did_less_work_are_not_its_step_alone() -> None:
    inputs = inputs_of(simulate([[Launch(9 * MS, name="softmax"), *loop(cost=BY_PROFILER)]], STEPS))
    noted = StepAlone(5 * MS, 5 * MS, 5 * MS, MEASURED)
    found = explain_run(replace(inputs, alone=noted))[0]
    assert found.step.alone_ns is None or found.step.alone_ns.source == TYPICAL
    (why,) = (one.reason for one in found.not_judged if one.what == "the step alone")
    assert why.startswith("steps without the profiler took 5.000 ms, and the captured ones take ")
    # A user knows which steps were measured.
    given = explain_run(replace(inputs, alone=replace(noted, source=GIVEN)))[0]
    assert given.step.alone_ns == replace(noted, source=GIVEN)


def test_a_range_is_the_step_alone_if_it_occurs_as_often_as_the_program_recorded_steps() -> None:
    inputs = inputs_of(simulate([loop(cost=BY_PROFILER)], STEPS))
    built = replayable(inputs)
    assert isinstance(built, Replayable)
    named, noted = replace(built, step="iteration"), StepAlone(5 * MS, 5 * MS, 5 * MS, MEASURED)

    def share(captured: int) -> ProfilerShare:
        known = replace(inputs, alone=noted, captured_steps=captured)
        return profiler_share(known, named, Replay(built.graph), None, None)

    assert share(STEPS).alone == noted and not share(STEPS).doubts
    for captured, more in (0, ""), (7, ", and 7 steps of the program"):
        (doubt,) = share(captured).doubts
        assert doubt.reason == (
            "the program's steps took 5.000 ms without the profiler, but iteration may be another step: "
            f"the profile has {STEPS} of them{more}"
        )
        assert share(captured).alone != noted


def test_what_the_host_hides_is_priced_where_the_gpu_limits_the_step() -> None:
    # Without the slow kernel the host decides: alone with 5 µs for each of 400 launches, recorded with 14.
    def program(cost: int) -> list[Instruction]:
        return [Launch(9 * MS, name="softmax"), *loop(cost=cost)]

    alone = explain_run(inputs_of(simulate([program(0)], STEPS)))[0].step.elapsed_ns
    found = explained(program(BY_PROFILER), alone)
    assert found.step.alone_ns == StepAlone(alone or 0, alone or 0, alone or 0, GIVEN)
    assert {one.source for one in found.step.profiler_cost} == {TYPICAL}


def test_without_a_step_alone_it_lies_between_what_nsys_typically_costs() -> None:
    step = explained(loop(cost=BY_PROFILER), None).step
    alone, recorded = step.alone_ns, step.recorded_elapsed_ns
    assert alone is not None and recorded is not None
    assert alone.source == TYPICAL
    assert alone.low < elapsed() < alone.high < recorded
    assert step.elapsed_ns == pytest.approx(alone.low, rel=0.01)
    assert not step.is_alone
    (launch, *_) = step.profiler_cost
    assert (launch.low_ns, launch.high_ns) == (5 * US, 16 * US)


def test_without_a_step_alone_a_clean_program_gains_no_more_than_it_could_alone() -> None:
    # Alone the GPU decides, with 11 µs for each of 400 kernels: the host takes 5 µs less, and its calls 4 µs.
    launch = Launch(10 * US, call_ns=CALL + 4 * US)
    program: list[Instruction] = [Place("forward", (Host(12 * US), launch) * 400), Wait()]
    recorded = explained(program, None, as_recorded=True)
    assert recorded.step.alone_ns is None and recorded.step.elapsed_ns == recorded.step.recorded_elapsed_ns
    (first, *_) = recorded.shown()
    assert (first.saving_ns or 0) > 0.3 * (recorded.step.elapsed_ns or 0)
    assert not explained(program, None).shown()


def test_launches_as_quick_as_alone_show_no_share_of_the_profiler() -> None:
    quick = explained(loop(cost=0), None).step
    assert quick.alone_ns is None and quick.elapsed_ns == quick.recorded_elapsed_ns
    # A rank that is slower than another one is slower by itself.
    ranks = [loop(cost=BY_PROFILER), loop()]
    assert explain_run(inputs_of(simulate(ranks, STEPS)))[0].step.alone_ns is None
    assert explain_run(inputs_of(simulate(ranks[:1] * 2, STEPS)))[0].step.alone_ns is not None


def test_calls_that_the_graph_leaves_out_cost_the_profiler_too() -> None:
    def with_queries(timeline: Timeline) -> Timeline:
        """Add two short calls before each launch."""
        calls, names = timeline.calls, [*timeline.strings, "cuKernelGetName"]
        launches = np.flatnonzero([name == "cudaLaunchKernel" for name in timeline.names(calls.name)])
        short = calls.take(np.repeat(launches, 2))
        start = short.start - np.tile([2, 1], len(launches)) * US
        queries = replace(
            short,
            start=start,
            end=start + 100,
            name=np.full(len(short), len(names) - 1),
            correlation=np.full(len(short), NO_CORRELATION),
        )
        both = concatenate(ApiCalls, (calls, queries))
        order = np.argsort(both.start, kind="stable")
        return replace(timeline, calls=both.take(order), strings=np.array(names, object))

    inputs = inputs_of(simulate([loop(cost=BY_PROFILER)], STEPS))
    step, other = (
        explain_run(one)[0].step
        for one in (inputs, replace(inputs, read=lambda rank: with_queries(inputs.read(rank))))
    )
    assert step.alone_ns is not None and other.alone_ns is not None
    assert step.recorded_elapsed_ns == other.recorded_elapsed_ns
    # Two calls cost 0.3 of a launch each, of which 5 µs at least are the profiler's.
    assert step.alone_ns.high - other.alone_ns.high == pytest.approx(400 * 2 * 0.3 * 5 * US, rel=0.1)
    queries = next(one for one in other.profiler_cost if one.call == "other calls")
    assert (round(queries.calls_per_step), queries.low_ns) == (800, 1.5 * US)


def test_ratios_that_were_measured_on_the_site_count_instead_of_typical_ones() -> None:
    inputs = inputs_of(simulate([loop(cost=BY_PROFILER)], STEPS))
    measured = replace(inputs, call_weights={"launch": 1.0, "wait": 0.9})
    typical, of_site = (
        {cost.call: cost for cost in explain_run(one)[0].step.profiler_cost} for one in (inputs, measured)
    )
    (wait,) = (call for call in typical if "Synchronize" in call)
    assert typical["cudaLaunchKernel"] == of_site["cudaLaunchKernel"]
    assert of_site[wait].high_ns == pytest.approx(3 * typical[wait].high_ns, rel=1e-3)


def test_the_other_end_of_a_saving_is_where_calls_cost_the_least() -> None:
    inputs = inputs_of(simulate([loop(Host(2 * MS), cost=BY_PROFILER)], STEPS))
    built = replayable(inputs)
    assert isinstance(built, Replayable)
    share = profiler_share(inputs, built, Replay(built.graph), None, None)

    def time(times: Times) -> float:
        return float(share.replay.elapsed(share.replay.moments(times)).mean())

    slower = Uncertainty(share.replay, time, 0.0, slower=share.slower, faster=share.faster)
    assert share.alone is not None and share.alone.high > 1.2 * share.alone.low
    # Calls that are too short for the largest cost get back what was taken from them, and no more.
    of_step = slower.saving_interval(
        share.replay.measured, lambda times: replace(times, lag=0 * times.lag), 1, ONE
    )
    assert of_step.high > share.alone.high - share.alone.low > 0
    assert time(slower._at_other_call_cost(share.replay.measured)) == pytest.approx(
        share.alone.high, rel=1e-3
    )


ONE = np.ones(STEPS)


def test_a_host_that_another_machine_makes_quick_enough_claims_no_more_than_it_can_gain() -> None:
    def program(between: int, cost: int) -> list[Instruction]:
        launch = Launch(11 * US, call_ns=CALL + cost)
        return [Place("forward", (Host(between), launch) * 400), Wait()]

    # The profiler costs more than it typically does; without it the GPU decides from 5 µs between calls on.
    found = explained(program(14 * US, 18 * US), None)
    (first, *_) = found.shown()
    alone, least = (
        explained(program(between, 0), None, as_recorded=True).step.elapsed_ns or 0
        for between in (14 * US, 5 * US)
    )
    assert first.cause == Cause.HOST_BOUND and found.step.alone_ns is not None
    assert 0 < (first.saving_ns or 0) <= alone - least < (first.saving_high_ns or 0)


def renamed(cost: int, name: str, every: int = 1) -> Explanation:
    """Explain a loop of launches of which every n-th is by the call of a name."""
    inputs = inputs_of(simulate([loop(cost=cost)], STEPS))

    def read(rank: int) -> Timeline:
        made = inputs.read(rank)
        names = made.calls.name.copy()
        launches = np.flatnonzero(np.array(made.names(names)) == "cudaLaunchKernel")
        names[launches[::every]] = len(made.strings)
        strings = np.array([*made.strings, name], object)
        return replace(made, calls=replace(made.calls, name=names), strings=strings)

    return explain_run(replace(inputs, read=read))[0]


def test_the_launch_of_a_graph_costs_less_than_that_of_a_kernel_in_a_program() -> None:
    costs = renamed(BY_PROFILER, "cudaGraphLaunch", every=2).step.profiler_cost
    by_call = {cost.call: (cost.low_ns, cost.high_ns) for cost in costs}
    assert by_call["cudaLaunchKernel"] == (5 * US, 16 * US)
    assert by_call["cudaGraphLaunch"] == (1500, 4800)
    # A program may launch nothing but graphs.
    (cost, *_) = renamed(BY_PROFILER, "cudaGraphLaunch").step.profiler_cost
    assert (cost.call, cost.low_ns, cost.high_ns) == ("cudaGraphLaunch", 1500, 4800)


def test_a_launch_by_the_driver_is_slowed_where_it_takes_as_long_as_one_by_the_runtime_alone() -> None:
    assert not renamed(0, "cudaLaunchKernelExC").step.profiler_cost
    (launch, *_) = renamed(1 * US, "cuLaunchKernelEx").step.profiler_cost
    assert (launch.call, launch.low_ns, launch.high_ns) == ("cuLaunchKernelEx", 3750, 12_000)


@pytest.mark.parametrize("source", [TYPICAL, GIVEN])
def test_a_step_is_no_longer_without_the_profiler_where_the_replay_is_too_long(source: str) -> None:
    inputs = inputs_of(simulate([loop(cost=BY_PROFILER, kernel=30 * US)], STEPS))
    built = replayable(inputs)
    assert isinstance(built, Replayable)
    replay = Replay(replace(built.graph, observed=built.graph.observed // 1000 * 998))
    recorded = round(float(replay.elapsed(replay.graph.observed).mean()))
    if source == GIVEN:
        inputs = replace(inputs, alone=StepAlone(recorded, recorded, recorded, GIVEN))
    share = profiler_share(inputs, built, replay, None, recorded)
    assert share.alone is not None and share.alone.source == source
    walls = share.replay.elapsed(share.replay.unchanged)
    assert max(float(walls.mean()) / share.scale, share.alone.high) <= recorded + 1


@pytest.mark.parametrize(
    ("scale", "represented", "part"), [(1.25, 1.0, 0.8), (1.25, 0.5, 0.5), (0.8, 0.5, 0.5)]
)
def test_savings_are_those_of_all_steps_where_some_stand_for_them(
    scale: float, represented: float, part: float
) -> None:
    """Steps of kinds that are not replayed gain nothing: the times of these tell nothing about the others."""
    timelines = simulate([loop(Host(4 * MS))], STEPS)
    built = replayable(inputs_of(timelines))
    assert isinstance(built, Replayable)
    replay = Replay(built.graph)
    candidates = Scene(replay, {}, timelines).candidates()
    (first, *_), _, _ = Search(replay, candidates, 0).findings()
    (scaled, *_), _, _ = Search(replay, candidates, 0, scale=scale, represented=represented).findings()
    assert scaled.saving == pytest.approx(part * first.saving)
    assert scaled.by_step == pytest.approx(part * first.by_step)
    # The steps of the other kinds may have the cause too.
    assert scaled.interval.high * represented == pytest.approx(part * first.interval.high, rel=0.01)


def test_the_gain_of_each_step_leaves_out_those_that_count_for_nothing() -> None:
    timelines = simulate([loop(Host(4 * MS))], STEPS)
    built = replayable(inputs_of(timelines))
    assert isinstance(built, Replayable)
    replay = Replay(built.graph)
    weights = np.ones(replay.graph.steps)
    weights[2] = 0
    (first, *_), _, _ = Search(replay, Scene(replay, {}, timelines).candidates(), 0, weights).findings()
    assert first.by_step.min() > 0 and len(first.by_step) == len(first.gained) - 1


def test_the_step_alone_of_a_program_that_is_not_replayed_is_said() -> None:
    inputs = inputs_of(simulate([[Place("load", (Host(9 * MS),))]], 6))
    alone = StepAlone(7 * MS, 6 * MS, 8 * MS, MEASURED)
    said = [item for item in explain_run(replace(inputs, alone=alone))[0].not_judged if "alone" in item.what]
    (note,) = said
    assert note.reason.startswith("steps without the profiler took 7.000 ms; without a replay")
    assert not [item for item in explain_run(inputs)[0].not_judged if "alone" in item.what]
