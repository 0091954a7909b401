"""Impossible times are left out or corrected, and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.timeline import Synchronizations, SyncKind, Timeline
from tests.unit.analysis.timelines import COMM, COMP, timeline

US, MS = 1_000, 1_000_000
EPOCH = 1_700_000_000_000_000_000


def kernels(count: int = 20, begin: int = MS) -> list[tuple[Any, ...]]:
    """Return kernels of 100 us on one stream, 1 ms apart, each launched 10 us before it starts."""
    starts = range(begin, begin + count * MS, MS)
    return [(start, start + 100 * US, COMP, start - 10 * US, 0, 0, 7) for start in starts]


def ordered(rows: list[tuple[Any, ...]]) -> Timeline:
    found = timeline(rows)
    return replace(found, origin=replace(found.origin, ordered_streams=True))


def kinds(found: Timeline) -> list[tuple[str, int, int | None]]:
    return [(loss.kind.value, loss.count, loss.of) for loss in found.origin.losses]


def test_possible_times_stay_as_they_are() -> None:
    whole = ordered(kernels())
    assert with_possible_times(whole) is whole


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ((0, 0, COMP, 4_990 * US, 0, 0, 7), "start"),
        ((5 * MS, 0, COMP, 4_990 * US, 0, 0, 7), "end"),
        ((5 * MS, 5 * MS - 1, COMP, 4_990 * US, 0, 0, 7), "end"),
        ((1 << 62, (1 << 62) + 1, COMP, 4_990 * US, 0, 0, 7), "start"),
    ],
)
def test_a_row_without_a_possible_stamp_is_left_out(row: tuple[Any, ...], field: str) -> None:
    found = with_possible_times(ordered([*kernels(), row]))
    assert len(found.kernels) == 20
    (loss,) = found.origin.losses
    assert (loss.kind, loss.subject, loss.count, loss.of, loss.detail) == (
        LossKind.ROW,
        Subject.KERNEL,
        1,
        21,
        field,
    )
    # One with a start still begins steps.
    assert found.unended_kernels.start.tolist() == [5 * MS] * (field == "end")
    assert found.unended_kernels.end.tolist() == [5 * MS] * (field == "end")


def test_a_start_of_0_on_a_clock_that_began_long_before_is_no_time() -> None:
    found = with_possible_times(ordered([*kernels(begin=EPOCH), (0, 100 * US, COMP, EPOCH, 0, 0, 7)]))
    assert kinds(found) == [("row", 1, 21)]
    assert found.kernels.start.min() == EPOCH


def test_a_kernel_that_runs_into_others_of_its_queue_for_a_time_that_it_never_takes_is_left_out() -> None:
    """Rebuilt from AMD-AGI/TraceLens#669: kernels of a queue all end when a stall of the profiler does."""
    rows = kernels(40)
    for row in range(10, 13):
        rows[row] = (rows[row][0], 30 * MS, *rows[row][2:])
    assert kinds(with_possible_times(timeline(rows))) == [("overrun", 3, 40)]
    # Kernels side by side that take a few times longer, and those that wait for other ranks, stay.
    beside = [(start, start + 400 * US, *row) for start, _, *row in kernels(40)]
    slow = [
        (start, start + 1_200 * US, *row) if at % 5 == 0 else (start, _, *row)
        for at, (start, _, *row) in enumerate(beside)
    ]
    assert not with_possible_times(timeline(slow)).origin.losses
    crowd = [(50 * MS + 2 * US * at, 51 * MS + 200 * US, COMP, None, 0, 0, 7) for at in range(12)]
    assert not with_possible_times(timeline([*kernels(40), *crowd])).origin.losses
    rows = [(start, end, COMM, *row) for start, end, _, *row in rows]
    assert not with_possible_times(timeline(rows)).origin.losses


def test_an_operation_that_starts_before_its_launch_is_left_out() -> None:
    rows = kernels()
    rows[5] = (rows[5][0] - 900 * US, rows[5][1] - 900 * US, *rows[5][2:])
    assert kinds(with_possible_times(ordered(rows))) == [("early", 1, 20)]


@pytest.mark.parametrize("offset", [-5 * MS, -300 * US])
def test_a_clock_of_a_gpu_that_is_behind_is_shifted_to_its_launches(offset: int) -> None:
    rows = [(start + offset, end + offset, *rest) for start, end, *rest in kernels(begin=20 * MS)]
    found = with_possible_times(ordered(rows))
    assert kinds(found) == [("clock", 20, 20)]
    assert abs(int(found.kernels.start[0]) - 20 * MS) <= 20 * US
    assert "behind the host's: 20 of 20 GPU operations are shifted" in found.origin.losses[0].sentence


@pytest.mark.parametrize(
    "wait", ["cudaDeviceSynchronize", "cudaStreamSynchronize_v3020", "hipStreamSynchronize"]
)
def test_a_clock_of_a_gpu_that_is_ahead_is_shifted_to_the_calls_that_wait(wait: str) -> None:
    rows = [(start + 4 * MS, end + 4 * MS, *rest) for start, end, *rest in kernels()]
    ahead = ordered(rows)
    waits = [replace(ahead.calls, end=ahead.calls.start + 115 * US, start=ahead.calls.start + 5 * US)]
    texts = np.append(ahead.strings, wait)
    columns = {
        name: np.concatenate((getattr(ahead.calls, name), getattr(waits[0], name)))
        for name in ahead.calls.__match_args__
    }
    columns["name"][20:], columns["correlation"][20:] = 2, np.arange(100, 120)
    found = with_possible_times(replace(ahead, strings=texts, calls=type(ahead.calls)(**columns)))
    assert kinds(found) == [("clock", 20, 20)]
    assert abs(int(found.kernels.start[0]) - MS) <= 20 * US


def test_waits_for_single_streams_bound_the_clocks_of_several_gpus() -> None:
    rows = [
        (start + 4 * MS * at, end + 4 * MS * at, *rest, 0, at, 7)
        for at in (0, 1)
        for start, end, *rest in ([*row[:4]] for row in kernels())
    ]
    both = ordered(rows)
    number = np.array([0] * 20 + [1] * 20)
    columns = {name: np.zeros(40, np.int64) for name in Synchronizations.__match_args__}
    columns |= {"start": both.calls.start + 5 * US, "end": both.calls.start + 115 * US, "device": number}
    columns |= {"kind": np.full(40, int(SyncKind.STREAM)), "stream": both.kernels.stream}
    found = with_possible_times(replace(both, synchronizations=Synchronizations(**columns)))
    assert kinds(found) == [("clock", 20, 40)]
    assert abs(int(found.kernels.start[20]) - MS) <= 20 * US and found.kernels.start[0] == MS


def test_an_operation_over_a_whole_successor_on_its_own_stream_is_left_out() -> None:
    rows = kernels()
    rows[5] = (rows[5][0], rows[5][0] + 3 * MS, *rows[5][2:])
    found = with_possible_times(ordered(rows))
    assert kinds(found) == [("overrun", 1, 20)]
    # Stamps that overlap say nothing against a kernel of usual length.
    inside = kernels()
    begin, end, *_ = inside[5]
    inside[6] = (begin + 2 * US, end - 2 * US, COMP, begin, 0, 0, 7)
    assert not with_possible_times(ordered(inside)).origin.losses
    # Another stream runs beside.
    beside = [*kernels(), (2 * MS, 9 * MS, COMM, 2 * MS - 10 * US, 0, 0, 13)]
    assert not with_possible_times(ordered(beside)).origin.losses


def test_the_nodes_of_one_launch_and_streams_without_an_order_may_overlap() -> None:
    graph = ordered(kernels(4))
    shared = replace(graph.kernels, end=graph.kernels.start + 5 * MS, correlation=np.zeros(4, np.int64))
    shared = replace(shared, end=shared.end[::-1].copy())
    assert not with_possible_times(replace(graph, kernels=shared)).origin.losses


def test_an_operation_that_ends_long_after_the_capture_is_left_out() -> None:
    rows = kernels()
    rows[-1] = (rows[-1][0], rows[-1][0] + 2_000 * MS, *rows[-1][2:])
    assert kinds(with_possible_times(ordered(rows))) == [("overrun", 1, 20)]


def test_ranges_that_never_end_are_counted_but_not_those_that_the_capture_cuts() -> None:
    def losses_of(*closed: int) -> list[str]:
        found = timeline([], [(i * MS, 9 * MS, "step") for i in range(3)] + [(0, 9 * MS, "main")])
        ranges = replace(found.ranges, closed=np.array([*closed, 0]))
        return [loss.sentence for loss in with_possible_times(replace(found, ranges=ranges)).origin.losses]

    assert losses_of(1, 1, 0) == []
    assert losses_of(0, 0, 0) == ["2 of 4 ranges have no end, and are open until the end of the capture"]


def test_the_first_event_of_a_clock_that_begins_with_it_may_start_at_0() -> None:
    rows = [(0, 200 * MS, COMP, None), *kernels(begin=200 * MS)]
    assert not with_possible_times(timeline(rows)).origin.losses


@pytest.mark.parametrize("gap", [40 * US, 400 * US], ids=["busy", "idle"])
@pytest.mark.parametrize("kind", ["clock", "same", "random"])
def test_a_clock_and_wrong_rows_are_told_apart_on_a_simulated_gpu(kind: str, gap: int) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        launch = 10 * MS + np.cumsum(rng.exponential(gap, 200).astype(np.int64))
        length = 2 * US + rng.exponential(60 * US, 200).astype(np.int64)
        start, free = np.zeros(200, np.int64), 0
        for at in range(200):
            start[at] = max(int(launch[at]) + int(rng.uniform(4, 9) * US), free + 1500)
            free = int(start[at] + length[at])
        back = np.full(200, int(rng.choice([200, 1000, 5000])) * US)
        if kind != "clock":
            back[~np.isin(np.arange(200), rng.choice(200, int(rng.integers(1, 21)), replace=False))] = 0
        if kind == "random":
            back = (back * rng.uniform(0.2, 1, 200)).astype(np.int64)
        early = start - back < launch - 20 * US
        columns = zip((start - back).tolist(), (start - back + length).tolist(), launch.tolist(), strict=True)
        rows = [(begin, end, COMP, at, 0, 0, 7) for begin, end, at in columns]
        found = kinds(with_possible_times(ordered(rows)))
        # Fewer than five early rows cannot tell of a clock.
        expected = kind == "clock" and np.count_nonzero(early) >= 5
        assert ("clock" in {name for name, *_ in found}) == expected


def test_rows_that_go_back_by_the_same_time_are_no_clock() -> None:
    rows = [
        (start - 5 * MS, end - 5 * MS, *rest) if at % 3 == 0 else (start, end, *rest)
        for at, (start, end, *rest) in enumerate(kernels(30, begin=20 * MS))
    ]
    assert kinds(with_possible_times(ordered(rows))) == [("early", 10, 30)]


def test_an_event_of_the_host_that_outlives_the_capture_while_its_thread_went_on_is_left_out() -> None:
    def kinds_with(*lasting: tuple[int, int, str]) -> list[tuple[str, int, int | None]]:
        steps = [(at * MS, at * MS + 900 * US, "step") for at in range(10) if at not in {3, 9}]
        return kinds(with_possible_times(timeline([], [*steps, (9 * MS, 9_900 * US, "step"), *lasting])))

    assert kinds_with((3 * MS, 5_003 * MS, "step")) == [("overrun", 1, 10)]
    assert kinds_with((3 * MS, 5_003 * MS, "step"), (3_100 * US, 6_003 * MS, "step")) == [("overrun", 2, 11)]
    # These end as the capture does, have no later ones beside them, or are alone.
    assert not kinds_with((3 * MS, 9_900 * US, "step"))
    assert not kinds_with((9_100 * US, 5_003 * MS, "step"))
    assert not kinds_with((0, 5_003 * MS, "main"))
