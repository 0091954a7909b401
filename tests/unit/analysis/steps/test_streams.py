"""Waits of streams, lengths of their queues, and memory of the allocator."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from statistics import mean, quantiles, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.gpu_time.breakdown import idle, queue_length
from hpcprof.analysis.gpu_time.hta_breakdown import hta_breakdown
from hpcprof.analysis.summaries.memory import memory_usage
from hpcprof.profiles.timeline import HOST, Allocations, ApiCalls, Origin, Timeline, concatenate
from tests.unit.analysis.timelines import COMM, COMP, MEM, timeline

US = 1000

times = st.integers(0, 200 * US)
operations = st.lists(
    st.tuples(
        times, st.integers(0, 50 * US), st.sampled_from([COMP, COMM, MEM]), st.none() | times,
        st.just(0), st.integers(0, 1), st.integers(0, 1),
    ).map(lambda row: (row[0], row[0] + row[1], *row[2:])),
    min_size=1, max_size=14,
)  # fmt: skip


def causes(rows: list[tuple[Any, ...]]) -> dict[tuple[int, int, str], int]:
    """Return idle time by device, stream and cause."""
    found = idle(timeline(rows)).rows
    return {(row["device"], row["stream"], row["cause"]): row["idle_ns"] for row in found.to_dict("records")}


def as_torch(timeline_: Timeline) -> Timeline:
    """Say that a timeline is of a PyTorch trace."""
    return dataclasses.replace(timeline_, origin=Origin(timeline_.origin.path, "torch"))


def test_a_gap_waits_for_the_host_where_the_launch_came_after_the_end() -> None:
    # On stream 3: launched late, launched in time, and after a gap of exactly the threshold.
    rows = [
        (0, 10 * US, COMP, 0, 0, 0, 3),
        (25 * US, 30 * US, COMP, 11 * US, 0, 0, 3),
        (35 * US, 40 * US, COMP, 12 * US, 0, 0, 3),
        (70 * US, 80 * US, COMP, 13 * US, 0, 0, 3),
    ]
    found = idle(timeline(rows)).rows.to_dict("records")
    assert found == [
        {"device": 0, "stream": 3, "cause": "host_wait", "idle_ns": 15 * US, "share_pct": 30.0},
        {"device": 0, "stream": 3, "cause": "kernel_wait", "idle_ns": 5 * US, "share_pct": 10.0},
        {"device": 0, "stream": 3, "cause": "other", "idle_ns": 30 * US, "share_pct": 60.0},
    ]


def test_a_launch_at_the_very_end_is_no_host_wait() -> None:
    assert causes([(0, 10, COMP, 0), (15, 20, COMP, 10)])[0, 0, "kernel_wait"] == 5


def test_a_gap_begins_where_the_longest_operation_before_it_ends() -> None:
    assert causes([(0, 20, COMP, 0), (5, 10, COMP, 0), (25, 30, COMP, 0)])[0, 0, "kernel_wait"] == 5


def test_of_several_calls_with_one_number_the_first_is_the_launch() -> None:
    whole = timeline([(0, 10, COMP, 0), (40, 50, COMP, 5)])
    later = whole.calls.take(np.array([1]))
    later = dataclasses.replace(later, start=later.start + 25, end=later.end + 25)
    for calls in ((whole.calls, later), (later, whole.calls)):
        found = idle(dataclasses.replace(whole, calls=concatenate(ApiCalls, calls))).rows
        assert found["idle_ns"].tolist() == [0, 30, 0]


def test_a_stream_that_never_waits_has_no_shares() -> None:
    found = idle(timeline([(0, 10, COMP, 0), (10, 20, COMP, 0)])).rows
    assert found["share_pct"].tolist() == [None, None, None]


def test_gaps_beside_an_operation_of_unknown_launch_are_left_out_and_counted() -> None:
    outcome = idle(timeline([(0, 10, COMP), (15, 20, COMP, 0), (30, 40, COMP, 1), (50, 60, COMP)]))
    assert outcome.rows["idle_ns"].tolist() == [0, 10, 0]
    assert (
        outcome.reason
        == "2 of 3 gaps in rank00000.sqlite are left out, because a launch call was not recorded"
    )


def test_idle_without_gaps_or_launches_is_one_sentence() -> None:
    assert (
        idle(timeline([(0, 10, COMP)])).reason
        == "no operation of rank00000.sqlite has a recorded launch call"
    )
    one_each = [(0, 10, COMP, 0, 0, 0, 1), (0, 10, COMP, 0, 0, 0, 2)]
    assert idle(timeline(one_each)).reason == "no stream of rank00000.sqlite has two operations"


@given(operations)
def test_idle_is_what_going_through_each_stream_gives(rows: list[tuple[Any, ...]]) -> None:
    expected: dict[tuple[int, int, str], int] = defaultdict(int)
    for device in (0, 1):
        for stream in (0, 1):
            # Kernels come before memory operations in a timeline, whatever their order was.
            mine = sorted(
                (r for r in sorted(rows, key=lambda r: r[2] == MEM) if r[5:] == (device, stream)),
                key=lambda r: r[:2],
            )
            for i in range(1, len(mine)):
                if mine[i][3] is None or mine[i - 1][3] is None:
                    continue
                ended = max(r[1] for r in mine[:i])
                gap = max(mine[i][0] - ended, 0)
                cause = "host_wait" if mine[i][3] > ended else "kernel_wait" if gap < 30 * US else "other"
                expected[device, stream, cause] += gap
    assert {k: v for k, v in causes(rows).items() if v} == {k: v for k, v in expected.items() if v}


def test_a_queue_grows_with_a_launch_and_shrinks_with_a_start() -> None:
    found = queue_length(
        timeline([(10, 20, COMP, 1), (20, 30, COMP, 2), (30, 40, MEM, 3), (0, 5, COMP)])
    ).rows
    # 1 2 3 after the launches, 2 1 0 after the starts.
    assert found.to_dict("records") == [
        {"device": 0, "stream": 0, "count": 6, "mean": 1.5, "stddev": 1.05, "min": 0}
        | {"p25": 1.0, "p50": 1.5, "p75": 2.0, "max": 3}
    ]


def test_a_launch_at_the_moment_of_a_start_comes_first() -> None:
    found = queue_length(timeline([(10, 15, COMP, 1), (20, 30, COMP, 10)])).rows
    assert (found["min"].tolist(), found["max"].tolist()) == ([0], [2])


@given(operations)
def test_queue_lengths_are_those_of_counting(rows: list[tuple[Any, ...]]) -> None:
    found = queue_length(timeline(rows)).rows
    expected = []
    for device in (0, 1):
        for stream in (0, 1):
            mine = [r for r in rows if r[5:] == (device, stream) and r[3] is not None]
            changes = sorted([(r[3], 0, 1) for r in mine] + [(r[0], 1, -1) for r in mine])
            lengths = [sum(c[2] for c in changes[: i + 1]) for i in range(len(changes))]
            if lengths:
                p25, p50, p75 = quantiles(lengths, n=4, method="inclusive")
                moments = len(lengths), mean(lengths), stdev(lengths)
                expected.append([device, stream, *moments, min(lengths), p25, p50, p75, max(lengths)])
    assert [pytest.approx(list(row), abs=0.011) for row in found.itertuples(index=False)] == expected


def test_the_most_memory_is_what_pytorch_counted_itself(allocator: Timeline) -> None:
    found = memory_usage(allocator).rows.set_index("device").loc["0"]
    # torch.cuda.max_memory_allocated() and memory_reserved() in the same process.
    assert (found["allocated_max_bytes"], found["reserved_max_bytes"]) == (139468800, 146800640)
    assert found["count"] == 134


def test_memory_is_summarized_for_each_device() -> None:
    def column(*values: int) -> Any:
        return np.array(values, np.int64)

    table = Allocations(
        time=column(1, 2, 3, 4),
        device=column(HOST, 1, 1, 1),
        bytes=column(8, 4, 4, -4),
        allocated=column(8, 4, 8, 4),
        reserved=column(0, 10, 10, 30),
    )
    found = memory_usage(dataclasses.replace(timeline(), allocations=table)).rows.to_dict("records")
    assert [row["device"] for row in found] == ["host", "1"]
    assert found[1] == {
        "device": "1",
        "count": 3,
        **{f"allocated_{k}_bytes": v for k, v in {"min": 4, "mean": 5, "p50": 4, "p95": 4, "max": 8}.items()},
        **{
            f"reserved_{k}_bytes": v
            for k, v in {"min": 10, "mean": 17, "p50": 10, "p95": 10, "max": 30}.items()
        },
    }


def test_in_htas_microseconds_a_short_kernel_alone_lasts_less_than_nothing() -> None:
    # 1.2 to 1.8 us becomes 2 to 1.
    rows = [(0, 1000, COMP), (1200, 1800, COMP), (5000, 9000, COMM), (8500, 9500, MEM)]
    (row,) = hta_breakdown(as_torch(timeline(rows))).rows.to_dict("records")
    assert row == {
        "idle_time_us": 5,
        # The name of every operation here is "kernel", which is compute to it.
        "compute_time_us": 4,
        "non_compute_time_us": 0,
        "kernel_time_us": 9,
        "idle_time_pctg": 55.56,
        "compute_time_pctg": 44.44,
        "non_compute_time_pctg": 0.0,
    }


def test_hta_reads_no_exports_of_nsight_systems(sequence_parallel: Timeline) -> None:
    assert hta_breakdown(sequence_parallel).reason == (
        "rank00000.sqlite is not a PyTorch trace, the only input of HolisticTraceAnalysis"
    )
