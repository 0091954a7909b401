"""Synchronizations of PyTorch traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import NO_CORRELATION, NO_STREAM, SyncKind, Timeline
from tests.unit.profiles.readers.conftest import DATA


def wait(name: str, correlation: int, stream: int = -1, **arguments: Any) -> dict[str, Any]:
    """Build an event of the category cuda_sync."""
    known = {"cuda_sync_kind": name, "stream": stream, "correlation": correlation, "device": 0, "context": 1}
    return {
        "ph": "X",
        "cat": "cuda_sync",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": correlation,
        "dur": 2,
        "args": known | arguments,
    }


def recorded(stream: int, correlation: int) -> dict[str, int]:
    """Build the arguments of a wait that name the record of its event."""
    return {
        "wait_on_stream": stream,
        "wait_on_cuda_event_record_corr_id": correlation,
        "wait_on_cuda_event_id": 4,
    }


def call(name: str, correlation: int) -> dict[str, Any]:
    where = {"pid": 77, "tid": 78, "ts": correlation, "dur": 3}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, **where, "args": {"correlation": correlation}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a trace."""
    return tmp_path / "rank0.trace.json"


def read_events(path: Path, *events: dict[str, Any]) -> Timeline:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return read(path)


def test_each_kind_tells_its_streams_and_the_record_of_its_event(path: Path) -> None:
    timeline = read_events(
        path,
        call("cudaStreamWaitEvent", 20),
        wait("Stream Wait Event", 20, stream=14, **recorded(7, 11)),
        wait("Event Sync", 21, **recorded(8, 12)),
        wait("Stream Sync", 22, stream=7),
        wait("Context Sync", 23),
        wait("Stream Wait Event", 24, stream=14, **recorded(-1, -1)),
    )
    table = timeline.synchronizations
    assert table.kind.tolist() == [
        SyncKind.STREAM_WAIT,
        SyncKind.EVENT,
        SyncKind.STREAM,
        SyncKind.DEVICE,
        SyncKind.STREAM_WAIT,
    ]
    assert table.stream.tolist() == [14, NO_STREAM, 7, NO_STREAM, 14]
    assert table.source_stream.tolist() == [7, 8, *[NO_STREAM] * 3]
    assert table.source_correlation.tolist() == [11, 12, *[NO_CORRELATION] * 3]
    assert table.correlation.tolist() == [20, 21, 22, 23, 24]
    assert (table.start.tolist()[0], table.end.tolist()[0]) == (20_000, 22_000)
    assert set(table.process.tolist()) == {77}
    assert len(timeline.gpu_marks) == 5


def test_queries_and_annotations_are_no_synchronizations(path: Path) -> None:
    annotation = wait("Stream Sync", 22, stream=7) | {"cat": "gpu_user_annotation"}
    timeline = read_events(
        path, call("cudaEventQuery", 20), wait("Event Sync", 20, **recorded(7, 11)), annotation
    )
    assert len(timeline.synchronizations) == 0
    assert len(timeline.gpu_marks) == 2


def test_an_odd_record_is_unknown_and_counted(path: Path) -> None:
    odd = recorded(7, 11) | {"wait_on_stream": [7]}
    timeline = read_events(path, wait("Stream Wait Event", 20, stream=14, **odd))
    assert timeline.synchronizations.source_stream.tolist() == [NO_STREAM]
    assert timeline.synchronizations.source_correlation.tolist() == [11]
    (loss,) = timeline.origin.losses
    assert (loss.kind, loss.subject, loss.detail) == (LossKind.FIELD, Subject.MARK, "wait_on_stream")


def test_a_wait_without_a_stamp_is_left_out_and_counted_once(path: Path) -> None:
    timeline = read_events(path, wait("Context Sync", 20) | {"ts": "soon"}, wait("Context Sync", 21))
    assert timeline.synchronizations.correlation.tolist() == [21]
    (loss,) = timeline.origin.losses
    assert (loss.kind, loss.subject, loss.count) == (LossKind.ROW, Subject.MARK, 1)


def test_a_real_trace_has_its_waits() -> None:
    table = read(DATA / "allocator_rank0.pt.trace.json.gz").synchronizations
    assert table.kind.tolist().count(SyncKind.STREAM) == 6
    assert table.kind.tolist().count(SyncKind.DEVICE) == 1 == len(table) - 6
