"""A replay gives the moments that a simulation of the same program gives, changed or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.collectives.matches import MatchedGroup
from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.removals import Removals, _ratio_to_equal, _Shares
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.explain.replayable import Replayable, replayable
from hpcprof.analysis.explain.run_graph import CommonClock, Coupler
from hpcprof.profiles.timeline import Category, Synchronizations
from tests.unit.analysis.explain.programs import (
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Place,
    StreamWait,
    Wait,
    inputs_of,
    simulate,
)

STEPS = 6


def replay_of(programs: Sequence[Sequence[Instruction]], steps: int = STEPS) -> Replay:
    built = replayable(inputs_of(simulate(programs, steps)))
    assert isinstance(built, Replayable)
    return Replay(built.graph)


def walls(replay: Replay, change: Callable[[Removals, Times], Times] | None = None) -> list[int]:
    times = replay.measured
    if change is not None:
        times = change(Removals(replay), times)
    found: list[int] = replay.walls(replay.moments(times)).tolist()
    return found


def forward(*kernels: int) -> Place:
    return Place("forward", tuple(Launch(ns) for ns in kernels))


def all_reduce(ns: int) -> tuple[Instruction, ...]:
    """As DistributedDataParallel does it: on a stream of its own, before the optimizer."""
    return StreamWait(17, 7), Launch(ns, 17, collective=True), StreamWait(7, 17)


def test_a_wait_for_a_whole_gpu_is_known_by_its_name_where_the_profile_records_none() -> None:
    inputs = inputs_of(simulate([(Host(50 * US), forward(MS), Launch(2 * MS, 17), Wait(None))], STEPS))
    timeline = replace(inputs.read(0), synchronizations=Synchronizations.empty())
    recorded, unrecorded = replayable(inputs), replayable(replace(inputs, read=lambda _: timeline))
    assert isinstance(recorded, Replayable) and isinstance(unrecorded, Replayable)
    assert unrecorded.graph.inferred_waits == 0
    assert walls_of(unrecorded) == walls_of(recorded)


def test_a_few_copies_that_queued_oddly_delay_no_other_copy() -> None:
    """Rebuilt from a public export: cudaFree ended each step, and only one copy had queued."""
    copy = Launch(US, category=Category.MEM, name="copy")
    alone = (copy, Launch(70 * US), Wait(None)) * 10
    inputs = inputs_of(simulate([(Launch(100 * US), copy, Host(500 * US), Wait(None), *alone)], STEPS))
    timeline = inputs.read(0)
    later = np.where(np.arange(len(timeline.memops)) % 11 == 0, 300 * US, 0)
    memops = replace(timeline.memops, start=timeline.memops.start + later, end=timeline.memops.end + later)
    built = replayable(replace(inputs, read=lambda _: replace(timeline, memops=memops)))
    assert isinstance(built, Replayable)
    measured = Replay(built.graph).walls(built.graph.observed).tolist()
    assert walls_of(built) == pytest.approx(measured, rel=0.02)
    (late,) = (problem.reason for problem in built.problems if problem.what == "late starts")
    assert late.startswith("operations start 299.5 µs a step later than")


def test_operations_that_start_late_at_the_same_time_count_once() -> None:
    """Rebuilt from a public trace with six streams: 837 ms "a step" of 214 ms."""
    step = (Host(900 * US), Launch(100 * US), Launch(100 * US, 17), Wait(None))
    inputs = inputs_of(simulate([step], STEPS))
    timeline = inputs.read(0)
    later = np.where(np.arange(len(timeline.kernels)) // 2 == 1, 400 * US, 0)
    kernels = timeline.kernels
    shifted = replace(kernels, start=kernels.start + later, end=kernels.end + later)
    built = replayable(replace(inputs, read=lambda _: replace(timeline, kernels=shifted)))
    assert isinstance(built, Replayable)
    assert built.graph.odd_ns == pytest.approx(400 * US, rel=0.02)


def walls_of(built: Replayable) -> list[int]:
    replay = Replay(built.graph)
    found: list[int] = replay.walls(replay.unchanged).tolist()
    return found


def test_no_step_is_shorter_than_its_work_allows() -> None:
    """Rebuilt from a public trace, AMD-AGI/TraceLens resnet_act_checkpoint: only launches came earlier."""
    program = [(Host(50 * US), forward(2 * MS, 3 * MS), Wait())] * 1
    replay = replay_of(program, 3)
    measured = replay.elapsed(replay.graph.observed)
    early = replay.graph.observed.copy()
    early[replay.graph.front] -= 2 * MS * np.arange(replay.graph.front.shape[1])
    assert replay.elapsed(early) == pytest.approx(measured, abs=100 * US)
    all_of_it = replay.graph.observed - 2 * MS * replay.graph.observed // (5 * MS)
    assert replay.elapsed(all_of_it).mean() < measured.mean()


def test_an_unchanged_replay_gives_every_step_of_the_simulation() -> None:
    rank = [Place("data", (Host(3 * MS),)), forward(2 * MS, 3 * MS), *all_reduce(MS), Launch(MS), Wait()]
    late = [Place("data", (Host(5 * MS),)), forward(2 * MS, 4 * MS), *all_reduce(MS), Launch(MS), Wait()]
    replay = replay_of([rank, late])
    assert walls(replay) == pytest.approx(replay.walls(replay.graph.observed).tolist(), abs=50 * US)


@pytest.mark.parametrize("sleep", [1 * MS, 8 * MS, 30 * MS])
def test_without_the_sleep_the_step_is_that_of_the_program_without_it(sleep: int) -> None:
    def program(ns: int) -> list[Instruction]:
        return [Place("data", (Host(ns),)), forward(*[MS] * 10), *all_reduce(MS), Launch(MS)]

    replay = replay_of([program(sleep), program(sleep)])
    without = replay_of([program(0), program(0)])
    predicted = walls(replay, lambda removals, times: removals.host_time(times, "data", long=True))
    assert np.median(predicted) == pytest.approx(np.median(walls(without)), rel=0.01)


def test_work_of_the_host_that_hides_behind_the_gpu_saves_nothing() -> None:
    program = [Place("data", (Host(4 * MS),)), forward(*[MS] * 10)]
    replay = replay_of([program])
    predicted = walls(replay, lambda removals, times: removals.host_time(times, "data", long=True))
    assert predicted[1:-1] == pytest.approx(walls(replay)[1:-1], rel=0.002)


def test_without_the_waits_the_host_runs_ahead_as_in_the_program_without_them() -> None:
    def program(*waits: Instruction) -> list[Instruction]:
        layer = (Host(300 * US), Launch(500 * US), *waits)
        return [Place("forward", layer * 8), Place("optimizer", (Launch(MS),))]

    replay, without = replay_of([program(Wait())]), replay_of([program()])

    def change(removals: Removals, times: Times) -> Times:
        return removals.waits(times, removals.calls_in("forward", (CallKind.WAIT,)))

    assert np.median(walls(replay, change)) == pytest.approx(np.median(walls(without)), rel=0.02)


def test_without_a_blocking_copy_neither_its_stream_nor_its_host_waits() -> None:
    def program(*copy: Instruction) -> list[Instruction]:
        return [Place("data", (Host(MS), *copy)), forward(*[MS] * 6)]

    copy = Launch(5 * MS, category=Category.MEM, blocks=True)
    replay, without = replay_of([program(copy)]), replay_of([program()])
    predicted = walls(replay, lambda removals, times: removals.copies(times, "data"))
    assert np.median(predicted) == pytest.approx(np.median(walls(without)), rel=0.02)


@pytest.mark.parametrize("late", ["host", "gpu"])
def test_a_rank_with_the_times_of_the_others_holds_nobody_up(late: str) -> None:
    def program(host: int, kernel: int) -> list[Instruction]:
        return [Place("data", (Host(host),)), forward(kernel, 2 * MS), *all_reduce(MS), Launch(MS), Wait()]

    slow = program(9 * MS, 3 * MS) if late == "host" else program(MS, 9 * MS)
    usual = program(MS, 3 * MS)
    replay, without = replay_of([usual, slow, usual]), replay_of([usual] * 3)

    def change(removals: Removals, times: Times) -> Times:
        return removals.late_host(times, 1) if late == "host" else removals.late_gpu(times, 1)

    assert np.median(walls(replay, change)) == pytest.approx(np.median(walls(without)), rel=0.01)


@pytest.mark.parametrize("streams", [1, 150], ids=["one stream", "many streams"])
def test_streams_without_work_pass_on_what_they_wait_for(streams: int) -> None:
    def program(kernel: int) -> list[Instruction]:
        chain = [17, *range(21, 21 + streams), 7]
        passed_on = [StreamWait(stream, source) for source, stream in pairwise(chain)]
        return [
            forward(kernel, 2 * MS),
            StreamWait(17, 7),
            Launch(MS, 17, collective=True),
            *passed_on,
            Launch(MS),
        ]

    replay, without = replay_of([program(2 * MS), program(9 * MS)]), replay_of([program(2 * MS)] * 2)
    predicted = walls(replay, lambda removals, times: removals.late_gpu(times, 1))
    assert np.median(predicted) == pytest.approx(np.median(walls(without)), rel=0.01)


def rooted(root: int, *, gathers: bool) -> tuple[Instruction, ...]:
    """A broadcast from a rank, or a reduce to it, on a stream of its own."""
    return StreamWait(23, 7), Launch(MS, 23, collective=True, root=root, gathers=gathers), StreamWait(7, 23)


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("gathers", [False, True])
def test_a_broadcast_waits_for_its_root_and_the_root_of_a_reduce_for_all(gathers: bool, late: int) -> None:
    def program(kernel: int) -> list[Instruction]:
        own = rooted(1, gathers=gathers)
        return [forward(2 * MS, kernel), *own, Launch(4 * MS), *all_reduce(MS), Launch(MS), Wait()]

    usual, slow = program(2 * MS), program(7 * MS)
    replay = replay_of([slow if rank == late else usual for rank in range(3)])
    assert walls(replay) == pytest.approx(replay.walls(replay.graph.observed).tolist(), abs=50 * US)
    # One rank waits less than it did, so the other two see who the root is, and the all-reduce follows.
    predicted = walls(replay, lambda removals, times: removals.late_gpu(times, late))
    assert np.median(predicted) == pytest.approx(np.median(walls(replay_of([usual] * 3))), rel=0.01)


def test_only_the_receivers_of_a_broadcast_wait_for_its_root() -> None:
    def program(before: int, after: int) -> list[Instruction]:
        return [
            forward(before),
            *rooted(1, gathers=False),
            Launch(after),
            *all_reduce(MS),
            Launch(MS),
            Wait(),
        ]

    usual, root, receiver = program(2 * MS, 6 * MS), program(5 * MS, 6 * MS), program(MS, 9 * MS)
    replay, without = (
        replay_of([usual, root, receiver]),
        replay_of([usual, program(3 * MS // 2, 6 * MS), receiver]),
    )
    # The root gets the median of the others.
    predicted = walls(replay, lambda removals, times: removals.late_gpu(times, 1))
    assert np.median(predicted) == pytest.approx(np.median(walls(without)), rel=0.01)


@pytest.mark.parametrize("ahead_ns", [-30 * US, 30 * US])
def test_clocks_some_microseconds_apart_do_not_hide_the_root_of_a_broadcast(ahead_ns: int) -> None:
    """As in a pipeline on two H200: the last stage sends its results 29 ms after the first one has come."""

    def program(kernel: int) -> list[Instruction]:
        broadcast = StreamWait(23, 7), Launch(5 * US, 23, collective=True, root=1), StreamWait(7, 23)
        return [forward(kernel), *broadcast, Launch(4 * MS), *all_reduce(MS), Launch(MS), Wait()]

    inputs = inputs_of(simulate([program(2 * MS), program(9 * MS)], STEPS))
    built = replayable(replace(inputs, clocks={0: RankClock.shifted(0), 1: RankClock.shifted(ahead_ns)}))
    assert isinstance(built, Replayable)
    predicted = walls(Replay(built.graph), lambda removals, times: removals.late_gpu(times, 1))
    assert np.median(predicted) == pytest.approx(np.median(walls(replay_of([program(2 * MS)] * 2))), rel=0.01)


def two_gpus(first: int, second: int) -> list[Instruction]:
    """A process with two GPUs, as DataParallel uses them: the streams of both have the same numbers."""
    return [
        Place("data", (Host(MS),)),
        Place("scatter", (Launch(MS, category=Category.MEM), Launch(MS, category=Category.MEM, device=1))),
        Place("forward", (Launch(first), Launch(second, device=1), Launch(second, device=1))),
        StreamWait(13, 7, device=1, source_device=1),
        Launch(2 * MS, 13, device=1),
        StreamWait(7, 13, device=1, source_device=1),
        StreamWait(7, 7, source_device=1),
        Place("gather", (Launch(MS, category=Category.MEM),)),
        Wait(None),
    ]


@pytest.mark.parametrize(("first", "second"), [(9, 3), (3, 9)])
def test_two_gpus_of_a_process_wait_for_each_other_only_by_events(first: int, second: int) -> None:
    replay = replay_of([two_gpus(first * MS, second * MS)])
    assert walls(replay) == pytest.approx(replay.walls(replay.graph.observed).tolist(), abs=50 * US)
    without = replay_of([two_gpus(min(first, 4) * MS, min(second, 4) * MS)])

    def change(_: Removals, times: Times) -> Times:
        work = replay.graph.work
        return times.with_alone(np.where(work.end - work.start == 9 * MS, 4 * MS, times.alone))

    assert np.median(walls(replay, change)) == pytest.approx(np.median(walls(without)), rel=0.01)


def test_a_wait_for_one_gpu_does_not_wait_for_the_other() -> None:
    def program(other: int) -> list[Instruction]:
        return [Launch(2 * MS), Launch(other, device=1), Wait(None), Host(3 * MS), Wait(7, device=1)]

    replay, without = replay_of([program(4 * MS)]), replay_of([program(MS)])
    assert walls(replay) == pytest.approx(replay.walls(replay.graph.observed).tolist(), abs=50 * US)

    def change(_: Removals, times: Times) -> Times:
        work = replay.graph.work
        return times.with_alone(np.where(work.end - work.start == 4 * MS, MS, times.alone))

    assert np.median(walls(replay, change)) == pytest.approx(np.median(walls(without)), rel=0.01)


@pytest.mark.parametrize("early", [1 * MS, 2_000 * MS])
def test_an_operation_that_starts_before_everything_happens_when_it_happened(early: int) -> None:
    program = [Launch(2 * MS), Launch(MS, 13), Wait(), *all_reduce(MS), Launch(MS), Wait()]
    timelines = simulate([program, program], STEPS)
    kernels = timelines[1].kernels
    start = kernels.start.copy()
    start[len(start) // 2] = min(kernels.start.min(), timelines[1].calls.start.min()) - early
    timelines[1] = replace(timelines[1], kernels=replace(kernels, start=start))
    built = replayable(inputs_of(timelines))
    assert isinstance(built, Replayable)
    replay = Replay(built.graph)
    first = int(np.argmin(built.graph.observed[1:])) + 1
    assert replay.unchanged[first] == built.graph.observed[first]


durations = st.integers(20, 4000).map(lambda us: us * US)
instructions = st.one_of(
    durations.map(Host),
    st.builds(Launch, durations, st.sampled_from([7, 13])),
    st.builds(Wait, st.sampled_from([7, 13])),
    st.just(StreamWait(13, 7)),
    st.just(StreamWait(7, 13)),
    st.builds(lambda ns: Launch(ns, category=Category.MEM, blocks=True), durations),
)


@example(
    [Host(2428 * US), Launch(3625 * US, 13), StreamWait(7, 13), Host(385 * US), Wait()], 33 * US, 20 * US
)
@settings(max_examples=15, deadline=None)
@given(st.lists(instructions, min_size=1, max_size=12), durations, durations)
def test_random_programs_are_replayed_as_they_were(
    inside: list[Instruction], kernel: int, communication: int
) -> None:
    program = [Launch(kernel), *inside, *all_reduce(communication), Launch(kernel)]
    replay = replay_of([program, [Host(MS), *program]])
    observed = replay.walls(replay.graph.observed).tolist()
    assert walls(replay) == pytest.approx(observed, rel=0.03, abs=100 * US)


def test_a_late_operation_of_a_stream_that_had_kept_up_is_not_held_to_its_moment() -> None:
    half = tuple(Launch(MS) for _ in range(3))
    (timeline,) = simulate([[*half, Wait(), Host(100 * MS), *half]], 1).values()
    kernels, later = timeline.kernels, np.append(np.zeros(5, np.int64), 10 * MS)
    late = replace(kernels, start=kernels.start + later, end=kernels.end + later)
    first = explain_run(inputs_of({0: replace(timeline, kernels=late)}))[0].shown()[0]
    assert first.cause == Cause.HOST_WORK
    assert first.saving_ns == pytest.approx(100 * MS, rel=0.1)


def test_a_program_without_compute_has_no_time_to_make_equal() -> None:
    none = np.zeros(0, np.int64)
    shares = _Shares.of(none, none, (), none, np.zeros(0), 2)
    assert not len(_ratio_to_equal(shares, np.zeros(2, np.int64)))


def test_a_sender_waits_until_its_receiver_has_made_room() -> None:
    """As two stages on two H200: the sixth message took 3.7 ms, until the third had been received."""
    send = np.array([[0, 100], [1000, 1100], [2000, 2100], [3000, 5120]])
    receive = np.array([[0, 110], [2500, 2600], [5000, 5100], [7000, 7100]])
    begun = np.stack((send[:, 0], receive[:, 0]), axis=1)
    kernels = {rank: {int(begun[row, rank]): 4 * rank + row for row in range(4)} for rank in (0, 1)}
    clock = CommonClock({rank: RankClock.shifted(0) for rank in (0, 1)}, {0: 0, 1: 0}, {0: 0, 1: 0})
    coupler = Coupler(kernels, np.concatenate((send, receive)).ravel(), 0, clock)
    none = np.zeros(4, np.int64)
    coupler.couple_messages([MatchedGroup("message", np.array([0, 1]), none, begun, none, True)])
    edges = coupler.edges()
    is_end = edges.target == 2 * 3 + 1
    assert edges.lag[is_end].tolist() == [120]
    (waited,) = (each for each in coupler.couplings if each.node == edges.source[is_end][0])
    assert waited.work.tolist() == [3, 4 + 2]
