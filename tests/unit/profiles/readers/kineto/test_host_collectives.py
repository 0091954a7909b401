"""Collectives that the host carries out: gloo's works, and oneCCL's calls and waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import NO_BYTES, Style, Timeline

WORLD = {"pg_name": "0", "backend_config": "cpu:gloo,cuda:gloo", "pg_size": 2, "ranks": [0, 1]}
ONE_GROUP = {"rank": 0, "world_size": 2, "pg_count": 1, "pg_config": [WORLD]}


def event(category: str, name: str, start: int, length: int, **others: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 1} | others


def work(name: str, dims: Any, types: Any, start: int = 0, length: int = 5, tid: int = 2) -> dict[str, Any]:
    return event(
        "user_annotation", name, start, length, tid=tid, args={"Input Dims": dims, "Input type": types}
    )


def trace(path: Path, *events: dict[str, Any], distributed: Any = ONE_GROUP) -> Timeline:
    path = path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"distributedInfo": distributed, "traceEvents": events}), encoding="utf-8")
    return read(path)


def rows(timeline: Timeline) -> list[tuple[Any, ...]]:
    """Return operation, communicator, size, ranks, start and end of each collective."""
    table = timeline.host_collectives
    names = (timeline.names(table.operation), timeline.names(table.communicator))
    numbers = (column.tolist() for column in (table.bytes, table.ranks, table.start, table.end))
    return list(zip(*names, *numbers, strict=True))


@pytest.mark.parametrize(
    ("name", "dims", "types", "operation", "size"),
    [
        ("gloo:all_reduce", [[10, 4]], ["float"], "AllReduce", 160),
        ("gloo:all_reduce", [[10], [3]], ["c10::BFloat16", "c10::BFloat16"], "AllReduce", 26),
        ("gloo:all_gather", [[8]], ["long int"], "AllGather", 64),
        ("mpi:all_to_all", [[8]], ["double"], "AlltoAll", 32),
        ("gloo:scatter", [[8], [8]], ["unsigned char", "unsigned char"], "Scatter", 8),
        ("gloo:barrier", [], [], "Barrier", NO_BYTES),
        ("gloo:all_reduce", [[10]], ["quaternion"], "AllReduce", NO_BYTES),
        ("gloo:all_reduce", [[-1]], ["float"], "AllReduce", NO_BYTES),
        ("gloo:all_reduce", "many", 7, "AllReduce", NO_BYTES),
    ],
)
def test_a_work_of_a_process_group_is_a_collective_of_the_size_of_its_inputs(
    tmp_path: Path, name: str, dims: Any, types: Any, operation: str, size: int
) -> None:
    annotation = work(name, dims, types)
    # PyTorch before 1.12 writes it as an operator: pramod-b-s/839_Adv_ML_Project.
    for form in (annotation, annotation | {"cat": "cpu_op"}):
        assert rows(trace(tmp_path, form)) == [(operation, "0", size, 2, 0, 5000)]


def test_any_thread_may_end_a_work_so_it_is_not_nested_among_the_ranges_of_its_thread(tmp_path: Path) -> None:
    annotation = event("user_annotation", "forward", 0, 9)
    ranges = trace(tmp_path, annotation, work("gloo:all_reduce", [[4]], ["float"], 1, 90, tid=1)).ranges
    assert ranges.style.tolist() == [Style.PUSH_POP, Style.START_END]
    assert ranges.one_thread.tolist() == [1, 0]


@pytest.mark.parametrize(
    "distributed",
    [
        None,
        {},
        {"pg_config": "all"},
        {"pg_config": [WORLD, WORLD | {"pg_name": "1"}]},
        {"pg_count": 2, "pg_config": [WORLD]},
        {"pg_config": [WORLD | {"pg_name": 7}]},
        {"pg_config": [WORLD | {"backend_config": "cuda:nccl"}]},
    ],
)
def test_a_work_does_not_tell_its_group_if_the_program_may_have_several(
    tmp_path: Path, distributed: Any
) -> None:
    timeline = trace(tmp_path, work("gloo:all_reduce", [[4]], ["float"]), distributed=distributed)
    assert rows(timeline) == [("AllReduce", None, 16, -1, 0, 5000)]


def test_groups_of_nccl_leave_that_of_gloo_the_only_one(tmp_path: Path) -> None:
    groups = [WORLD | {"pg_name": "gpus", "backend_config": "cuda:nccl"}, WORLD]
    timeline = trace(
        tmp_path, work("gloo:all_reduce", [[4]], ["float"]), distributed={"pg_config": groups, "pg_count": 2}
    )
    assert rows(timeline)[0][1] == "0"


def one_ccl(name: str, start: int, length: int) -> dict[str, Any]:
    arguments = {"Input Dims": [[8]], "Input type": ["float"]}
    return event("cpu_op", f"oneccl_bindings_for_pytorch::{name}", start, length, args=arguments)


def test_a_call_of_oneccl_lasts_until_its_wait_has_ended(tmp_path: Path) -> None:
    calls = [one_ccl("allreduce", 10, 2), one_ccl("allreduce", 20, 2), one_ccl("cpu::allreduce", 10, 1)]
    waits = [one_ccl("wait::cpu::allreduce", start, 5) for start in (40, 60)]
    found = [("AllReduce", "0", 32, 2, 10_000, 45_000), ("AllReduce", "0", 32, 2, 20_000, 65_000)]
    ccl = ONE_GROUP | {"pg_config": [WORLD | {"backend_config": "cpu:ccl"}]}
    assert rows(trace(tmp_path, *calls, *waits, distributed=ccl)) == found
    # Without a wait for each call, none can be told.
    assert [row[-1] for row in rows(trace(tmp_path, *calls, waits[0]))] == [12_000, 22_000]


@pytest.mark.parametrize(("backend", "unread"), [("mtia:hccl,cpu:gloo", 2), ("cuda:nccl", 0)])
def test_works_of_a_backend_that_is_not_read_are_counted_and_hide_no_phase(
    tmp_path: Path, backend: str, unread: int
) -> None:
    """Rebuilt from facebookresearch/HolisticTraceAnalysis, tests/data/mtia_trace_single_rank."""
    name = backend.split(",")[0].partition(":")[2]
    made = trace(
        tmp_path,
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("user_annotation", f"{name}:all_to_all", 5, 50),
        event("user_annotation", "forward", 10, 40),
        event("user_annotation", f"{name}:allgather", 60, 1),
        work("gloo:barrier", [], []),
        distributed={"backend": backend, "rank": 0, "pg_config": [{"backend_config": backend}, "odd"]},
    )
    sentence = f"2 collectives of the category {name} are not supported and are left out"
    assert [loss.sentence for loss in made.origin.losses] == [sentence] * bool(unread)
    assert made.ranges.one_thread.tolist() == ([1, 0, 1, 0, 0] if unread else [1, 1, 1, 1, 0])
    assert [row[0] for row in rows(made)] == ["Barrier"]
