"""Profiles of torch_npu: a made-up trace in the folder that it makes."""

import json
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.discovery import find_profiles, identify_rank, read_profile
from hpcprof.profiles.timeline import NO_CORRELATION, Category, Timeline
from tests.data import ascend_trace as made


def folder_of(folder: Path, rank: int) -> Path:
    """Write the folder of a rank, as torch_npu does."""
    profile = folder / f"node0_{4711 + rank}_20240102031511_ascend_pt"
    output = profile / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "trace_view.json").write_bytes(made.trace(counters=True))
    (profile / f"profiler_info_{rank}.json").write_text("{}")
    return profile


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    timeline = read_profile(folder_of(tmp_path, 1))
    assert isinstance(timeline, Timeline)
    return timeline


def test_folders_side_by_side_are_profiles_of_their_ranks(tmp_path: Path) -> None:
    folders = [folder_of(tmp_path, rank) for rank in (0, 1)]
    assert find_profiles(tmp_path) == folders
    assert [identify_rank(folder) for folder in folders] == [0, 1]
    assert identify_rank(folders[1] / "ASCEND_PROFILER_OUTPUT" / "trace_view.json") == 1


def test_tasks_are_kernels_and_copies_at_their_times_and_operations_of_hccl_communicate(
    timeline: Timeline,
) -> None:
    kernels, copies = timeline.kernels, timeline.memops
    rows = np.flatnonzero(kernels.start < made.BASE_US * 1000 + made.STEP_US * 1000)
    start, length = kernels.start[rows] // 1000 - made.BASE_US, (kernels.end - kernels.start)[rows] // 1000
    columns = (start.tolist(), length.tolist(), kernels.category[rows].tolist())
    assert sorted(zip(*columns, timeline.names(kernels.name[rows]), strict=True)) == [
        (100, 200, int(Category.COMP), "aclnnMatmul_MatMulV2_MatMulV2"),
        (250, 150, int(Category.COMM), "hcom_allReduce__606"),
        (300, 50, int(Category.COMP), "aclnnAdd_Add_Add"),
    ]
    # A task of HCCL is part of its operation, and a wait is no work.
    assert timeline.names(copies.name) == ["MEMCPY_ASYNC"] * made.STEPS
    assert timeline.origin.start_utc_ns == 0
    assert {loss.detail: loss.count for loss in timeline.origin.losses} == {"HBM": made.STEPS}
    table = analyze_rank(ANALYSES["rank_collectives"], timeline, 0).frame
    assert [*zip(table["op"], table["exposed_ns"], strict=True)] == [("AllReduce", 50_000)] * made.STEPS


def test_kernels_are_launched_by_the_call_that_their_arrow_begins_in(timeline: Timeline) -> None:
    kernels, calls = timeline.kernels, timeline.calls
    launched = kernels.correlation[kernels.category == Category.COMP]
    assert NO_CORRELATION not in launched
    of_launch = calls.take(np.isin(calls.correlation, launched))
    assert (len(of_launch), {*timeline.names(of_launch.name)}) == (2 * made.STEPS, {"AscendCL@aclnnMatmul"})
    assert {*calls.process.tolist()} == {made.PYTHON}


def test_steps_ranges_and_operators_are_told_apart(timeline: Timeline) -> None:
    steps = steps_of(timeline)
    assert (steps.name, steps.number.tolist()) == ("ProfilerStep#N", [3, 4])
    assert {*timeline.names(timeline.operators.name)} == {"aten::mm", "Conv2D", "Dequeue@Conv2D"}
    assert "forward" in timeline.names(timeline.ranges.name)


def test_kernels_are_of_the_operator_that_the_queue_of_tasks_executes(tmp_path: Path) -> None:
    events = json.loads(made.trace())
    for event in events:
        if event.get("cat") == "dequeue":
            event.update(pid=made.PYTHON, tid=11, ts=f"{float(event['ts']) + 5:.3f}", dur=60)
    (tmp_path / "trace_view.json").write_text(json.dumps(events))
    timeline = read_profile(tmp_path / "trace_view.json")
    assert isinstance(timeline, Timeline)
    table = analyze_rank(ANALYSES["operators"], timeline, 0).frame.set_index("name")
    assert table["self_gpu_ns"].to_dict()["Dequeue@Conv2D"] == 2 * 250_000


def test_a_folder_without_a_trace_says_how_to_write_one(tmp_path: Path) -> None:
    folder = tmp_path / "node0_1_ascend_pt"
    folder.mkdir()
    (folder / "analysis.db").touch()
    with pytest.raises(DamagedInput, match=r"has no ASCEND_PROFILER_OUTPUT/trace_view\.json"):
        read_profile(folder)


def test_numbers_of_another_type_cost_their_task_alone(tmp_path: Path) -> None:
    events = json.loads(made.trace())
    tasks = [event for event in events if event["pid"] == made.NPU and event["ph"] == "X"]
    tasks[0]["args"]["Stream Id"] = [1]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    timeline = read_profile(path)
    assert isinstance(timeline, Timeline)
    assert len(timeline.kernels) == 3 * made.STEPS
    assert [(loss.count, loss.detail) for loss in timeline.origin.losses] == [(1, "stream")]
