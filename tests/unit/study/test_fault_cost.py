"""The cost of a fault, from blocks of steps with and without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.study.validation_table import fault_costs
from hpcprof.workloads.schema import RankResult, summarize

MS = 1_000_000


def result(times: list[int], fault: str, epochs: int, warmup: int | None) -> RankResult:
    return RankResult(
        schema_version=2,
        workload="ddp",
        mode="allreduce",
        rank=0,
        world_size=2,
        local_rank=0,
        host="node",
        device="cpu",
        backend="gloo",
        parameters={"fault": fault, "fault_blocks": True, "epochs": epochs, "warmup_epochs": warmup},
        versions={},
        profiler="none",
        step_ns=times,
        phase_ns={},
        summary={"step": summarize(times)},
        latency_ns=times,
        correctness=None,
        notes=[],
    )


def test_a_result_of_0_2_calls_a_fault_a_plant() -> None:
    now = result([*epoch(20, 10), *epoch(20, 10), *epoch(20, 10)], "gc", 4, 1)
    names = {"fault": "plant", "fault_blocks": "plant_blocks"}
    before = replace(now, parameters={names.get(k, k): value for k, value in now.parameters.items()})
    assert fault_costs(before) == fault_costs(now)


def epoch(injected: int, clean: int, steps: int = 4) -> list[int]:
    return [*[injected] * steps, *[clean] * 2 * steps, *[injected] * steps]


def test_each_fault_has_the_difference_of_its_own_epochs() -> None:
    times = (
        epoch(30 * MS, 10 * MS) + epoch(15 * MS, 10 * MS) + epoch(34 * MS, 12 * MS) + epoch(17 * MS, 12 * MS)
    )
    costs = fault_costs(result(times, "host_work:ms=20 gc:objects=9", epochs=5, warmup=1))
    assert list(costs) == ["host_work:ms=20", "gc:objects=9"]
    sleep, collector = costs.values()
    assert (sleep.clean_ns, sleep.cost_ns) == (11 * MS, 21 * MS)
    assert (collector.clean_ns, collector.cost_ns) == (11 * MS, 5 * MS)
    assert sleep.low_ns < 21 * MS < sleep.high_ns
    assert sleep.high_ns - sleep.cost_ns == sleep.cost_ns - sleep.low_ns


def test_the_first_quarter_of_a_block_and_single_slow_steps_do_not_count() -> None:
    def block(level: int) -> list[int]:
        return [500 * MS, 500 * MS, *[level * MS] * 3, 400 * MS, *[(level + 2) * MS] * 2]

    times = [*block(30), *block(10), *block(10), *block(30)]
    (cost,) = fault_costs(result(times, "host_work", epochs=2, warmup=None)).values()
    assert (cost.clean_ns, cost.cost_ns, cost.low_ns, cost.high_ns) == (11 * MS, *[20 * MS] * 3)


def test_a_fault_that_acts_in_some_steps_costs_its_mean() -> None:
    spiked = [10 * MS, 10 * MS, 10 * MS, 10 * MS, 110 * MS]
    times = [*spiked, *[10 * MS] * 10, *spiked]
    (cost,) = fault_costs(result(times, "step_spikes:every=5", epochs=2, warmup=1)).values()
    assert (cost.clean_ns, cost.cost_ns) == (10 * MS, 20 * MS)


def test_only_whole_periods_of_such_a_fault_count() -> None:
    rest = [10 * MS, 10 * MS, 10 * MS]
    spiked = [10 * MS, 10 * MS, 10 * MS, 10 * MS, 110 * MS]
    times = [*rest, *spiked, *[10 * MS] * 16, *rest, *spiked]
    (cost,) = fault_costs(result(times, "step_spikes:every=5", epochs=2, warmup=1)).values()
    assert (cost.clean_ns, cost.cost_ns) == (10 * MS, 20 * MS)


def test_a_run_without_blocks_has_no_costs() -> None:
    given = result([MS] * 8, "gc", epochs=2, warmup=1)
    with pytest.raises(HpcprofError, match="no blocks of steps"):
        fault_costs(replace(given, parameters={**given.parameters, "fault_blocks": False}))
