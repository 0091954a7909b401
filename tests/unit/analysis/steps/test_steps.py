"""Steps and phases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.account.step_account import step_parts
from hpcprof.analysis.steps.phases import phases, step_times, steps, steps_summary
from hpcprof.analysis.steps.step_ranges import OUTSIDE, step_numbers
from hpcprof.profiles.timeline import StepRange, Timeline
from tests.unit.analysis.timelines import COMP, timeline

STEP = [(0, 100, "iteration"), (10, 20, "forward"), (30, 60, "backward")]


def test_the_phases_of_real_steps(sequence_parallel: Timeline) -> None:
    rows = phases(sequence_parallel).rows.set_index("phase")
    assert rows.index.tolist() == ["allgather", "matmul_1", "matmul_2", "reduce_scatter", "(rest)"]
    assert set(rows["steps"]) == {43}
    assert rows.loc["matmul_1", "gpu_span_p50_ns"] == 1430061
    # Its wall time also has the gap until the next phase begins on the GPU.
    assert rows.loc["matmul_1", "p50_ns"] == 1431597


def test_the_times_of_real_steps(sequence_parallel: Timeline) -> None:
    times = step_times(sequence_parallel).rows
    assert times["step"].tolist() == list(range(43))
    assert np.median(times["gpu_span_ns"]) == 3649009
    # From one front to the next, as a query of the export gives it; the program says 3.65 ms.
    assert np.median(times["wall_ns"]) == 3651857


def test_profiler_steps_are_steps_where_none_is_named_iteration(torch_step: Timeline) -> None:
    assert step_times(torch_step).rows["gpu_span_ns"].tolist() == [125901456]
    names = phases(torch_step).rows["phase"].tolist()
    assert "DistributedDataParallel.forward" in names
    assert "nccl:all_reduce" not in names


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        # A counter of the program is the number of its steps, with the gaps of PyTorch's schedules.
        (["ProfilerStep#7"], [7]),
        (["ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#15"], [5, 6, 15]),
        (["step 100", "step 110", "step 120", "step 130", "step 140"], [100, 110, 120, 130, 140]),
        # Without one, and where the number counts something else, steps are counted from 0.
        (["iteration", "iteration", "iteration"], [0, 1, 2]),
        (["at 17", "at 20", "at 30", "at 31", "at 50"], [0, 1, 2, 3, 4]),
    ],
)
def test_steps_have_the_numbers_of_the_program(names: list[str], numbers: list[int]) -> None:
    ranges = [(100 * place, 100 * place + 90, name) for place, name in enumerate(names)]
    work = [(start + 20, start + 80, COMP, start + 10) for start, _, _ in ranges]
    made = timeline(work, ranges)
    assert step_times(made).rows["step"].tolist() == numbers
    assert step_parts(made).rows["step"].tolist() == numbers
    moments = np.array([start + 10 for start, _, _ in ranges] + [95])
    assert step_numbers(made, moments).tolist() == [*numbers, OUTSIDE]


@pytest.mark.parametrize(
    ("captured", "numbers"),
    [
        ((), [0, 1, 2]),
        (((5, 7),), [5, 6, 7]),
        (((2, 3), (8, 9)), [2, 3, 8]),
        # A capture that ended early has the first of them; more steps than were captured are others.
        (((5, 24),), [5, 6, 7]),
        (((5, 6),), [0, 1, 2]),
    ],
)
def test_iterations_have_the_numbers_of_the_steps_that_the_job_captured(
    captured: tuple[tuple[int, int], ...], numbers: list[int]
) -> None:
    marks = [(200 * i, 200 * i + 100, "iteration", 0) for i in range(3)]
    made = timeline([(10, 20, COMP, 5), (210, 220, COMP, 205), (410, 420, COMP, 405)], marks)
    made = replace(made, origin=replace(made.origin, captured=captured))
    assert step_times(made).rows["step"].tolist() == numbers
    others = [(start, end, "my_loop", thread) for start, end, _, thread in marks]
    named = timeline([(10, 20, COMP, 5)], others)
    named = replace(named, origin=made.origin, step_range=StepRange("my_loop", named=True))
    assert step_times(named).rows["step"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("marks", "numbers"),
    [
        # The mark of a step begins where the optimizer ended the one before.
        ([(0, 190, 5), (190, 390, 6), (390, 600, 7)], [5, 6, 7]),
        # One mark for several iterations, and an iteration before all marks, tell nothing.
        ([(0, 390, 5), (390, 600, 6)], [0, 1, 2]),
        ([(190, 390, 6), (390, 600, 7)], [0, 1, 2]),
    ],
)
def test_iterations_have_the_numbers_that_the_profiler_marks(
    marks: list[tuple[int, int, int]], numbers: list[int]
) -> None:
    iterations: list[tuple[Any, ...]] = [(200 * i + 5, 200 * i + 195, "iteration") for i in range(3)]
    marked = [(start, end, f"ProfilerStep#{number}") for start, end, number in marks]
    made = timeline([(10, 20, COMP, 8), (210, 220, COMP, 208), (410, 420, COMP, 408)], iterations + marked)
    assert step_times(made).rows["step"].tolist() == numbers


def test_launches_of_other_threads_count_in_a_phase() -> None:
    rows = phases(timeline([(15, 25, COMP, 12), (50, 90, COMP, 35, 1), (95, 99, COMP, 40, 2)], STEP)).rows
    spans = dict(zip(rows["phase"], rows["gpu_span_p50_ns"], strict=True))
    assert spans == {"forward": 10, "backward": 49, "(rest)": 0}


def test_occurrences_of_a_phase_in_a_step_are_united() -> None:
    ranges = [(0, 100, "iteration"), (10, 20, "layer"), (30, 40, "layer"), (50, 60, "layer")]
    work = [(10, 30, COMP, 12), (25, 40, COMP, 32), (60, 70, COMP, 55)]
    rows = phases(timeline(work, ranges)).rows
    assert rows[["phase", "steps", "gpu_span_p50_ns"]].values.tolist() == [["layer", 1, 40], ["(rest)", 1, 0]]


def test_only_direct_children_without_a_library_prefix_are_phases() -> None:
    ranges: list[tuple[Any, ...]] = [
        *STEP,
        (11, 12, "inner"),
        (70, 80, "nccl:all_reduce"),
        (81, 82, "gloo:all_reduce"),
        (200, 210, "out"),
    ]
    ranges += [(83, 84, None), (85, 86, "other thread", 5)]
    rows = phases(timeline([(15, 25, COMP, 11)], ranges)).rows
    assert rows["phase"].tolist() == ["forward", "backward", "(rest)"]
    assert rows["gpu_span_p50_ns"].tolist() == [10, 0, 0]


def test_a_cpu_trace_is_measured_on_the_host() -> None:
    trace = timeline([], STEP)
    assert step_times(trace).rows.values.tolist() == [[0, 100, None]]
    assert step_times(trace).reason == (
        "the steps of rank00000.sqlite have no work on the GPU and are measured on the host"
    )
    assert phases(trace).rows["p50_ns"].tolist() == [10, 30, 60]
    assert phases(trace).rows["gpu_span_p50_ns"].tolist() == [None, None, None]
    assert phases(trace).reason == "no GPU work in rank00000.sqlite: phases are measured on the host"


def test_a_step_without_gpu_work_is_measured_on_the_host() -> None:
    trace = timeline([(155, 165, COMP, 150)], [(0, 100, "iteration"), (100, 200, "iteration")])
    found = step_times(trace)
    assert found.rows.values.tolist() == [[0, 100, None], [1, 45, 10]]
    assert found.reason.startswith("1 of 2 steps of rank00000.sqlite have no work on the GPU")


def test_without_steps_a_sentence_says_so() -> None:
    trace = timeline([(15, 25, COMP, 15)], [(0, 100, "epoch")])
    for outcome in (step_times(trace), phases(trace)):
        assert len(outcome.rows) == 0
        assert outcome.reason.startswith("no steps in rank00000.sqlite")
    assert phases(timeline([(1, 2, COMP, 1)], STEP[:1])).reason.startswith("no phases in")


def results(rows: list[tuple[int, int, int]]) -> dict[str, pd.DataFrame]:
    """Return step times as a run analysis gets them."""
    times = pd.DataFrame(rows, columns=["rank", "step", "wall_ns"])
    return {"step_times": times.assign(gpu_span_ns=times["wall_ns"] - 1)}


def test_a_step_is_as_slow_as_its_slowest_rank_and_ties_name_the_lowest() -> None:
    times = results([(2, 0, 30), (1, 0, 30), (0, 0, 11), (0, 1, 9), (1, 1, 5), (2, 1, 4)])
    rows = steps(times).rows
    assert rows.columns.tolist() == ["step", "p50_ns", "max_ns", "min_ns", "slowest_rank"]
    assert rows.values.tolist() == [[0, 30, 30, 11, 1], [1, 5, 9, 4, 0]]
    summary = steps_summary(times).rows.iloc[0]
    assert (summary["steps"], summary["ranks"], summary["max_ns"], summary["min_ns"]) == (2, 3, 30, 9)
    assert (summary["p50_ns"], summary["mean_ns"], summary["stddev_ns"]) == (20, 20, 15)
    assert summary["gpu_span_p50_ns"] == 18


def test_the_span_of_some_steps_is_not_compared_with_the_time_of_all() -> None:
    times = results([(0, 0, 9_000), (0, 1, 50)])["step_times"]
    times.loc[1, "gpu_span_ns"] = None
    summary = steps_summary({"step_times": times})
    assert summary.reason == "1 of 2 steps have no work on the GPU"


def test_no_step_times_give_no_row_and_a_reason() -> None:
    assert "no steps" in steps(results([])).reason
    assert "no steps" in steps_summary(results([])).reason
