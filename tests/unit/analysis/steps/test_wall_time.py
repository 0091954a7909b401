"""Wall time: of steps from front to front, and its division among phases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.steps.phases import compare_times, phase_times, phases, step_times, steps_summary
from hpcprof.analysis.steps.wall_time import begins_ahead, wall_intervals
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.timelines import COMM, COMP, MEM, timeline

MS = 1_000_000
TWO_STEPS = [(0, 100, "iteration"), (100, 200, "iteration")]


def times(trace: Timeline) -> list[list[Any]]:
    """Return the number, the wall time and the GPU span of each step."""
    rows: list[list[Any]] = step_times(trace).rows.values.tolist()
    return rows


def walls(trace: Timeline) -> dict[str, list[int]]:
    """Return the number of steps and the median wall time of each phase."""
    rows = phases(trace).rows
    return {row["phase"]: [row["steps"], row["p50_ns"]] for row in rows.to_dict("records")}


def test_a_step_runs_from_its_front_to_the_next_and_the_last_until_all_of_it_has_ended() -> None:
    # The second step's work ends after its range on the host, and before it.
    late = timeline([(10, 30, COMP, 5), (120, 260, COMP, 110)], TWO_STEPS)
    assert times(late) == [[0, 110, 20], [1, 140, 140]]
    early = timeline([(10, 30, COMP, 5), (120, 130, COMP, 110)], TWO_STEPS)
    assert times(early) == [[0, 110, 20], [1, 80, 10]]


def test_steps_whose_copies_run_far_ahead_last_from_the_end_of_the_work_before() -> None:
    """The copy of the next input is the first operation of a step, on a stream of its own."""
    steps = [(10 * at, 10 * at + 9, "iteration") for at in range(8)]
    copies = [(10 * at + 2, 10 * at + 4, MEM, 10 * at + 1, 0, 0, 9) for at in range(8)]
    kernels = [(100 * at + 5, 100 * at + 105, COMP, 10 * at + 3) for at in range(8)]
    assert [wall for _, wall, _ in times(timeline([*copies, *kernels], steps))] == [103, *[100] * 7]


def test_a_single_step_begins_with_its_host_unless_the_gpu_does_earlier_work() -> None:
    """Rebuilt from a public trace of one inference: most of it came before its first kernel."""
    step = [(0, 400 * MS, "ProfilerStep#6")]
    kernel = (220 * MS, 380 * MS, COMP, 219 * MS)
    assert times(timeline([kernel], step)) == [[6, 400 * MS, 160 * MS]]
    before = (-5 * MS, 90 * MS, COMP, -6 * MS)
    assert times(timeline([before, kernel], step)) == [[6, 310 * MS, 160 * MS]]
    # The latency of a launch is no work of the host.
    assert times(timeline([(60_000, 380 * MS, COMP, 20_000)], step))[0][1] == 400 * MS - 60_000
    two = [*step, (400 * MS, 800 * MS, "ProfilerStep#7")]
    assert times(timeline([kernel, (620 * MS, 780 * MS, COMP, 619 * MS)], two))[0][1] == 400 * MS


def test_a_phase_spans_the_gpu_from_the_front_of_its_step_on() -> None:
    """Rebuilt from a public trace of a decoding step behind a full queue: the rest spanned 45 steps."""
    early, late = (1 * MS, 2 * MS, COMP, MS // 2, 0, 0, 9), (91 * MS, 95 * MS, COMP, 2 * MS)
    ranges = [(0, 400 * MS, "ProfilerStep#6"), (3 * MS, 300 * MS, "decode")]
    rows = phases(timeline([early, late, (220 * MS, 380 * MS, COMP, 219 * MS)], ranges)).rows
    spans = dict(zip(rows["phase"], rows["gpu_span_p50_ns"], strict=True))
    assert spans == {"decode": 160 * MS, "(rest)": 4 * MS}


def test_the_front_is_the_first_start_of_any_thread_and_stream() -> None:
    work = [(40, 60, COMP, 5), (20, 30, COMM, 6, 1, 0, 9), (130, 140, COMP, 110)]
    assert times(timeline(work, TWO_STEPS))[0] == [0, 110, 40]


def test_a_step_without_gpu_work_between_others_is_measured_on_the_host() -> None:
    ranges = [(0, 100, "iteration"), (100, 140, "iteration"), (140, 200, "iteration")]
    work = [(10, 30, COMP, 5), (150, 160, COMP, 145)]
    # The first one ends like a last step, but not after the next front.
    assert times(timeline(work, ranges)) == [[0, 90, 20], [1, 40, None], [2, 50, 10]]
    behind = [(10, 145, COMP, 5), (150, 160, COMP, 145)]
    assert times(timeline(behind, ranges))[0] == [0, 135, 135]
    overlapping = [(10, 170, COMP, 5), (150, 160, COMP, 145)]
    assert times(timeline(overlapping, ranges))[0] == [0, 140, 160]


def test_a_front_that_overtakes_the_one_before_makes_no_negative_time() -> None:
    work = [(60, 90, COMP, 5), (50, 55, COMM, 110, 0, 0, 9), (130, 140, COMP, 111)]
    assert times(timeline(work, TWO_STEPS)) == [[0, 0, 30], [1, 140, 90]]


def test_of_ranges_inside_each_other_the_outermost_is_the_step() -> None:
    ranges = [*TWO_STEPS, (10, 50, "iteration"), (110, 120, "iteration")]
    assert [row[1] for row in times(timeline([(5, 9, COMP, 1), (105, 109, COMP, 101)], ranges))] == [100, 95]


def test_steps_on_threads_one_after_another_all_count() -> None:
    ranges = [(0, 100, "iteration", 1), (100, 200, "iteration", 2)]
    assert len(times(timeline([(10, 30, COMP, 5)], ranges))) == 2


def test_of_threads_that_mark_steps_at_the_same_time_the_busiest_counts() -> None:
    ranges: list[tuple[Any, ...]] = [(0, 100, "iteration", 1), (100, 200, "iteration", 1)]
    ranges += [(a, a + 30, "iteration", 2) for a in range(10, 190, 40)]
    assert [row[1] for row in times(timeline([(5, 9, COMP, 1), (105, 109, COMP, 101)], ranges))] == [100, 95]


def test_overlapping_steps_are_divided_at_their_fronts() -> None:
    ranges = [(0, 120, "iteration"), (100, 220, "iteration")]
    work = [(10, 90, COMP, 5), (130, 140, COMP, 110), (150, 230, COMP, 130)]
    # The launch at 110 belongs to both, so the second front is at 130.
    assert times(timeline(work, ranges)) == [[0, 120, 130], [1, 100, 100]]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(0, 200), st.integers(0, 90)), min_size=1
    )
)
def test_walls_of_steps_with_work_add_up_from_the_first_front_to_the_end(
    rows: list[tuple[int, int, int, int]],
) -> None:
    gap, length, lag, busy = np.array(rows, np.int64).T
    host_start = np.cumsum(gap + length) - length
    host_end = host_start + length
    front = host_start + lag
    last = front + busy
    start, end = wall_intervals(front, last, np.ones(len(rows), bool), host_start, host_end)
    assert np.all(end >= start)
    ahead = begins_ahead(np.maximum.accumulate(front), np.maximum.accumulate(last))
    end_of_work = last.max() if ahead else last[-1]
    assert np.sum(end - start) == max(front.max(), end_of_work, host_end[-1]) - front[0]


def test_ranges_that_end_before_they_start_take_no_negative_time() -> None:
    damaged = timeline(
        [], [(100, 50, "iteration"), (60, 55, "forward"), (200, 300, "iteration"), (250, 240, "a")]
    )
    assert [row[1] for row in times(damaged)] == [0, 100]
    assert (phases(damaged).rows["mean_ns"] >= 0).all()


def garbage_collector(hidden: bool) -> Timeline:
    """Return ten steps of 4 ms on the GPU and 53 ms of garbage collection, alone or behind the GPU."""
    period = 60 * MS
    ranges: list[tuple[Any, ...]] = []
    work: list[tuple[Any, ...]] = []
    for step in range(10):
        begin = step * period
        ranges += [(begin, begin + 58 * MS, "iteration"), (begin + MS, begin + 2 * MS, "forward")]
        ranges += [(begin + 4 * MS, begin + 57 * MS, "gc")]
        length = 60 * MS if hidden else 3 * MS
        work.append((begin + 2 * MS, begin + 2 * MS + length, COMP, begin + MS + 5))
    return timeline(work, ranges)


def test_garbage_collection_that_the_gpu_waits_for_is_in_the_wall_time_and_in_its_phase() -> None:
    trace = garbage_collector(hidden=False)
    assert times(trace)[0] == [0, 60 * MS, 3 * MS]
    # The GPU ends at 5 ms, while the host already collects.
    assert walls(trace)["gc"] == [10, 52 * MS]
    assert phases(trace).rows["gpu_span_p50_ns"].tolist() == [3 * MS, 0, 0]
    summary = steps_summary({"step_times": step_times(trace).rows.assign(rank=0)})
    assert summary.reason == (
        "the median wall time of a step is 60.00 ms, the median span on the GPU 3.000 ms (5.0 %)"
    )


def test_the_phases_of_each_step_add_up_to_its_wall_time() -> None:
    trace = garbage_collector(hidden=False)
    rows = phase_times(trace).rows
    assert rows["phase"].tolist() == ["forward", "gc", "(rest)"] * 10
    assert rows["step"].tolist() == [step for step in range(10) for _ in range(3)]
    walls_of_steps = [wall for _, wall, _ in times(trace)]
    assert rows.groupby("step")["wall_ns"].sum().tolist() == walls_of_steps
    assert rows["wall_ns"].tolist()[1] == 52 * MS
    nothing = phase_times(timeline([(10, 30, COMP, 5)], []))
    assert not len(nothing.rows) and nothing.reason


def test_garbage_collection_behind_the_gpu_takes_no_wall_time() -> None:
    trace = garbage_collector(hidden=True)
    assert walls(trace) == {"forward": [10, 60 * MS], "gc": [10, 0], "(rest)": [10, 0]}


def test_a_difference_of_two_percent_is_not_worth_a_sentence() -> None:
    assert compare_times(100, 98) == ""
    assert compare_times(100, None) == ""
    assert compare_times(1000, 979)
    assert compare_times(1000, 1021)


def test_work_that_another_thread_launches_outside_phases_is_in_the_rest() -> None:
    ranges = [(0, 100, "iteration"), (5, 20, "forward"), (80, 90, "optimizer")]
    work = [(10, 40, COMP, 6), (40, 120, COMP, 30, 7), (120, 125, COMP, 81)]
    found = phases(timeline(work, ranges)).rows.set_index("phase")
    assert found["p50_ns"].to_dict() == {"forward": 30, "optimizer": 5, "(rest)": 80}
    assert found["gpu_span_p50_ns"].to_dict() == {"forward": 30, "optimizer": 5, "(rest)": 80}


def test_the_backward_pass_of_a_real_trace_is_in_the_rest(torch_step: Timeline) -> None:
    found = phases(torch_step).rows.set_index("phase")
    assert found.loc["DistributedDataParallel.forward", "p50_ns"] == pytest.approx(42.7e6, rel=0.01)
    assert found.loc["(rest)", "gpu_span_p50_ns"] == pytest.approx(82.8e6, rel=0.01)
    assert found["mean_ns"].sum() == pytest.approx(step_times(torch_step).rows["wall_ns"].sum(), abs=5)


marks = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 60), st.sampled_from(["a", "b", "c"])), max_size=12
)
operations = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 80), st.integers(0, 60), st.integers(0, 2)), max_size=12
)


@given(marks, operations)
def test_phases_and_the_rest_add_up_to_the_steps(
    inside: list[tuple[int, int, str]], work: list[tuple[int, int, int, int]]
) -> None:
    ranges = [(s, s + 100, "iteration") for s in range(0, 400, 100)]
    phases_in_steps = [(s, min(s + n, s - s % 100 + 100), name) for s, n, name in inside]
    trace = timeline(
        [(at + lag, at + lag + n, COMP, at, 0, 0, stream) for at, lag, n, stream in work],
        [*ranges, *phases_in_steps],
    )
    rows: pd.DataFrame = phases(trace).rows
    if len(rows):
        total = (rows["steps"] * rows["mean_ns"]).sum()
        assert total == pytest.approx(step_times(trace).rows["wall_ns"].sum(), abs=float(rows["steps"].sum()))
