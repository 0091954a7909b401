"""Arrows from operators of the forward pass to those of the backward pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import NO_LINK, Timeline

MAIN, AUTOGRAD = 1, 2


def operator(name: str, start: int, length: int, thread: int = MAIN) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}


def end(kind: str, number: Any, time: int, thread: int = MAIN) -> dict[str, Any]:
    return {"ph": kind, "cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": 1, "tid": thread, "ts": time}


def trace(path: Path, *events: dict[str, Any]) -> Timeline:
    path = path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return read(path)


def links(timeline: Timeline) -> dict[str | None, int]:
    table = timeline.operators
    return dict(zip(timeline.names(table.name), table.link.tolist(), strict=True))


def test_an_arrow_links_the_outermost_operators_that_begin_at_its_ends(tmp_path: Path) -> None:
    timeline = trace(
        tmp_path,
        operator("aten::addmm", 10, 5),
        operator("aten::linear", 10, 8),
        operator("AddmmBackward0", 10, 4, AUTOGRAD),
        operator("aten::t", 30, 2),
        end("s", 7, 10),
        end("f", 7, 10, AUTOGRAD),
    )
    found = links(timeline)
    assert found["aten::linear"] == found["AddmmBackward0"] != NO_LINK
    assert found["aten::addmm"] == found["aten::t"] == NO_LINK


def test_an_arrow_without_both_operators_is_left_out(tmp_path: Path) -> None:
    timeline = trace(
        tmp_path,
        operator("aten::mm", 10, 5),
        operator("MmBackward0", 20, 5),
        *(
            end("s", 1, 10),
            end("s", 2, 10),
            end("f", 2, 21),
            end("f", 3, 20),
            end("s", 4, 10),
            end("f", 4, 10),
        ),
    )
    assert set(links(timeline).values()) == {NO_LINK}


def test_the_end_of_an_arrow_without_a_field_is_counted(tmp_path: Path) -> None:
    timeline = trace(tmp_path, operator("aten::mm", 10, 5), end("s", 1, 10), end("s", "first", 10))
    (loss,) = timeline.origin.losses
    assert (loss.kind, loss.subject, loss.count, loss.detail) == (LossKind.ROW, Subject.ARROW, 1, "id")
    assert loss.sentence == "1 of 2 arrows between operators has no valid id and is left out"
