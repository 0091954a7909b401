"""An explanation names the cause that was planted into a program, and what it costs."""

from __future__ import annotations

import lzma
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explain import explain_run, most_blocks
from hpcprof.analysis.explain.explanation import MEASURED, WAITING, Earlier, Explanation, OnceStep, StepAlone
from hpcprof.analysis.explain.whole_run import STREAM_WAITS, unexplained_waiting
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Category, Ranges, Timeline
from hpcprof.report.explanation import conclusion, hidden_cost
from tests.unit.analysis import timelines as made
from tests.unit.analysis.explain.programs import (
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Memory,
    Once,
    Place,
    StreamWait,
    Wait,
    inputs_of,
    simulate,
    without_waits,
)

DATA = Path(__file__).parents[3] / "data"
STEPS = 8
LAYERS = 10


def training(
    *,
    data: Sequence[Instruction] = (),
    layer: Sequence[Instruction] = (),
    forward: Sequence[Instruction] = (),
    optimizer: Sequence[Instruction] = (Launch(MS),),
    overlap: bool = True,
) -> list[Instruction]:
    """A step of training: the gradients are reduced beside the backward pass, or after it."""
    half = tuple(part for _ in range(LAYERS // 2) for part in (Host(50 * US), Launch(MS)))
    reduction: tuple[Instruction, ...] = (StreamWait(17, 7), Launch(2 * MS, 17, collective=True))
    backward = (*half, *reduction, *half) if overlap else (*half, *half, *reduction, *reduction)
    layers = tuple(part for _ in range(LAYERS) for part in (Host(50 * US), Launch(MS), *layer))
    return [
        Place("data", (Host(100 * US), *data)),
        Place("forward", (*layers, *forward)),
        Place("backward", (*backward, StreamWait(7, 17))),
        Place("optimizer", tuple(optimizer)),
    ]


def explained(*ranks: list[Instruction]) -> Explanation:
    return _explained(*map(tuple, ranks))


@lru_cache(32)
def _explained(*ranks: tuple[Instruction, ...]) -> Explanation:
    return explain_run(inputs_of(simulate(ranks, STEPS)))[0]


def within_the_gpu(timelines: Mapping[int, Timeline]) -> dict[int, Timeline]:
    """Timelines whose copies are all from the GPU to itself."""
    found = {}
    for rank, timeline in timelines.items():
        memops = replace(timeline.memops, host_memory=np.zeros(len(timeline.memops), np.int64))
        found[rank] = replace(timeline, memops=memops)
    return found


def wall(*ranks: list[Instruction]) -> float:
    found = explained(*ranks).step.wall_p50_ns
    assert found is not None
    return found


PLANTED = {
    "a slow loader": (Cause.HOST_WORK, "data", training(data=[Host(40 * MS)])),
    "a wait in each layer": (Cause.HOST_SYNC, "forward", training(layer=[Wait(), Host(400 * US)])),
    "a blocking copy": (
        Cause.BLOCKING_COPY,
        "data",
        training(data=[Launch(9 * MS, category=Category.MEM, blocks=True)]),
    ),
    "memory that is freed and allocated again": (
        Cause.DEVICE_ALLOCATION,
        "data",
        training(data=[Memory(2 * MS, frees=True)], layer=[Memory(800 * US)]),
    ),
    "reductions that nothing hides": (Cause.EXPOSED_COMMUNICATION, "backward", training(overlap=False)),
    "many short kernels": (
        Cause.SMALL_KERNELS,
        "optimizer",
        training(optimizer=[Launch(2 * US, name="addcmul") for _ in range(600)]),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_cause_on_all_ranks_is_the_first_finding(name: str) -> None:
    cause, where, program = PLANTED[name]
    first = explained(program, program).shown()[0]
    assert (first.cause, first.where, first.ranks) == (cause, where, (0, 1))
    clean = training(optimizer=[Launch(2 * US)]) if cause is Cause.SMALL_KERNELS else training()
    gained = wall(program, program) - wall(clean, clean)
    assert first.saving_ns == pytest.approx(gained, rel=0.2, abs=MS)
    assert first.evidence and first.remedy


def test_places_that_differ_in_their_numbers_are_one_finding_and_one_that_is_slow_alone_has_its_own() -> None:
    def layers(*pauses_us: int) -> list[Instruction]:
        parts = ((Host(50 * US), Launch(MS), Wait(), Host(us * US)) for us in pauses_us)
        return [Place(f"FSDP::forward (layers.{i})", part) for i, part in enumerate(parts)]

    (every, *others) = explained(layers(*[800] * LAYERS)).shown()
    assert (every.where, others) == ("FSDP::forward (layers.N)", [])
    first = explained(layers(*[10] * 4, 9000, *[10] * 4)).shown()[0]
    assert first.where == "FSDP::forward (layers.4)"


def test_lateness_that_rotates_does_not_make_the_step_longer_than_its_elapsed_time() -> None:
    steps, late_ms = 12, 10
    usual = training(optimizer=[Launch(MS), Wait()], overlap=False)

    def late(rank: int) -> list[Instruction]:
        return [*(Once(step, (Host(late_ms * MS),)) for step in range(rank, steps, 2)), *usual]

    clean = explained(usual, usual).step
    found = explain_run(inputs_of(simulate([late(0), late(1)], steps)))[0]
    elapsed, median = found.step.elapsed_ns, found.step.wall_p50_ns
    assert clean.elapsed_ns and clean.wall_p50_ns and elapsed and median
    # The rank that is late in the next step ends its own step later by both.
    assert elapsed - clean.elapsed_ns == pytest.approx(late_ms * MS, rel=0.1)
    assert median - clean.wall_p50_ns == pytest.approx(2 * late_ms * MS, rel=0.1)
    for one in found.findings:
        assert one.saving_ns is None or one.share_pct == round(100 * one.saving_ns / elapsed, 3)


def test_the_kinds_of_steps_are_told_with_their_share() -> None:
    usual, long = training(), [Once(step, (Launch(30 * MS),)) for step in range(0, 16, 4)]
    found = explain_run(inputs_of(simulate([[*usual, *long]] * 2, 16)))[0]
    assert [(one.kind, one.share_pct, one.steps) for one in found.step.kinds] == [(1, 75, 12), (2, 25, 4)]
    assert found.step.kinds[1].wall_p50_ns - found.step.kinds[0].wall_p50_ns == pytest.approx(
        30 * MS, rel=0.1
    )
    # A slow host in the steps of one kind.
    slow = [Once(step, (Wait(), Host(30 * MS))) for step in range(0, 16, 4)]
    late = explain_run(inputs_of(simulate([[*slow, *usual]] * 2, 16)))[0]
    assert [one.steps for one in late.step.kinds] == [13, 3]
    assert (late.shown()[0].cause, late.shown()[0].kind) == (Cause.HOST_WORK, 2)
    assert late.as_json()["findings"][0]["kind"] == 2
    # Steps that have more to do are no exceptions.
    assert Cause.STEP_SPIKES not in {one.cause for one in found.findings}


@pytest.mark.parametrize(
    ("cause", "where", "late"),
    [
        (Cause.LATE_RANK_HOST, "data", training(data=[Host(30 * MS)])),
        (Cause.LATE_RANK_GPU, "forward", training(forward=[Launch(8 * MS)])),
    ],
)
def test_a_late_rank_is_the_first_finding(cause: Cause, where: str, late: list[Instruction]) -> None:
    ranks = [training(), late, training()]
    first = explained(*ranks).shown()[0]
    assert (first.cause, first.where, first.ranks) == (cause, where, (1,))
    gained = wall(*ranks) - wall(*[training()] * 3)
    assert first.saving_ns == pytest.approx(gained, rel=0.2, abs=MS)


def test_a_late_rank_is_found_and_priced_where_no_wait_is_recorded() -> None:
    steps, late_ms = 24, 20
    # What the GPU has to do differs by step: so a host that waits for it is told from one that does not.
    more = [Once(step, (Launch(step * 7 % 5 * 200 * US),)) for step in range(steps)]
    usual = [*more, *training(optimizer=[Launch(MS), Wait()], overlap=False)]
    late = [Host(late_ms * MS), *usual]
    ranks = {rank: without_waits(one) for rank, one in simulate([usual, late, usual], steps).items()}
    first = explain_run(inputs_of(ranks))[0].shown()[0]
    assert (first.cause, first.ranks, first.confidence) == (Cause.LATE_RANK_HOST, (1,), "medium")
    assert first.saving_ns == pytest.approx(late_ms * MS, rel=0.1)


def test_a_long_pause_is_host_work_also_where_a_step_has_few_launches() -> None:
    graph = Launch(4 * MS, name="graph")
    program: list[Instruction] = [
        Place("data", (Host(21 * MS), graph)),
        Place("augment", (Host(18 * MS), graph)),
    ]
    first = explained(program).shown()[0]
    assert first.cause is Cause.HOST_WORK
    assert first.saving_ns == pytest.approx(21 * MS, abs=MS)


def test_two_late_ranks_are_one_finding() -> None:
    late = training(forward=[Launch(8 * MS)])
    ranks = [training(), late, training(), late, training()]
    first = explained(*ranks).shown()[0]
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_GPU, "forward", (1, 3))
    gained = wall(*ranks) - wall(*[training()] * 5)
    assert first.saving_ns == pytest.approx(gained, rel=0.2, abs=MS)


@pytest.mark.parametrize(("host_ms", "gpu_ms", "numbers"), [(13, 9, (0, 1)), (9, 13, (1, 0)), (12, 12, (1,))])
def test_two_ranks_that_are_late_by_different_causes_are_findings_with_what_both_cost(
    host_ms: int, gpu_ms: int, numbers: tuple[int, ...]
) -> None:
    waits: list[Instruction] = [Launch(MS), Wait()]
    slow_host = training(data=[Host(host_ms * MS)], optimizer=waits)
    more_work = training(forward=[Launch(gpu_ms * MS)], optimizer=waits)
    usual = training(optimizer=waits)
    ranks = [usual, slow_host, more_work, usual]
    by_host, by_gpu = (Cause.LATE_RANK_HOST, "data", (1,)), (Cause.LATE_RANK_GPU, "forward", (2,))
    shown = explained(*ranks).shown()
    expected = [(by_host, by_gpu)[number] for number in numbers]
    assert [(one.cause, one.where, one.ranks) for one in shown] == expected
    # The later one saves something alone, the other one only with it.
    (other,) = shown[-1].together
    assert {(one.cause, one.where, one.ranks) for one in (other, shown[-1])} == {by_host, by_gpu}
    assert len(shown) == 1 or not shown[0].together
    both = elapsed(*ranks) - elapsed(*[usual] * 4)
    assert sum(one.saving_ns or 0 for one in shown) == pytest.approx(both, rel=0.1)
    if numbers == (0, 1):
        alone = elapsed(*ranks) - elapsed(usual, usual, more_work, usual)
        # The first steps gain more, since the capture begins with the rank late.
        assert shown[0].saving_ns == pytest.approx(alone, rel=0.25)


def test_ranks_that_are_late_in_different_steps_are_findings_each_with_its_own_price() -> None:
    waits: list[Instruction] = [Launch(MS), Wait()]
    usual, steps = training(optimizer=waits, overlap=False), 16
    slow = [*(Once(step, (Host(14 * MS),)) for step in range(0, steps, 2)), *usual]
    more = [*(Once(step, (Launch(12 * MS),)) for step in range(1, steps, 2)), *usual]
    found = explain_run(inputs_of(simulate([usual, slow, more, usual], steps)))[0].shown()
    late = {one.cause: one for one in found if one.cause in (Cause.LATE_RANK_HOST, Cause.LATE_RANK_GPU)}
    host, gpu = late[Cause.LATE_RANK_HOST], late[Cause.LATE_RANK_GPU]
    assert (host.ranks, gpu.ranks) == ((1,), (2,))
    assert not host.together and not gpu.together
    assert [host.saving_ns, gpu.saving_ns] == pytest.approx([7 * MS, 6 * MS], rel=0.15)


def test_a_rank_that_others_hide_in_turn_is_a_finding_too() -> None:
    waits: list[Instruction] = [Launch(MS), Wait()]
    usual, steps = training(optimizer=waits), 20
    more_work = training(forward=[Launch(6 * MS)], optimizer=waits)

    def in_turn(rank: int) -> list[Instruction]:
        return [*(Once(step, (Place("data", (Host(16 * MS),)),)) for step in range(rank, steps, 4)), *usual]

    found = explain_run(inputs_of(simulate([in_turn(0), in_turn(1), more_work, in_turn(3)], steps)))[
        0
    ].shown()
    late = [one for one in found if one.cause in (Cause.LATE_RANK_HOST, Cause.LATE_RANK_GPU)]
    assert [(one.cause, one.ranks) for one in late] == [
        (Cause.LATE_RANK_HOST, (0, 1, 3)),
        (Cause.LATE_RANK_GPU, (2,)),
    ]
    assert [one.ranks for one in late[1].together] == [(0, 1, 3)]
    saving = sum(one.saving_ns or 0 for one in late)
    assert saving == pytest.approx(10 * MS, rel=0.1)


def test_a_pause_at_the_end_of_a_step_is_in_that_step() -> None:
    steps = 16
    logs = Place("log", (Wait(), Host(30 * MS)))
    usual = training()
    program: list[Instruction] = [*usual, *(Once(step, (logs,)) for step in range(3, steps, 4))]
    first = explain_run(inputs_of(simulate([program] * 2, steps)))[0].shown()[0]
    assert (first.cause, first.where, first.steps) == (Cause.HOST_WORK, "log", (3, 7, 11))
    # Idle time of another place, however short, is no evidence.
    figures = [one.value for one in first.evidence if one.analysis == "idle_causes"]
    assert all(float(value) > MS for value in figures)


@pytest.mark.parametrize("copy_ms", [8, 30])
def test_copies_far_ahead_of_the_work_that_needs_them_cost_what_the_end_of_the_run_gains(
    copy_ms: int,
) -> None:
    copy = Launch(copy_ms * MS, 9, name="prefetch", category=Category.MEM)
    found = explained(*[training(data=[copy, StreamWait(7, 9)])] * 2)
    assert found.step.elapsed_ns
    # The GPU computes for 21 ms of a step, so that it waits for the longer copies only.
    costs = sum(one.saving_ns or 0 for one in found.shown())
    assert costs == pytest.approx(max(0, copy_ms - 21) * MS, abs=MS)


def test_a_program_without_a_cause_has_no_finding() -> None:
    found = explained(training(), training())
    assert found.shown() == ()
    assert found.step.replay_error_pct == pytest.approx(0, abs=1)


def test_work_that_hides_behind_the_gpu_is_named_with_its_cost() -> None:
    found = explained(training(data=[Host(12 * MS)]), training(data=[Host(12 * MS)]))
    assert found.shown() == ()
    (hidden,) = found.hidden
    assert (hidden.cause, hidden.where) == (Cause.HOST_WORK, "data")
    # What the host does before the first call of the capture is not known.
    assert hidden.cost_ns == pytest.approx(12 * MS * (STEPS - 1) / STEPS, rel=0.02)
    assert hidden.saving_ns == pytest.approx(0, abs=US * 300)


def with_slower_host(program: Sequence[Instruction], times: float) -> list[Instruction]:
    """Let the host take longer everywhere."""
    found: list[Instruction] = []
    for one in program:
        if isinstance(one, Host):
            found.append(Host(round(one.ns * times)))
        elif isinstance(one, Place):
            found.append(Place(one.name, tuple(with_slower_host(one.inside, times))))
        else:
            found.append(one)
    return found


def test_a_host_that_is_slower_everywhere_does_not_hide_another_cause_and_is_no_finding() -> None:
    def program(times: float, *more: Instruction) -> list[Instruction]:
        return with_slower_host(training(layer=[Host(2 * MS)], forward=more), times)

    late = program(2.0, Launch(9 * MS))
    found = explained(program(1.0), late, program(1.0))
    (first,) = found.shown()
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_GPU, "forward", (1,))
    assert first.saving_ns == pytest.approx(
        wall(program(1.0), program(1.0, Launch(9 * MS))) - wall(*[program(1.0)] * 2), rel=0.2
    )
    (slow,) = [one for one in found.not_judged if one.what == "the host of rank 1"]
    assert "2.0 times as long" in slow.reason
    worse = explained(program(1.0), program(4.0), program(1.0)).shown()
    assert [(one.cause, one.ranks, one.confidence) for one in worse] == [(Cause.LATE_RANK_HOST, (1,), "low")]


@pytest.mark.parametrize("times", [1.3, 2.0])
def test_a_host_that_is_slower_everywhere_is_no_finding(times: float) -> None:
    program = training(layer=[Host(2 * MS)], optimizer=[Host(20 * MS), Launch(MS)])
    found = explained(program, with_slower_host(program, times), program)
    assert Cause.LATE_RANK_HOST not in {one.cause for one in found.shown()}
    assert f"{times:.1f} times as long" in found.not_judged[-1].reason


def test_a_host_that_pauses_in_one_place_is_late_there() -> None:
    (first, *_) = explained(training(), training(layer=[Host(3 * MS)]), training()).shown()
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_HOST, "forward", (1,))


def test_copies_within_a_gpu_are_no_blocking_copies() -> None:
    copy = Launch(9 * MS, category=Category.MEM, blocks=True)
    timelines = within_the_gpu(simulate([training(data=[copy])] * 2, STEPS))
    found = explain_run(inputs_of(timelines))[0].shown()
    assert Cause.BLOCKING_COPY not in {one.cause for one in found}


@pytest.mark.parametrize(
    ("memory", "advice", "width"),
    [(HostMemory.PINNED, "use pinned memory already", 0.25), (HostMemory.PAGEABLE, "pin_memory", 0.9)],
)
def test_copies_from_pinned_memory_are_not_advised_to_use_it(
    memory: HostMemory, advice: str, width: float
) -> None:
    """Another host moves pageable memory at another speed, and pinned memory does not pass through it."""
    copy = Launch(9 * MS, category=Category.MEM, blocks=True)
    timelines = {
        rank: replace(one, memops=replace(one.memops, host_memory=np.full(len(one.memops), int(memory))))
        for rank, one in simulate([training(data=[copy])], STEPS).items()
    }
    first = explain_run(inputs_of(timelines))[0].shown()[0]
    assert first.cause == Cause.BLOCKING_COPY and advice in first.remedy
    assert first.saving_ns and first.saving_low_ns and first.saving_high_ns
    assert abs((first.saving_high_ns - first.saving_low_ns) / first.saving_ns - width) < 0.15


def test_pinned_copies_take_as_long_beside_kernels() -> None:
    """A step whose copies take longer than all else cannot be shorter than they are."""
    copy = Launch(90 * MS, name="[CUDA memcpy Host-to-Device]", category=Category.MEM)

    def saving(memory: HostMemory) -> float:
        timelines = {
            rank: replace(one, memops=replace(one.memops, host_memory=np.full(len(one.memops), int(memory))))
            for rank, one in simulate([training(data=[copy])], STEPS).items()
        }
        first = explain_run(inputs_of(timelines))[0].shown()[0]
        assert first.cause == Cause.BLOCKING_COPY and first.saving_ns
        return first.saving_ns / MS

    step = explained(training()).step.elapsed_ns
    assert step and saving(HostMemory.PINNED) == pytest.approx(step / MS, abs=1.5)
    assert saving(HostMemory.PAGEABLE) == pytest.approx(90, abs=1.5)


def test_pinned_copies_to_two_gpus_of_a_rank_take_place_at_once() -> None:
    copy = Launch(30 * MS, name="[CUDA memcpy Host-to-Device]", category=Category.MEM)
    both = [replace(one, device=device) for one in (copy, Launch(20 * MS)) for device in (0, 1)]
    timeline = simulate([[*both, Wait(), Wait(device=1)]], STEPS)[0]
    pinned = np.full(len(timeline.memops), int(HostMemory.PINNED))
    timeline = replace(timeline, memops=replace(timeline.memops, host_memory=pinned))
    first = explain_run(inputs_of({0: timeline}))[0].shown()[0]
    assert first.cause == Cause.BLOCKING_COPY
    assert first.saving_ns == pytest.approx(20 * MS, rel=0.05)


def test_waits_for_copies_to_the_gpu_are_no_values_that_the_host_reads() -> None:
    upload = Launch(2 * US, name="[CUDA memcpy Host-to-Device]", category=Category.MEM)
    program = training(layer=[upload, Wait(), Host(100 * US)])
    first = explained(program, program).shown()[0]
    assert first.cause == Cause.HOST_SYNC
    assert first.remedy.startswith("The host waits in forward for its own copies to the GPU")


def test_pinned_memory_is_to_be_reused() -> None:
    program = training(data=[Memory(3 * MS, name="cudaHostAlloc"), Memory(5 * MS, True, "cudaFreeHost")])
    first = explain_run(inputs_of(simulate([program], 6)))[0].shown()[0]
    assert first.cause == Cause.DEVICE_ALLOCATION and first.remedy.startswith("Allocate the pinned memory of")


def test_the_allocations_of_a_single_step_may_be_the_set_up() -> None:
    program = training(layer=[Memory(3 * MS, frees=True)])
    one, several = (explain_run(inputs_of(simulate([program], steps)))[0].shown()[0] for steps in (1, 4))
    assert one.cause == several.cause == Cause.DEVICE_ALLOCATION
    assert one.remedy.startswith("A single step does not tell") and "empty_cache" in several.remedy


def test_single_steps_that_take_longer_are_spikes() -> None:
    timelines = simulate([training()], STEPS)
    series = np.array([20, 20, 20, 60, 20, 20, 64, 20]) * MS
    inputs = inputs_of(timelines)
    account = inputs.tables["step_account"].assign(wall_ns=series)
    inputs.tables["step_account"] = account  # type: ignore[index]
    inputs.tables["step_times"] = account[["rank", "step", "wall_ns"]]  # type: ignore[index]
    (spike,) = [one for one in explain_run(inputs)[0].findings if one.cause is Cause.STEP_SPIKES]
    assert spike.where == "steps 3, 6"
    assert spike.saving_ns == 10.5 * MS
    assert [(one.analysis, one.key, one.value) for one in spike.evidence] == [
        ("step_times", "wall_ns", 64 * MS),
        ("step_times", "wall_ns", 60 * MS),
    ]


def pausing(*, after: bool) -> Explanation:
    """Explain a training that loses 90 ms in step 4 to a validation: inside the step, or after it."""
    validation = Place("validation", (Host(50 * MS), Launch(40 * MS), Wait()))
    return explained([*training(), Once(4, (validation,), after=after)])


def test_a_range_that_pauses_the_steps_is_no_spike_but_is_named() -> None:
    found = pausing(after=True)
    assert Cause.STEP_SPIKES not in {one.cause for one in found.findings}
    (said,) = [one for one in found.not_judged if one.what == "the range validation"]
    assert "after step 4, outside the steps" in said.reason


def test_what_happens_once_inside_a_step_is_told_and_counts_in_nothing_else() -> None:
    found, clean = pausing(after=False), explained(training())
    assert [(one.step, one.extra_ns // MS) for one in found.step.once] == [(4, 40)]
    assert found.step.elapsed_ns == pytest.approx(clean.step.elapsed_ns, rel=0.01)
    assert not found.shown() and not found.not_judged


def test_a_range_after_every_step_is_a_part_of_the_steps() -> None:
    loads = [Place("load", (Host((300 if step == 4 else 1) * MS),)) for step in range(STEPS)]
    load = [Once(step, (one,), after=True) for step, one in enumerate(loads)]
    found = explained([*training(), *load])
    assert [one.step for one in found.step.once] == [4]
    assert not found.not_judged


def test_a_cause_that_the_profiler_may_make_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcprof.analysis.explain.explain.CALL_COST_NS", {"nsys": 500 * US})
    program = PLANTED["a wait in each layer"][2]
    found = explain_run(inputs_of(simulate([program] * 2, STEPS)))[0]
    assert Cause.HOST_SYNC not in {one.cause for one in found.shown()}
    (said,) = [one for one in found.not_judged if one.what == "host_sync"]
    assert re.match(r"it seems to cost \S+ ms of a step in forward, but the profiler", said.reason)


@pytest.mark.parametrize(("copies", "pause"), [(2, 30 * MS), (60, 450 * US)])
def test_a_range_that_copies_and_then_works_is_one_cause_at_its_whole_price(copies: int, pause: int) -> None:
    """As a checkpoint does; the host is so slow that neither alone hides behind the GPU."""
    copied = Launch(12 * MS // copies, category=Category.MEM, blocks=True)
    pieces = (copied,) * 2 + (Host(pause),) if copies == 2 else (copied, Host(pause)) * copies
    step: list[Instruction] = [
        Place("forward", (Host(300 * US), Launch(300 * US)) * 60),
        StreamWait(17, 7),
        Launch(MS, 17, collective=True),
        StreamWait(7, 17),
        Launch(MS),
    ]
    late, usual = [*step, Place("checkpoint", pieces)], step
    first, *_ = explained(late, usual).findings
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_HOST, "checkpoint", (0,))
    lost = elapsed(late, usual) - elapsed(usual, usual)
    assert first.saving_ns == pytest.approx(lost, rel=0.05)


def test_lost_events_are_counted_and_no_other_count_stands_for_them() -> None:
    inputs = inputs_of(simulate([training()], STEPS))
    lost = Loss(LossKind.ROW, Subject.CALL, 57, 172, "end")
    found = explain_run(replace(inputs, losses={0: (lost,)}))[0]
    (incomplete,) = [one for one in found.shown() if one.cause is Cause.CAPTURE_INCOMPLETE]
    assert "57 of 172 API calls" in incomplete.where
    assert not incomplete.evidence


def test_the_collectives_of_all_ranks_are_not_read_if_all_have_a_profile() -> None:
    inputs = inputs_of(simulate([training(), training(data=[Host(40 * MS)])], STEPS))

    class OtherTables(dict[str, pd.DataFrame]):
        def __missing__(self, name: str) -> pd.DataFrame:
            assert name != "rank_collectives"
            return inputs.tables[name]

    assert explain_run(replace(inputs, tables=OtherTables()))[0].findings


def test_without_the_profile_of_a_rank_the_explanation_says_so() -> None:
    timelines = simulate([training(), training(data=[Host(40 * MS)])], STEPS)
    # That another rank ran is known from the profile.
    found = explain_run(inputs_of({0: timelines[0]}))[0]
    (shown,) = found.shown()
    assert (shown.cause, shown.where) == (
        Cause.CAPTURE_INCOMPLETE,
        "1 of 2 ranks has a profile (rank 1 lacks one)",
    )
    assert [(one.analysis, one.value) for one in shown.evidence] == [("rank_collectives", 2)]
    waiting, late = found.not_judged
    assert waiting.what == WAITING and waiting.reason.endswith(
        "is unknown: 1 of 2 ranks has a profile (rank 1 lacks one)"
    )
    assert late.reason == "1 of 2 ranks has a profile (rank 1 lacks one), and the others may be late"


def test_a_long_call_of_one_rank_has_its_own_cause_at_its_full_price() -> None:
    synchronized = training(optimizer=[Launch(MS), Wait()])
    for long, cause in (
        (Memory(12 * MS), Cause.DEVICE_ALLOCATION),
        (Launch(20 * US, call_ns=12 * MS), Cause.LATE_RANK_HOST),
    ):
        late = training(data=[long], optimizer=[Launch(MS), Wait()])
        (first, *more) = explained(synchronized, late, synchronized).shown()
        assert (first.cause, first.where, first.ranks) == (cause, "data", (1,))
        cost = elapsed(synchronized, late, synchronized) - elapsed(*[synchronized] * 3)
        assert first.saving_ns == pytest.approx(cost, rel=0.02)
        assert not more


def test_a_step_that_lost_its_operations_ends_the_one_before_it() -> None:
    whole = explained(training(data=[Wait(), Host(8 * MS)])).shown()[0]
    (timeline,) = simulate([training(data=[Wait(), Host(8 * MS)])], STEPS).values()
    kernels = timeline.kernels
    step = timeline.ranges.start[timeline.strings[timeline.ranges.name] == "iteration"]
    launched = timeline.calls.start[np.searchsorted(timeline.calls.correlation, kernels.correlation)]
    cut = replace(timeline, kernels=kernels.take((launched < step[4]) | (launched > step[5])))
    first = explain_run(inputs_of({0: cut}))[0].shown()[0]
    assert (first.cause, first.where) == (whole.cause, whole.where)
    assert first.saving_ns == pytest.approx(whole.saving_ns, rel=0.05)


def elapsed(*ranks: list[Instruction]) -> float:
    """Return the time of a step of a simulation, from the begin of the first one to that of the last one."""
    found = step_fronts_of(simulate(ranks, STEPS))
    return float(found[-1] - found[0]) / (STEPS - 1)


def step_fronts_of(timelines: dict[int, Timeline]) -> list[int]:
    """Return when the last rank begins each step on its GPU."""
    fronts = []
    for one in timelines.values():
        kernels = one.kernels
        launched = one.calls.start[np.searchsorted(one.calls.correlation, kernels.correlation)]
        steps = one.ranges.start[one.strings[one.ranges.name] == "iteration"]
        fronts.append([int(kernels.start[launched >= start].min()) for start in steps.tolist()])
    return [max(moments) for moments in zip(*fronts, strict=True)]


def test_steps_of_each_kind_are_replayed_and_count_by_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 40
    slow = [Once(step, (Place("data", (Wait(), Host(30 * MS))),)) for step in range(30, steps)]
    timelines = simulate([[*slow, *training()]] * 2, steps)
    operations = sum(one.operation_count for one in timelines.values())
    monkeypatch.setattr("hpcprof.analysis.explain.replayable.MAX_OPERATIONS", operations // 4)
    found = explain_run(inputs_of(timelines))[0]
    assert (found.step.explained_steps, len(found.step.kinds)) == (10, 2)
    # In the middle of the capture nothing is slow.
    first = found.shown()[0]
    assert (first.cause, first.where) == (Cause.HOST_WORK, "data")
    clean = explain_run(inputs_of(simulate([training()] * 2, steps)))[0]
    assert found.step.elapsed_ns and clean.step.elapsed_ns
    assert first.saving_ns == pytest.approx(found.step.elapsed_ns - clean.step.elapsed_ns, rel=0.2)


def test_a_changed_level_is_shown_by_a_step_of_each() -> None:
    slower = [Once(step, (Launch(5 * MS),)) for step in range(10, 20)]
    # A single long step is another matter.
    program = [*training(), *slower, Once(14, (Wait(), Host(60 * MS)))]
    found = explain_run(inputs_of(simulate([program] * 2, 20)))[0].shown()
    (drift,) = (one for one in found if one.cause is Cause.STEP_DRIFT)
    assert 14 in drift.steps
    values = [float(one.value) for one in drift.evidence]
    assert [values[0] - values[1], len(values)] == pytest.approx([5 * MS, 2], rel=0.1)
    # The steps of a level hardly differ: the tenth that models are off is counted once.
    assert drift.saving_ns and drift.saving_high_ns
    assert drift.saving_high_ns - drift.saving_ns == pytest.approx(0.1 * drift.saving_ns, rel=0.2)


@pytest.mark.parametrize(
    ("program", "alone_ms"), [(training(), 21.5), ([*(400 * [Host(20 * US), Launch(3 * US)])], 7.7)]
)
def test_kernels_that_take_longer_and_longer_are_a_drift_whatever_the_profiler_costs(
    program: list[Instruction], alone_ms: float
) -> None:
    """Steps alone before the capture are shorter, as the program itself drifts."""
    longer = [Once(step, (Launch(step * MS // 4), Wait())) for step in range(20)]
    value = round(alone_ms * MS)
    alone = StepAlone(value, value - MS // 10, value + MS // 10, MEASURED)
    inputs = replace(inputs_of(simulate([[*program, *longer]] * 2, 20)), alone=alone)
    found = explain_run(inputs)[0]
    assert found.step.alone_ns == alone
    assert Cause.STEP_DRIFT in [one.cause for one in found.shown()]


def test_a_late_gpu_behind_a_slow_host_is_a_finding_together_with_it() -> None:
    loads = [Host(30 * MS)]
    usual, late = training(data=loads), training(data=loads, forward=[Launch(6 * MS)])
    first, second = explained(usual, late, usual).shown()
    assert (first.cause, first.ranks, first.together) == (Cause.HOST_WORK, (0, 1, 2), ())
    assert (second.cause, second.ranks) == (Cause.LATE_RANK_GPU, (1,))
    assert [one.cause for one in second.together] == [Cause.HOST_WORK]
    assert second.saving_ns == pytest.approx(6 * MS, rel=0.1)


def test_a_synchronization_does_not_mask_a_narrower_cause_and_is_its_alternative() -> None:
    synchronized, slow = (
        training(data=data, optimizer=[Launch(MS), Wait()]) for data in ((), (Host(9 * MS),))
    )
    (first, *more) = explained(slow, slow).shown()
    assert (first.cause, first.where) == (Cause.HOST_WORK, "data")
    cost = elapsed(slow, slow) - elapsed(synchronized, synchronized)
    assert first.saving_ns == pytest.approx(cost, rel=0.05)
    (other,) = first.alternatives
    assert (other.cause, other.where) == (Cause.HOST_SYNC, "optimizer")
    assert other.saving_ns == pytest.approx(elapsed(slow, slow) - elapsed(training(), training()), rel=0.1)
    assert not more


def test_a_long_pause_comes_before_a_host_that_could_hide_most_of_it_by_launching_faster() -> None:
    def program(load: int, between: int) -> list[Instruction]:
        launches = tuple(part for _ in range(20) for part in (Host(between), Launch(1 * MS)))
        return [Place("load", (Host(load),)), Place("forward", launches)]

    now = program(10 * MS, 1100 * US)
    first = explained(now).shown()[0]
    assert (first.cause, first.where) == (Cause.HOST_WORK, "load")
    assert first.saving_ns == pytest.approx(elapsed(now) - elapsed(program(0, 1100 * US)), rel=0.05)


def test_a_launch_that_takes_long_itself_is_said_to_load_its_code() -> None:
    """Rebuilt from a public trace of one step, whose first launch of a kernel took 6.5 of 9.3 ms."""
    usual, loading = (Launch(100 * US),) * 6, Launch(1 * MS, call_ns=6 * MS)
    (first,) = explained([Place("forward", (*usual, loading))]).shown()
    assert first.cause == Cause.HOST_WORK
    assert "the call of a launch itself takes long" in first.remedy
    (pause,) = explained([Place("forward", (*usual, Host(6 * MS), *usual))]).shown()
    assert pause.cause == Cause.HOST_WORK and "launch" not in pause.remedy


@pytest.mark.parametrize("waits", [(), (Wait(),)])
def test_a_host_that_is_too_slow_for_the_gpu_everywhere_is_named_with_its_ranges(
    waits: tuple[Instruction, ...],
) -> None:
    def program(between: int) -> list[Instruction]:
        launches = [(Host(between), Launch(ns * US)) for ns in (10, 300, 40, 200, 90, 20) * 5]
        parts = tuple(part for both in launches for part in both)
        reduction = (StreamWait(17, 7), Launch(500 * US, 17, collective=True), StreamWait(7, 17))
        return [Place("forward", parts), Place("backward", (*parts, *reduction)), *waits]

    slow, quick = ([program(between * US)] * 2 for between in (250, 2))
    (first, *more) = explained(*slow).shown()
    assert (first.cause, first.where, first.ranks) == (Cause.HOST_BOUND, "backward, forward", (0, 1))
    assert first.saving_ns == pytest.approx(elapsed(*slow) - elapsed(*quick), rel=0.05)
    assert {one.analysis for one in first.evidence} == {"idle_causes", "step_account"}
    assert not more


def test_a_host_that_is_slow_in_some_steps_is_found_with_these_steps() -> None:
    drained = training(optimizer=[Launch(MS), Wait()])
    slow = [Once(step, (Host(60 * MS),)) for step in (2, 5, 6)]
    ranks = [training(data=slow, optimizer=[Launch(MS), Wait()]), drained, drained]
    (first, *_) = explained(*ranks).shown()
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_HOST, "data", (0,))
    assert first.steps == (2, 5, 6)
    assert first.saving_ns == pytest.approx(elapsed(*ranks) - elapsed(*[drained] * 3), rel=0.05)


@pytest.mark.parametrize(
    ("cause", "late", "inside"),
    [
        (Cause.LATE_RANK_GPU, Launch(8 * MS, name="expert"), "forward"),
        (Cause.LATE_RANK_HOST, Host(9 * MS), "data"),
    ],
)
def test_ranks_that_are_late_in_turn_are_one_finding(cause: Cause, late: Instruction, inside: str) -> None:
    def program(rank: int | None) -> list[Instruction]:
        more = [Once(step, (late,)) for step in range(STEPS) if step % 3 == rank]
        of_data, of_forward = (more if inside == name else [] for name in ("data", "forward"))
        return training(data=of_data, forward=of_forward, optimizer=[Launch(MS), Wait()])

    ranks = [program(rank) for rank in range(3)]
    (first, *more) = explained(*ranks).shown()
    assert (first.cause, first.where, first.ranks) == (cause, inside, (0, 1, 2))
    assert first.saving_ns == pytest.approx(elapsed(*ranks) - elapsed(*[program(None)] * 3), rel=0.1)
    assert not more


def test_host_work_of_a_single_step_before_its_first_kernel_is_the_first_finding() -> None:
    """Rebuilt from a public trace of one inference: 58 % of it was told to be hidden behind the GPU."""
    program = [Place("iteration", (Host(30 * MS), *(Launch(MS) for _ in range(20))))]
    simulated = simulate([program], 1)
    explanation, _ = explain_run(inputs_of(simulated))
    first = explanation.shown()[0]
    assert first.cause == Cause.HOST_WORK
    assert first.saving_ns is not None
    assert abs(first.saving_ns - 30 * MS) < MS
    assert explanation.step.elapsed_ns is not None
    assert 50 * MS < explanation.step.elapsed_ns < 52 * MS
    assert all(item.cause != Cause.HOST_WORK for item in explanation.hidden)


def test_sequences_of_other_lengths_are_priced_as_equal_work_on_all_ranks() -> None:
    steps = 12
    lengths = np.random.default_rng(2).choice([0.5, 0.8, 1.2, 1.6, 2.4], (steps, 3))

    def program(of_step: list[float]) -> list[Instruction]:
        usual = training(overlap=False)
        # Other lengths take kernels of other names.
        longer = [
            Once(step, tuple(Launch(round(ns * MS), name=f"gemm_{ns:.2f}") for _ in range(8)))
            for step, ns in enumerate(of_step)
        ]
        return [usual[0], Place("forward", (*longer, *usual[1].inside)), *usual[2:]]

    unequal, equal = (
        explain_run(inputs_of(simulate([program(one[:, rank].tolist()) for rank in range(3)], steps)))[0]
        for one in (lengths, np.repeat(lengths.mean(axis=1, keepdims=True), 3, axis=1))
    )
    first = unequal.shown()[0]
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_GPU, "forward", (0, 1, 2))
    assert unequal.step.elapsed_ns and equal.step.elapsed_ns
    gained = unequal.step.elapsed_ns - equal.step.elapsed_ns
    # The first step gains at most as much as another one.
    assert first.saving_ns == pytest.approx(gained, abs=0.2 * MS)
    assert Cause.LATE_RANK_GPU not in {one.cause for one in equal.shown()}


def test_a_rank_that_pauses_more_often_than_others_in_one_place_has_no_slower_host() -> None:
    late = [0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3]

    def program(rank: int) -> list[Instruction]:
        pauses = [Once(step, (Host(9 * MS),)) for step, one in enumerate(late) if one == rank]
        return [Place("load", tuple(pauses)), *training(optimizer=[Launch(MS), Wait()])]

    found = explain_run(inputs_of(simulate([program(rank) for rank in range(4)], len(late))))[0]
    assert (found.shown()[0].cause, found.shown()[0].where) == (Cause.LATE_RANK_HOST, "load")
    assert not any(one.what.startswith("the host of rank") for one in found.not_judged)
    assert all(one.confidence != "low" for one in found.findings)


@pytest.mark.parametrize("late", [range(14), (3, 8, 13)])
def test_a_rank_that_pauses_is_late_in_a_program_without_ranges(late: Sequence[int]) -> None:
    copied: list[Instruction] = [Launch(10 * US, category=Category.MEM), Host(5 * US), Launch(30 * US)]
    program = [*(180 * copied), StreamWait(17, 7), Launch(MS, 17, collective=True), StreamWait(7, 17)]
    pauses = [Once(step, (Host(60 * MS),)) for step in late]
    # The other host launches ahead until the queue of its stream is full, where a copy waits for room too.
    timelines = within_the_gpu(simulate([program, [*pauses, *program]], 14))
    found = explain_run(inputs_of(timelines))[0]
    assert [(one.cause, one.ranks) for one in found.shown()] == [(Cause.LATE_RANK_HOST, (1,))]
    assert found.shown()[0].confidence != "low"
    assert not any(one.what.startswith("the host of rank") for one in found.not_judged)


def test_work_between_the_ranges_of_the_steps_is_a_finding() -> None:
    usual = training()
    planted = [*usual, *(Once(step, (Wait(), Host(8 * MS)), after=True) for step in range(STEPS))]
    first = explained(planted, planted).shown()[0]
    assert (first.cause, first.where) == (Cause.HOST_WORK, "code outside all ranges")
    assert first.remedy.startswith("Mark the parts of the step (ranges of NVTX or ROCTx, or torch.profiler.")
    assert first.saving_ns == pytest.approx(wall(planted, planted) - wall(usual, usual), abs=MS)


def test_hosts_that_are_late_in_two_places_are_one_finding_that_names_both() -> None:
    late = [training(data=[Host(12 * MS)], optimizer=[Launch(MS), Wait()])]
    late.append(training(optimizer=[Launch(MS), Wait(), Place("gc", (Host(9 * MS),))]))
    usual = training(optimizer=[Launch(MS), Wait()])
    first = explained(usual, *late, usual).shown()[0]
    assert (first.cause, first.ranks) == (Cause.LATE_RANK_HOST, (1, 2))
    assert first.where == "data, optimizer/gc"
    assert first.culprit is not None
    assert first.culprit.name == "data"


def test_a_rank_that_gets_slower_explains_the_drift_of_the_steps() -> None:
    steps = 14
    usual = training()
    kernels = [Once(step, (Launch(step * MS // 2, name="gemm_slow"),)) for step in range(steps)]
    found = explain_run(inputs_of(simulate([usual, [*kernels, *usual]], steps)))[0].shown()
    assert [(one.cause, one.ranks) for one in found] == [(Cause.LATE_RANK_GPU, (1,))]
    assert [one.cause for one in found[0].alternatives] == [Cause.STEP_DRIFT]


def test_an_allocation_comes_before_the_wait_that_shows_it() -> None:
    planted = training(layer=[Memory(2400 * US)], optimizer=[Launch(MS), Wait()])
    first = explained(planted, planted).shown()[0]
    assert (first.cause, first.where) == (Cause.DEVICE_ALLOCATION, "forward")
    assert Cause.HOST_SYNC in [one.cause for one in first.alternatives]


def test_a_rank_that_launches_more_in_one_place_has_no_slower_host() -> None:
    single: list[Instruction] = [Host(8 * US), Launch(3 * US, name="single")]
    many: list[Instruction] = [Wait(), *(700 * single)]
    fused: list[Instruction] = [Wait(), Launch(2100 * US, name="fused")]
    late = training(optimizer=many)
    # Its host is a little slower elsewhere, by chance.
    late[1] = Place("forward", tuple(part for _ in range(LAYERS) for part in (Host(52 * US), Launch(MS))))
    first = explained(training(optimizer=fused), late, training(optimizer=fused)).shown()[0]
    assert (first.cause, first.ranks) == (Cause.SMALL_KERNELS, (1,))


def test_the_rank_that_arrives_last_is_counted() -> None:
    drained: list[Instruction] = [Launch(MS), Wait()]
    ranks = [training(overlap=False, optimizer=drained, data=[Host(rank * MS)]) for rank in range(3)]
    inputs = inputs_of(simulate(ranks, STEPS))
    (said,) = unexplained_waiting(inputs, (), 5 * MS, pipeline=False, unaligned=0)
    last = f"the last one to arrive is rank 2 in {STEPS} of the {STEPS} collectives with the longest waits"
    assert said.reason.endswith(last)
    once = [OnceStep(step, MS, None, "") for step in inputs.tables["step_account"]["step"].unique().tolist()]
    assert not [*unexplained_waiting(inputs, (), 5 * MS, pipeline=False, unaligned=0, once=once)]


def test_a_run_on_cpus_is_explained_by_the_account_of_its_steps() -> None:
    paths = {rank: DATA / f"cpu_ddp_rank{rank}.pt.trace.json.gz" for rank in (0, 1)}
    found = explain_run(inputs_of({rank: timeline_of(path) for rank, path in paths.items()}))[0]
    first = found.shown()[0]
    # Its rank 1 loads 20 ms longer (tests/data/README.md).
    assert (first.cause, first.ranks, first.where) == (Cause.LATE_RANK_HOST, (1,), "data")
    assert first.saving_ns == pytest.approx(20 * MS, rel=0.1)
    assert Cause.EXPOSED_COMMUNICATION in {one.cause for one in found.findings}
    assert "without work on a GPU" in found.not_judged[0].reason


@pytest.mark.parametrize(
    ("plant", "cause", "where", "ranks", "cost_ms", "within"),
    [
        ("host_work", Cause.HOST_WORK, "data", (0, 1), 10.97, 0.1),
        ("late_rank_gpu", Cause.LATE_RANK_GPU, "forward", (1,), 12.0, 0.2),
    ],
)
def test_a_planted_cause_is_found_in_profiles_of_gpus_and_costs_what_was_measured(
    tmp_path: Path,
    plant: str,
    cause: Cause,
    where: str,
    ranks: tuple[int, ...],
    cost_ms: float,
    within: float,
) -> None:
    timelines = {}
    for rank in (0, 1):
        packed = DATA / f"planted_{plant}_rank{rank}.sqlite.xz"
        export = tmp_path / packed.stem
        export.write_bytes(lzma.decompress(packed.read_bytes()))
        timelines[rank] = timeline_of(export)
    first = explain_run(inputs_of(timelines))[0].shown()[0]
    assert (first.cause, first.where, first.ranks) == (cause, where, ranks)
    assert first.saving_ns == pytest.approx(cost_ms * MS, rel=within)


def timeline_of(path: Path) -> Timeline:
    found = read_profile(path)
    assert isinstance(found, Timeline)
    return found


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_the_share_of_a_saving_in_few_steps_is_that_of_many(steps: int) -> None:
    # The loader delays each step but the last, of which what comes before the next front is missing.
    program: list[Instruction] = [Place("data", (Host(10 * MS),)), *[Launch(4 * MS)] * 5, Wait()]
    explanation = explain_run(inputs_of(simulate([program], steps)))[0]
    first, step = explanation.shown()[0], explanation.step
    assert first.cause is Cause.HOST_WORK
    assert first.share_pct == pytest.approx(100 * 10 / 30, abs=0.5)
    assert step.elapsed_ns == pytest.approx(30 * MS, abs=0.1 * MS)


@pytest.mark.parametrize(
    ("name", "long"), [("augment", 9 * MS), ("ncclDevKernel_AllReduce", 9 * MS), ("", US)]
)
def test_a_stream_whose_kernels_others_wait_for_is_named_with_what_that_costs(name: str, long: int) -> None:
    side = Launch(long, 21, name=name or "augment", collective=name.startswith("nccl"))
    program = training(forward=(StreamWait(21, 7), side, StreamWait(7, 21)))
    found = explain_run(inputs_of(simulate([program] * 2, STEPS)))[0]
    said = [one.reason for one in found.not_judged if one.what == STREAM_WAITS]
    assert len(said) == (name == "augment")
    assert all(
        "most for augment in forward. If they ran at once, a step would take up to 9.0" in one for one in said
    )


def test_a_capture_without_a_period_is_one_step_and_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def source(steps: int, *, marked: bool) -> Explanation:
        program: list[Instruction] = [Host(20 * MS), Launch(5 * MS), Host(5 * US), Launch(5 * MS), Wait()]
        timelines = simulate([program], steps)
        if not marked:
            timelines = {0: replace(timelines[0], ranges=Ranges.empty())}
        return explain_run(inputs_of(timelines))[0]

    found = source(2, marked=False)
    assert (found.step.source, found.step.steps) == ("capture", 1)
    (first,) = found.shown()
    assert (first.cause, first.where) == (Cause.HOST_WORK, "whole capture")
    # From the first launch on; the pause before it is not in the capture.
    assert first.saving_ns == pytest.approx(20 * MS, rel=0.01)
    assert conclusion(found)[0].startswith("No step was found, so all judged work is one:")
    assert [source(12, marked=one).step.source for one in (False, True)] == ["kernels", "range"]
    monkeypatch.setattr("hpcprof.analysis.explain.explain.CALL_COST_NS", {"nsys": 20 * MS})
    (doubt, *_) = source(2, marked=False).not_judged
    assert re.match(r"it seems to cost \S+ ms of the judged work, but the profiler", doubt.reason)


def test_a_hidden_cost_of_the_only_place_is_listed_once() -> None:
    program: list[Instruction] = [Launch(500 * MS), Memory(100 * MS), Launch(50 * MS)]
    timelines = {0: replace(simulate([program], 1)[0], ranges=Ranges.empty())}
    found = explain_run(inputs_of(timelines))[0]
    assert [(one.cause, one.where) for one in found.hidden] == [(Cause.DEVICE_ALLOCATION, "whole capture")]


def test_a_capture_without_a_kernel_is_no_step() -> None:
    memset = Launch(2 * US, name="[CUDA memset]", category=Category.MEM)
    timelines = {0: replace(simulate([[Host(MS), memset]], 1)[0], ranges=Ranges.empty())}
    found = explain_run(inputs_of(timelines))[0]
    assert found.step.source is None
    assert conclusion(found)[0].startswith("No step was found, so savings are unknown")


def test_a_hidden_cost_names_the_finding_after_which_it_limits_the_step() -> None:
    def rank(kernel: int) -> list[Instruction]:
        joint = Launch(MS, collective=True)
        return [Place("data", (Host(15 * MS),)), Place("forward", (Launch(kernel), joint))]

    late = explain_run(inputs_of(simulate([rank(10 * MS), rank(30 * MS)], 8)))[0]
    assert late.shown()[0].cause == Cause.LATE_RANK_GPU
    (hidden,) = late.hidden
    assert (hidden.cause, hidden.limits_after) == (Cause.HOST_WORK, Earlier("late_rank_gpu", "forward"))
    assert "limits the step once extra GPU time is gone" in hidden_cost(hidden, late)
    (always,) = explain_run(inputs_of(simulate([rank(30 * MS)] * 2, 8)))[0].hidden
    assert always.limits_after is None


def test_the_most_blocks_of_a_kernel_are_known_where_the_profile_has_shapes() -> None:
    """Rebuilt from a public export: a kernel with one block of 256 threads took 1 s on an A100."""
    exported = made.timeline([(10, 20, made.COMP, 5, 0), (30, 40, made.COMP, 25, 0)])
    whole = replace(exported, origin=replace(exported.origin, kind="torch"))
    shapes = {"grid": np.array([[1, 1, 1], [3, 2, 1]]), "block": np.array([[256, 1, 1], [1, 1, 1]])}
    kernels = replace(whole.kernels, **shapes)
    strings = np.array(["add<float>(int)", *whole.strings[1:]], object)
    assert most_blocks([replace(whole, kernels=kernels, strings=strings)], "add") == 1
    assert most_blocks([whole], "kernel") == 0 and most_blocks([whole], "add") == 0
    # A kernel of one thread, which an export of nsys tells from one without a shape.
    assert most_blocks([replace(exported, strings=strings)], "add") == 1


def test_steps_on_a_device_that_is_not_read_are_steps() -> None:
    (timeline,) = simulate([[Place("forward", (Host(MS),))]], STEPS).values()
    unread = Loss(LossKind.CATEGORY, Subject.EVENT, 5, None, "mtia_runtime")
    origin = replace(timeline.origin, losses=(unread,))
    found = explain_run(inputs_of({0: replace(timeline, origin=origin)}))[0]
    assert found.step.steps == STEPS
    assert conclusion(found)[0].startswith("Savings are unknown: without work on a GPU")


def test_savings_of_a_single_step_leave_the_work_of_the_gpu() -> None:
    """Rebuilt from AMD-AGI/TraceLens bert-small: the host works before the first of many short kernels."""
    program: list[Instruction] = [Host(2 * MS), *(Host(60 * US), Launch(9 * US)) * 60]
    found = explain_run(inputs_of(simulate([program], 1)))[0]
    assert len(found.shown()) == 2
    saved = sum(one.saving_ns or 0 for one in found.shown())
    assert saved <= (found.step.elapsed_ns or 0) - 60 * 9 * US
