"""Timelines as Chrome traces: exact, nested as viewers need it, and readable by hpcprof's own reader."""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.readers.kineto import MERGED
from hpcprof.profiles.timeline import ApiCalls, Kernels, MemoryOperations, Origin, Ranges, Timeline
from hpcprof.report.trace_events import export_timelines, lane
from hpcprof.results.collect.timelines import Timelines

DATA = Path(__file__).parents[2] / "data"
# What a trace can say as well as an export: the others need an export's process ids or styles of ranges.
SAME = (
    "kernels",
    "kernels_by_shape",
    "memops",
    "api",
    "phases",
    "step_times",
    "breakdown",
    "overlap",
    "range_gpu",
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Timelines:
    """Two ranks' real exports."""
    folder = tmp_path_factory.mktemp("profiles")
    paths = {}
    for rank in (0, 1):
        paths[rank] = folder / f"rank{rank}.sqlite"
        paths[rank].write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
    return Timelines(paths, [])


class Given(Timelines):
    """Timelines that come from no file."""

    def __init__(self, *timelines: Timeline) -> None:
        super().__init__({rank: Path(f"rank{rank}") for rank in range(len(timelines))}, [])
        object.__setattr__(self, "timelines", timelines)

    def read(self, rank: int) -> Timeline:
        return self.timelines[rank]  # type: ignore[attr-defined, no-any-return]


def export(timelines: Timelines, folder: Path) -> list[str]:
    return export_timelines(timelines, folder, lambda path: None).notes


def load(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    return trace


def nanoseconds(text: str) -> int:
    whole, fraction = text.split(".")
    assert len(fraction) == 3
    return int(whole) * 1000 + int(fraction)


def test_every_figure_of_an_exported_timeline_is_that_of_the_profile(
    exports: Timelines, tmp_path: Path
) -> None:
    export(exports, tmp_path)
    for rank in exports.paths:
        original, back = exports.read(rank), read_profile(tmp_path / f"rank{rank:05}.trace.json.gz")
        assert back.origin.rank == rank
        assert back.origin.device_names == original.origin.device_names
        for analysis in SAME:
            figures = [analyze_rank(ANALYSES[analysis], t, rank).frame.to_csv() for t in (original, back)]
            assert figures[0] == figures[1]


def test_a_pytorch_trace_survives_too(tmp_path: Path) -> None:
    source = Timelines({0: DATA / "ddp_step_rank0.pt.trace.json.gz"}, [])
    export(source, tmp_path)
    back = read_profile(tmp_path / "rank00000.trace.json.gz")
    for analysis in SAME:
        rows = [analyze_rank(ANALYSES[analysis], t, 0).frame.to_csv() for t in (source.read(0), back)]
        assert rows[0] == rows[1]


def test_what_annotations_waits_and_the_allocator_left_survives_too(tmp_path: Path) -> None:
    source = Timelines({0: DATA / "allocator_rank0.pt.trace.json.gz"}, [])
    export(source, tmp_path)
    original, back = source.read(0), read_profile(tmp_path / "rank00000.trace.json.gz")
    assert isinstance(back, Timeline)
    assert original.origin.start_utc_ns is not None
    assert back.origin.start_utc_ns is not None
    later = back.origin.start_utc_ns - original.origin.start_utc_ns
    for table in ("gpu_marks", "allocations"):
        rows = [rows_of(timeline, table) for timeline in (original, back)]
        assert len(rows[0]) > 10
        stamps = ("start", "end", "time")
        rows[1] = [{k: v + later if k in stamps else v for k, v in row.items()} for row in rows[1]]
        assert sorted(map(str, rows[0])) == sorted(map(str, rows[1]))
    # Not hta_breakdown: what it rounds to microseconds depends on the clock's zero.
    for analysis in (*SAME, "memory_usage", "idle", "queue_length", "operators", "operator_kernels"):
        figures = [analyze_rank(ANALYSES[analysis], t, 0).frame.to_csv() for t in (original, back)]
        assert figures[0] == figures[1]


def test_operators_survive_with_the_shapes_of_their_inputs(tmp_path: Path) -> None:
    source = Timelines({0: DATA / "operators_rank0.pt.trace.json.gz"}, [])
    export(source, tmp_path)
    back = read_profile(tmp_path / "rank00000.trace.json.gz")
    for analysis in ("operators_by_shape", "operator_kernels"):
        texts = [
            analyze_rank(ANALYSES[analysis], t, 0).frame.to_csv(index=False) for t in (source.read(0), back)
        ]
        # Rows that compare equal keep the order of the strings, which differs.
        assert sorted(texts[0].splitlines()) == sorted(texts[1].splitlines())


def rows_of(timeline: Timeline, table: str) -> list[dict[str, Any]]:
    columns = {f.name: getattr(getattr(timeline, table), f.name) for f in fields(getattr(timeline, table))}
    columns |= {"name": timeline.names(columns["name"])} if "name" in columns else {}
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(np.asarray(c, object).tolist() for c in columns.values()), strict=True)
    ]


def test_graphs_traced_as_a_whole_survive_too(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(lzma.decompress((DATA / "cuda_graphs.sqlite.xz").read_bytes()))
    source = Timelines({0: path}, [])
    export(source, tmp_path)
    back = read_profile(tmp_path / "rank00000.trace.json.gz")
    assert isinstance(back, Timeline)
    assert back.names(back.graphs.name) == source.read(0).names(source.read(0).graphs.name)
    for analysis in SAME:
        figures = [analyze_rank(ANALYSES[analysis], t, 0).frame.to_csv() for t in (source.read(0), back)]
        assert figures[0] == figures[1]


def test_events_of_all_ranks_stand_at_their_own_utc_time(exports: Timelines, tmp_path: Path) -> None:
    assert export(exports, tmp_path) == []
    trace = load(tmp_path / MERGED)
    base = trace["baseTimeNanoseconds"]
    assert min(nanoseconds(e["ts"]) for e in trace["traceEvents"] if e["ph"] == "X") == 0
    for rank in exports.paths:
        timeline = exports.read(rank)
        assert timeline.origin.start_utc_ns is not None
        kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel" and e["pid"] == rank]
        found = [base + nanoseconds(event["ts"]) for event in kernels]
        assert found == (timeline.origin.start_utc_ns + timeline.kernels.start).tolist()


def test_ranks_of_unknown_clocks_begin_at_zero_and_a_note_says_so(exports: Timelines, tmp_path: Path) -> None:
    timelines = [exports.read(rank) for rank in exports.paths]
    timelines[1] = replace(timelines[1], origin=replace(timelines[1].origin, start_utc_ns=None))
    (note,) = export(Given(*timelines), tmp_path)
    assert "the profiles of rank 1 do not record when they started" in note
    trace = load(tmp_path / MERGED)
    assert "baseTimeNanoseconds" not in trace
    for rank in (0, 1):
        stamps = [nanoseconds(e["ts"]) for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank]
        assert min(stamps) == 0


def test_ranks_threads_and_streams_are_named(exports: Timelines, tmp_path: Path) -> None:
    export(exports, tmp_path)
    trace = load(tmp_path / MERGED)
    named = [e for e in trace["traceEvents"] if e["ph"] == "M"]
    assert [e["args"]["name"] for e in named if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in named if e["name"] == "thread_name"}
    assert set(tracks) == {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    assert {name for (pid, _), name in tracks.items() if pid == 0} >= {"GPU 0 stream 7"}


def test_on_every_track_events_follow_or_enclose_each_other(exports: Timelines, tmp_path: Path) -> None:
    export(exports, tmp_path)
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in load(tmp_path / MERGED)["traceEvents"]:
        if e["ph"] == "X":
            start = nanoseconds(e["ts"])
            tracks.setdefault((e["pid"], e["tid"]), []).append((start, -(start + nanoseconds(e["dur"]))))
    for events in tracks.values():
        open_until: list[int] = []
        for start, minus_end in sorted(events):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or -minus_end <= open_until[-1]
            open_until.append(-minus_end)


def test_arrows_lead_from_calls_to_what_they_launch_and_from_operators_to_their_gradients(
    tmp_path: Path,
) -> None:
    source = Timelines({0: DATA / "operators_rank0.pt.trace.json.gz"}, [])
    original = source.read(0)
    export(source, tmp_path)
    events = load(tmp_path / "rank00000.trace.json.gz")["traceEvents"]
    begun = {(e["cat"], e["tid"], e["ts"]): e["name"] for e in events if e["ph"] == "X"}
    names = {}
    for category, begins, ends in (("ac2g", "cuda_runtime", "kernel"), ("fwdbwd", "cpu_op", "cpu_op")):
        arrows: dict[int, dict[str, Any]] = {}
        for e in events:
            if e.get("cat") == category:
                arrows.setdefault(e["id"], {})[e["ph"]] = e
        names[category] = [
            [begun.get((cat, one[end]["tid"], one[end]["ts"])) for end, cat in (("s", begins), ("f", ends))]
            for one in arrows.values()
        ]
    # Copies and sets have other categories.
    assert sum(None not in pair for pair in names["ac2g"]) == len(original.kernels)
    assert len(names["fwdbwd"]) == 12
    assert ["aten::addmm", "AddmmBackward0"] in names["fwdbwd"]
    assert all(forward and backward and "Backward" in backward for forward, backward in names["fwdbwd"])
    back = read_profile(tmp_path / "rank00000.trace.json.gz")
    assert isinstance(back, Timeline)
    links = [sorted(t.names(t.operators.name[t.operators.link >= 0])) for t in (original, back)]  # type: ignore[type-var]
    assert links[0] == links[1] != []


def test_the_collectives_of_a_cpu_trace_survive_too(tmp_path: Path) -> None:
    source = Timelines({rank: DATA / f"cpu_ddp_rank{rank}.pt.trace.json.gz" for rank in (0, 1)}, [])
    export(source, tmp_path)
    back = read_profile(tmp_path / "rank00001.trace.json.gz")
    for analysis in ("step_times", "operators", "idle_causes", "rank_collectives"):
        rows = [analyze_rank(ANALYSES[analysis], t, 1).frame for t in (source.read(1), back)]
        # The exported trace begins at 0.
        rows = [table.drop(columns=["start_ns", "end_ns"], errors="ignore") for table in rows]
        assert rows[0].to_csv() == rows[1].to_csv()
    ids = [e["id"] for e in load(tmp_path / MERGED)["traceEvents"] if e["ph"] == "s"]
    assert len(ids) == len({*ids}) > 100


HOSTILE = ['a"b\\c', "</script>\n\t\r", "内核 🚀", "\x00\x01\x1f\x7f", "{}[],:", "half \ud800", ""]


def test_any_name_is_escaped(exports: Timelines, tmp_path: Path) -> None:
    timeline = exports.read(0)
    strings = timeline.strings.copy()
    strings[: len(HOSTILE)] = HOSTILE
    count = len(timeline.kernels)
    names = np.arange(count) % (len(HOSTILE) + 1) - 1  # -1 has no name
    export(Given(replace(timeline, strings=strings, kernels=replace(timeline.kernels, name=names))), tmp_path)
    found = [
        e["name"]
        for e in load(tmp_path / "rank00000.trace.json.gz")["traceEvents"]
        if e.get("cat") == "kernel"
    ]
    expected = [*HOSTILE, "(no name)"]
    assert found == [expected[i] for i in names.tolist()]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**62), st.integers(0, 2**50), st.integers(0, 2**40)),
        min_size=1,
        max_size=6,
    )
)
def test_a_stamp_keeps_every_nanosecond_also_as_a_double(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]
) -> None:
    first = rows[0][0]
    start = np.array([first] + [first + offset for _, offset, _ in rows], np.int64)
    end = start + np.array([0] + [length for _, _, length in rows], np.int64)
    tests = tmp_path_factory.mktemp("stamps")
    zeros = np.zeros(len(start), np.int64)
    shape = np.ones((len(start), 3), np.int64)
    kernels = Kernels(start, end, zeros, zeros, zeros, zeros, zeros, zeros, grid=shape, block=shape)
    tables = (MemoryOperations.empty(), ApiCalls.empty(), Ranges.empty())
    names = np.array(["kernel"], object)
    export(Given(Timeline(Origin(Path("rank0"), "nsys"), names, kernels, *tables)), tests)
    events = [e for e in load(tests / "rank00000.trace.json.gz")["traceEvents"] if e["ph"] == "X"]
    assert [nanoseconds(e["ts"]) for e in events] == (start - first).tolist()
    assert [nanoseconds(e["dur"]) for e in events] == (end - start).tolist()
    assert [round(float(e["ts"]) * 1000) for e in events] == (start - first).tolist()


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12)


@given(intervals)
def test_intervals_of_one_lane_never_overlap(rows: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in rows], np.int64)
    end = np.array([s + length for s, length in rows], np.int64)
    lanes = lane(start, end)
    for i in range(len(rows)):
        for j in range(i):
            if lanes[i] == lanes[j]:
                assert end[i] <= start[j] or end[j] <= start[i]
    apart = all(end[i] <= start[j] or end[j] <= start[i] for i in range(len(rows)) for j in range(i))
    assert not apart or not lanes.any()


def test_a_damaged_profile_is_noted_and_the_others_are_written(exports: Timelines, tmp_path: Path) -> None:
    bad = tmp_path / "rank9.sqlite"
    bad.write_bytes(b"")
    notes = export(Timelines({**exports.paths, 9: bad}, ["another is damaged"]), tmp_path / "out")
    assert notes == ["another is damaged", f"{bad} is empty."]
    assert len(list((tmp_path / "out").iterdir())) == 3
    with pytest.raises(DamagedInput):
        read_profile(bad)


def test_the_same_timeline_gives_the_same_bytes(exports: Timelines, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        export(exports, tmp_path / folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        assert path.read_bytes()[4:8] == bytes(4)  # no time in gzip's header
