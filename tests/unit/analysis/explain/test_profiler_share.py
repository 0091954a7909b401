"""Steps without the profiler: what is explained is the program, not its profile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import GIVEN, TYPICAL, Explanation, StepAlone
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


def explained(program: list[Instruction], alone: int | None) -> Explanation:
    inputs = inputs_of(simulate([program], STEPS))
    known = None if alone is None else StepAlone(alone, alone, alone, GIVEN)
    return explain_run(replace(inputs, alone=known))[0]


def test_a_saving_is_that_of_the_program_where_the_step_alone_is_known() -> None:
    pause = Host(4 * MS)
    cost = elapsed(pause) - elapsed()
    recorded = explained(loop(pause, cost=BY_PROFILER), None)
    found = explained(loop(pause, cost=BY_PROFILER), elapsed(pause))
    assert found.step.recorded_elapsed_ns == recorded.step.elapsed_ns
    assert found.step.elapsed_ns == pytest.approx(elapsed(pause), rel=0.01)
    (first, *_) = found.shown()
    assert (first.cause, first.where) == (Cause.HOST_WORK, "data")
    assert first.saving_ns == pytest.approx(cost, rel=0.05)
    assert first.share_pct == pytest.approx(100 * cost / elapsed(pause), rel=0.05)


def test_the_profilers_share_is_no_finding_of_a_program_that_its_gpu_limits() -> None:
    recorded = explained(loop(cost=BY_PROFILER, kernel=10 * US), None)
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
    found = explained(loop(), 2 * recorded).step
    assert found.elapsed_ns == pytest.approx(2 * recorded, rel=0.01)
    assert found.recorded_elapsed_ns == recorded and not any(one.cost_ns for one in found.profiler_cost)


def test_without_a_step_alone_it_lies_between_what_nsys_typically_costs() -> None:
    step = explained(loop(cost=BY_PROFILER), None).step
    alone = step.alone_ns
    assert alone is not None
    assert alone.source == TYPICAL
    assert alone.low < elapsed() < alone.high < (step.elapsed_ns or 0)
    assert not step.is_alone
