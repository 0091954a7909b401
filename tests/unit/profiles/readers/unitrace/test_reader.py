"""The reader of unitrace's traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.readers.discovery import files_of, find_profiles, identify_rank, read_profile, reader_of
from hpcprof.profiles.scrub.names import Names
from hpcprof.profiles.scrub.unitrace import scrub
from hpcprof.profiles.timeline import Category, Timeline
from tests.data import unitrace_trace as made


def read(folder: Path, events: list[dict[str, Any]] | None = None, **how: bool) -> Timeline:
    path = folder / "rank0.unitrace.json"
    path.write_text(made.text(events, **how))
    profile = read_profile(path)
    assert isinstance(profile, Timeline)
    return profile


def test_kernels_have_names_shapes_tiles_and_classes(tmp_path: Path) -> None:
    timeline = read(tmp_path)
    kernels = timeline.kernels
    assert timeline.names(kernels.name)[:2] == [made.GEMM, "oneapi::ccl::allreduce"]
    assert kernels.category[:2].tolist() == [Category.COMP, Category.COMM]
    assert (kernels.grid[0].tolist(), kernels.block[0].tolist()) == ([40, 4, 1], [256, 1, 1])
    assert kernels.device[:2].tolist() == [0, 1]
    assert int((kernels.end - kernels.start)[0]) == 100_250
    assert int(kernels.start[0]) == (made.BASE_US + 70) * 1000
    assert [(gpu.device, gpu.name) for gpu in timeline.origin.gpus] == [
        (0, "Intel(R) Data Center GPU Max 1550"),
        (1, "Intel(R) Data Center GPU Max 1550"),
    ]
    assert timeline.origin.losses == ()


def test_arrows_join_operations_with_the_calls_that_they_begin_in(tmp_path: Path) -> None:
    timeline = read(tmp_path)
    operation, call = launch_pairs(timeline)
    names = zip(
        timeline.names(timeline.operations().name[operation]),
        timeline.names(timeline.calls.name[call]),
        strict=True,
    )
    assert len(operation) == 3 * made.STEPS
    assert {*names} == {
        (made.GEMM, "zeCommandListAppendLaunchKernel"),
        ("oneapi::ccl::allreduce", "zeCommandListAppendLaunchKernel"),
        ("[L0 memcpy Pageable-to-Device]", "zeCommandListAppendMemoryCopy"),
    }


def test_copies_barriers_ranges_and_mpi_have_tables_of_their_own(tmp_path: Path) -> None:
    timeline = read(tmp_path)
    assert timeline.memops.bytes.tolist() == [1 << 20] * made.STEPS
    assert {*timeline.memops.host_memory.tolist()} == {HostMemory.PAGEABLE}
    assert {*timeline.names(timeline.gpu_marks.name)} == {"zeCommandListAppendBarrier"}
    assert timeline.names(timeline.ranges.name) == ["iteration"] * made.STEPS
    assert timeline.names(timeline.mpi_calls.name) == ["MPI_Allreduce"] * made.STEPS


def test_the_rank_and_host_are_those_of_the_metadata_else_of_file_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "rank_7.train.4711/chrome_trace.json"
    path.parent.mkdir()
    path.write_text(made.text(made.events(rank=3)))
    origin = read_profile(path).origin
    assert (origin.rank, origin.host, identify_rank(path)) == (3, "x4204c0s0b0n0", 3)
    path.write_text(made.text(made.events()[3:]))
    assert (read_profile(path).origin.rank, identify_rank(path)) == (7, 7)


@pytest.mark.parametrize("cut", [0, 40])
def test_a_trace_of_a_killed_program_gives_what_is_whole_in_it(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "rank0.unitrace.json"
    whole = made.text(closed=False)
    path.write_text(whole[: len(whole) - cut])
    timeline = read_profile(path)
    assert isinstance(timeline, Timeline)
    assert len(timeline.kernels) == 2 * made.STEPS
    assert len(timeline.mpi_calls) == made.STEPS - bool(cut)
    assert [loss.kind for loss in timeline.origin.losses] == [LossKind.ROW] * bool(cut)


def test_a_kernel_in_implicit_scaling_is_on_its_tile(tmp_path: Path) -> None:
    events = made.events()
    kernels = [event for event in events if event.get("cat") == "gpu_op" and "gemm" in event["name"]]
    for number, event in enumerate(kernels):
        event["name"] = f"Tile #{number % 2}: {event['name']}"
    timeline = read(tmp_path, events)
    chosen = np.array(timeline.names(timeline.kernels.name)) == made.GEMM
    assert len({*timeline.kernels.device[chosen].tolist()}) == 2


def test_ranges_of_two_events_are_joined_and_those_without_a_begin_or_end_counted(tmp_path: Path) -> None:
    events = made.events()
    begin = {"ph": "B", "tid": made.TID, "pid": made.PID, "name": "submit", "cat": "cpu_op", "id": 0}
    events += [{**begin, "ts": made.BASE_US + 1}, {**begin, "ts": made.BASE_US + 2, "name": "inner"}]
    events += [{**begin, "ph": "E", "ts": made.BASE_US + 5.5}]
    events += [{**begin, "ph": "E", "ts": made.BASE_US, "tid": made.TID + 1}]
    timeline = read(tmp_path, events)
    ranges = dict(zip(timeline.names(timeline.ranges.name), timeline.ranges.end.tolist(), strict=True))
    assert ranges["inner"] == made.BASE_US * 1000 + 5_500
    assert [(loss.count, loss.detail) for loss in timeline.origin.losses] == [(1, "start"), (1, "end")]


@pytest.mark.parametrize("content", ['{ "traceEvents":[\n', '{"schemaVersion": 1}'])
def test_what_is_no_trace_is_a_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.unitrace.json"
    path.write_text(content)
    with pytest.raises(DamagedInput, match="unitrace"):
        read_profile(path)


COUNTERS = """
=== Device #0 Metrics ===

Kernel,GlobalInstanceId,SubDeviceId,GpuTime[ns],XVE_ACTIVE[%],L3_BYTE_READ[bytes],ReportReason
{gemm}[SIMD16 {{40; 4; 1}} {{256; 1; 1}}],2,0,100,40,1024,1
{gemm}[SIMD16 {{40; 4; 1}} {{256; 1; 1}}],2,1,90,60,1000,1

gemm_kernel,12,0,80,50.5,7,1
gemm_kernel,999,0,80,50.5,7,1
gemm_kernel,12,0,80
"""


@pytest.mark.parametrize("table", ["rank0.metrics_0.csv", "metrics_0.csv", "metrics/metrics_0.csv"])
def test_counters_beside_a_trace_are_those_of_kernels(table: str, tmp_path: Path) -> None:
    trace = tmp_path / ("rank0.unitrace.json" if table.startswith("rank0") else "chrome_trace.json")
    trace.write_text(made.text())
    (tmp_path / table).parent.mkdir(exist_ok=True)
    (tmp_path / table).write_text(COUNTERS.format(gemm=made.GEMM))
    (tmp_path / "rank01.metrics_0.csv").write_text("of another rank")
    assert files_of(trace) == [trace, tmp_path / table]
    timeline = read_profile(trace)
    assert isinstance(timeline, Timeline)
    found = timeline.counters
    assert {*timeline.names(found.name)} == {made.GEMM}
    assert [*zip(timeline.names(found.counter), found.value.tolist(), strict=True)] == [
        ("GpuTime[ns]", 190.0),
        ("XVE_ACTIVE[%]", 50.0),
        ("L3_BYTE_READ[bytes]", 2024.0),
        ("GpuTime[ns]", 80.0),
        ("XVE_ACTIVE[%]", 50.5),
        ("L3_BYTE_READ[bytes]", 7.0),
    ]
    assert found.start.tolist()[::3] == timeline.kernels.start[timeline.kernels.device == 0][:2].tolist()
    said = [loss.sentence for loss in timeline.origin.losses]
    assert len(said) == 2
    assert all("left out" in sentence for sentence in said)


def test_a_trace_of_that_name_by_another_program_is_none_of_unitrace(tmp_path: Path) -> None:
    path = tmp_path / "chrome_trace.json"
    path.write_text(made.text(made.events()))
    assert find_profiles(tmp_path) == [path]
    event = {"ph": "X", "name": "cuLaunchKernel", "pid": 1, "tid": 1, "ts": 6158004228499.86, "dur": 2.5}
    path.write_text(json.dumps({"traceEvents": [event]}))
    assert find_profiles(tmp_path) == []
    with pytest.raises(DamagedInput, match="is a Chrome trace, but none of PyTorch's profiler or unitrace"):
        read_profile(path)
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{**event, "cat": "cpu_op"}]}))
    reader = reader_of(path)
    assert reader is not None
    assert reader.name == "torch"


def test_metadata_and_devices_may_come_behind_many_calls_of_the_host(tmp_path: Path) -> None:
    path = tmp_path / "chrome_trace.json"
    call = {"ph": "X", "tid": 9, "pid": made.PID, "name": "MPI_Test", "cat": "cpu_op", "ts": 1, "dur": 1}
    events = made.events(rank=3)
    names = len(made.metadata(3))
    path.write_text(made.text([*[call] * 2000, *events[names:], *events[:names]]))
    assert find_profiles(tmp_path) == [path]
    assert identify_rank(path) == 3
    assert len(read_profile(path).kernels) == 2 * made.STEPS


def test_a_copy_has_the_same_figures_and_no_host_path_or_argument(tmp_path: Path) -> None:
    secret = {**made.events()[4], "name": "load /home/alice/data.bin", "args": {"key": "hunter2"}}
    own = {"ph": "X", "cat": "own", "name": "private", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    path = tmp_path / "rank0.unitrace.json"
    path.write_text(made.text([*made.events(), secret, own]))
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / path.name
    assert scrub(path, copy, Names()) == ["events of own"]
    for word in ("x4204c0s0b0n0", "alice", "hunter2", "private"):
        assert word in path.read_text()
        assert word not in copy.read_text()
    before, after = read_profile(path), read_profile(copy)
    assert isinstance(before, Timeline)
    assert isinstance(after, Timeline)
    assert after.origin.rank == before.origin.rank
    assert after.origin.gpus == before.origin.gpus
    for table in ("kernels", "memops", "calls", "mpi_calls"):
        ours, theirs = getattr(before, table), getattr(after, table)
        assert ours.start.tolist() == theirs.start.tolist()
        assert before.names(ours.name) == after.names(theirs.name)
    assert before.kernels.correlation.tolist() == after.kernels.correlation.tolist()
