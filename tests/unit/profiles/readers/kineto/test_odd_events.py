"""Events with odd fields, and those around them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.event_columns import TEXTS, timeline_tables
from hpcprof.profiles.readers.kineto import json_stream, reader
from hpcprof.profiles.timeline import Timeline

CALL = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2}
OPERATOR = {**CALL, "cat": "cpu_op", "name": "aten::mm", "args": {"Input Dims": [[2, 3]]}}
KERNEL = {**CALL, "cat": "kernel", "name": "gemm", "args": {"device": 0, "stream": 7, "correlation": 3}}
ODD: list[dict[str, Any]] = [
    {**CALL, "tid": "25738"},
    {**CALL, "args": {"correlation": "7"}},
    {**CALL, "args": {"correlation": 1.5}},
    {**CALL, "args": None},
    {**CALL, "ph": "B"},
    {name: value for name, value in CALL.items() if name != "pid"},
    {**CALL, "name": None},
    {**CALL, "dur": -1},
    {**CALL, "ts": "1.000"},
    {**KERNEL, "args": {"grid": ["1", 1, 1], "Collective name": "allreduce", "dtype": 7}},
    {**OPERATOR, "cat": "Operator"},
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    {"ph": "X", "cat": "mtia_runtime", "name": "launch", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
]


def write(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def contents(timeline: Timeline) -> dict[str, Any]:
    """Return the losses and all columns of a timeline, with texts in place of their numbers."""
    found: dict[str, Any] = {"losses": timeline.origin.losses}
    for name in timeline_tables():
        table = getattr(timeline, name)
        for field in (field.name for field in fields(table)):
            values: list[Any] = np.asarray(getattr(table, field)).tolist()
            if field in TEXTS:
                values = [None if value < 0 else timeline.strings[value] for value in values]
            found[f"{name}.{field}"] = values
    return found


def same_both_ways(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what is read of a trace, and check that it is the same event by event."""
    found = contents(reader.read(path))
    monkeypatch.setattr(json_stream.TraceStream, "_decode_events", lambda *_: [])
    assert contents(reader.read(path)) == found
    return found


@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
def test_an_odd_event_changes_nothing_for_the_others(
    odd: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = [CALL, OPERATOR, KERNEL] * 4
    path = write(tmp_path / "rank0.pt.trace.json", *usual, odd, *usual)
    found = same_both_ways(path, monkeypatch)
    assert found["kernels.name"].count("gemm") >= 8
    assert found["calls.name"].count("cudaLaunchKernel") >= 8


def test_a_single_event_without_a_thread_is_left_out(tmp_path: Path) -> None:
    alone = {name: value for name, value in CALL.items() if name != "tid"}
    timeline = reader.read(write(tmp_path / "rank0.pt.trace.json", alone))
    assert len(timeline.calls) == 0
    assert [(loss.detail, loss.count) for loss in timeline.origin.losses] == [("tid", 1)]


@pytest.mark.parametrize(("of_operator", "launches"), [(False, [0, 1]), (True, [])])
def test_external_ids_link_launches_and_kernels_where_nothing_else_does(
    of_operator: bool, launches: list[int], tmp_path: Path
) -> None:
    # As Kineto wrote for ROCm before it had correlations; the ids of operators are those of all their calls.
    ids = (95, 95) if of_operator else (95, 97)
    calls = [
        {**CALL, "name": "hipLaunchKernel", "ts": 2 * n, "args": {"External id": i}}
        for n, i in enumerate(ids)
    ]
    kernels = [{**KERNEL, "ts": 20 + 2 * n, "args": {"External id": number}} for n, number in enumerate(ids)]
    numbered = [{**call, "args": {"correlation": number}} for call, number in zip(calls, ids, strict=True)]
    mixed = reader.read(write(tmp_path / "mixed.json", *numbered, *kernels))
    assert not len(launch_pairs(mixed)[0])
    annotation = {**KERNEL, "cat": "gpu_user_annotation", "args": {"External id": ids[0]}}
    timeline = reader.read(write(tmp_path / "rocm.json", *calls, *kernels, annotation))
    assert launch_pairs(timeline)[1].tolist() == launches
    assert "External id" not in str(timeline.origin.losses)


def test_a_batch_without_correlations_leaves_the_links_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbered(event: dict[str, Any], n: int) -> dict[str, Any]:
        return {**event, "ts": 10 * n, "args": {"External id": n, "correlation": n, "stream": 7}}

    linked = [numbered(event, n) for n in range(1, 5) for event in (CALL, KERNEL)]
    last = {**KERNEL, "ts": 90, "args": {"External id": 9, "stream": 7}}
    path = write(tmp_path / "rank0.pt.trace.json", *linked, *[OPERATOR] * 20, last)
    monkeypatch.setattr(json_stream, "_CHUNK", 300)
    assert launch_pairs(reader.read(path))[1].tolist() == [0, 1, 2, 3]
    first = write(tmp_path / "rank1.pt.trace.json", {**last, "ts": 1}, *[OPERATOR] * 20, *linked)
    assert launch_pairs(reader.read(first))[1].tolist() == [0, 1, 2, 3]
