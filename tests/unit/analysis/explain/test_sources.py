"""The functions that take most of the host work of a finding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.culprits import sources_of
from hpcprof.analysis.explain.explanation import Source
from hpcprof.profiles.frames import BUILT_IN
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import Functions, Timeline
from tests.unit.analysis.explain.programs import MS, Host, Instruction, Launch, Memory, Place, Wait, simulate

PROGRAM: list[Instruction] = [
    Place("data", (Host(8 * MS), Host(2 * MS))),
    Place("forward", (Host(5 * MS), Launch(1 * MS), Memory(3 * MS), Wait())),
]

Call = tuple[int, int, str, str, int]
"""Start, end, function, file and line of a call."""


def with_functions(timeline: Timeline, calls: list[Call], thread: int = 0) -> Timeline:
    """Return a timeline whose only thread executes these functions."""
    texts = [*timeline.strings, *(call[2] for call in calls), *(call[3] for call in calls)]
    first, n = len(timeline.strings), len(calls)
    columns = np.array([(start, end, line) for start, end, _, _, line in calls], np.int64).reshape(-1, 3)
    return replace(
        timeline,
        strings=np.array(texts, object),
        functions=Functions(
            start=columns[:, 0],
            end=columns[:, 1],
            process=np.zeros(n, np.int64),
            thread=np.full(n, thread),
            function=first + np.arange(n),
            file=first + n + np.arange(n),
            line=columns[:, 2],
        ),
    )


@pytest.fixture
def timeline() -> Timeline:
    return simulate([PROGRAM], 4)[0]


def ranges(timeline: Timeline, name: str) -> list[tuple[int, int]]:
    """Return the extents of the ranges of a name."""
    rows = [row for row, text in enumerate(timeline.names(timeline.ranges.name)) if text == name]
    return [(int(timeline.ranges.start[row]), int(timeline.ranges.end[row])) for row in rows]


def test_the_innermost_function_counts_and_the_rest_of_the_range_belongs_to_its_caller(
    timeline: Timeline,
) -> None:
    calls: list[Call] = []
    for start, end in ranges(timeline, "data"):
        calls += [(start, end, "load", "train.py", 10), (start, start + 8 * MS, "decode", "images.py", 3)]
    for start, end in ranges(timeline, "forward"):
        calls += [(start, end, "forward", "model.py", 1)]
    recorded = {0: with_functions(timeline, calls)}
    assert sources_of(Cause.HOST_WORK, "data", (0,), recorded) == (
        Source("images.py", 3, "decode", 80.0),
        Source("train.py", 10, "load", 20.0),
    )
    (forward,) = sources_of(Cause.HOST_WORK, "forward", (0,), recorded) or ()
    assert forward == Source("model.py", 1, "forward", 100.0)
    whole = sources_of(Cause.HOST_WORK, "", (0,), recorded) or ()
    assert [one.function for one in whole] == ["forward", "decode", "load"]


def test_of_the_samples_of_a_function_the_line_with_most_of_them_is_named(timeline: Timeline) -> None:
    calls: list[Call] = []
    for start, _ in ranges(timeline, "data"):
        calls += [(start, start + 3 * MS, "load", "train.py", 11)]
        calls += [(start + 3 * MS, start + 8 * MS, "load", "train.py", 12)]
    recorded = {0: with_functions(timeline, calls)}
    assert sources_of(Cause.HOST_WORK, "data", (0,), recorded) == (Source("train.py", 12, "load", 80.0),)


def test_of_a_cause_in_api_calls_only_these_calls_count(timeline: Timeline) -> None:
    calls: list[Call] = []
    for start, end in ranges(timeline, "forward"):
        calls += [(start, end, "forward", "model.py", 1)]
        calls += [(start + 5 * MS, start + 9 * MS, "grow", "cache.py", 4)]
    recorded = {0: with_functions(timeline, calls)}
    found = sources_of(Cause.DEVICE_ALLOCATION, "forward", (0,), recorded)
    assert found == (Source("cache.py", 4, "grow", 100.0),)


def test_without_stacks_or_work_of_the_host_there_is_no_source(timeline: Timeline) -> None:
    assert sources_of(Cause.HOST_WORK, "data", (0,), {0: timeline}) is None
    calls: list[Call] = [(*extent, "load", "train.py", 1) for extent in ranges(timeline, "data")]
    assert sources_of(Cause.SLOW_MATH, "data", (0,), {0: with_functions(timeline, calls)}) is None
    elsewhere = {0: with_functions(timeline, calls, thread=5)}
    assert sources_of(Cause.HOST_WORK, "data", (0,), elsewhere) is None


def test_a_function_in_c_is_named_with_its_caller(timeline: Timeline) -> None:
    calls: list[Call] = []
    for start, end in ranges(timeline, "data"):
        calls.append((start, end, "load", "train.py", 7))
        calls.append((start, start + 8 * MS, "fsync", BUILT_IN, -1))
    timeline = with_functions(timeline, calls)
    sources = sources_of(Cause.HOST_WORK, "data", (0,), {0: timeline})
    assert sources == (Source("train.py", 7, "fsync in load", 80.0), Source("train.py", 7, "load", 20.0))


def test_without_a_gpu_the_time_in_operators_is_not_work_of_the_host(tmp_path: Path) -> None:
    def event(category: str, name: str, start: int, length: int) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": start, "dur": length}

    events = [event("python_function", "train.py(7): train", 0, 3000)]
    for step in range(3):
        events += [
            event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 990),
            event("python_function", "<built-in function linear>", 1000 * step, 500),
            event("cpu_op", "aten::linear", 1000 * step, 500),
            event("python_function", "<built-in function fsync>", 1000 * step + 500, 300),
        ]
    path = tmp_path / "rank0.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    timeline = read(path)
    fsync, train = sources_of(Cause.HOST_WORK, "", (0,), {0: timeline}) or ()
    assert (fsync.function, train.function) == ("fsync in train", "train")
    assert fsync.share_pct > 50
    # A rank may be late by its operators.
    linear, *_ = sources_of(Cause.LATE_RANK_HOST, "", (0,), {0: timeline}) or ()
    assert linear.function == "linear in train" and abs(linear.share_pct - 50) < 1
