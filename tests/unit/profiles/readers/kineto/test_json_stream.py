"""Traces are read in pieces, and pieces leave no trace in what is read."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.kineto import json_stream
from hpcprof.profiles.readers.kineto.json_stream import NotATrace, TraceStream
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import NO_CORRELATION, Timeline

DATA = Path(__file__).parents[4] / "data"
TRACES = ["allocator_rank0.pt.trace.json.gz", "ddp_steps_rank0.pt.trace.json.gz"]
TABLES = ("kernels", "memops", "calls", "ranges", "gpu_marks", "allocations", "synchronizations")


def content(timeline: Timeline) -> dict[str, Any]:
    """Return everything that a timeline holds, names as text."""
    columns: dict[str, Any] = {"losses": timeline.origin.losses, "devices": timeline.origin.device_names}
    for table in TABLES:
        for name, column in vars(getattr(timeline, table)).items():
            columns[f"{table}.{name}"] = timeline.names(column) if name == "name" else column.tolist()
    return columns


def event(name: str = "gemm", **fields: Any) -> dict[str, Any]:
    """Build a kernel."""
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, **fields}


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "rank0.trace.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("trace", TRACES)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunk=st.integers(1, 20_000) | st.integers(20_000, 300_000))
def test_the_size_of_the_pieces_does_not_matter(
    trace: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = content(read(DATA / trace))
    with monkeypatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        assert content(read(DATA / trace)) == expected


@pytest.mark.parametrize("trace", TRACES)
def test_parsing_event_by_event_gives_the_same(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = content(read(DATA / trace))
    monkeypatch.setattr(json_stream.TraceStream, "_decode_events", lambda *_: [])
    assert content(read(DATA / trace)) == expected


@pytest.mark.parametrize("trace", TRACES)
def test_every_event_that_a_json_parser_finds_is_in_the_timeline(trace: str) -> None:
    events = json.loads(gzip.decompress((DATA / trace).read_bytes()))["traceEvents"]
    timeline = read(DATA / trace)
    for table, categories in {
        "kernels": ("kernel",),
        "memops": ("gpu_memcpy", "gpu_memset"),
        "calls": ("cuda_runtime", "cuda_driver"),
        "ranges": ("user_annotation",),
        "gpu_marks": ("gpu_user_annotation", "cuda_sync"),
    }.items():
        rows = getattr(timeline, table)
        expected = [e for e in events if e.get("cat") in categories]
        assert timeline.names(rows.name) == [e["name"] for e in expected]
        # A double of these stamps is right to half a nanosecond.
        assert rows.start.tolist() == [round(e["ts"] * 1000) for e in expected]
        assert (rows.end - rows.start).tolist() == [round(e["dur"] * 1000) for e in expected]
    allocations = [e["args"] for e in events if e["name"] == "[memory]"]
    assert timeline.allocations.bytes.tolist() == [a["Bytes"] for a in allocations]
    assert timeline.allocations.reserved.tolist() == [a["Total Reserved"] for a in allocations]


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_text_that_looks_like_the_end_of_an_event_misleads_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK", chunk)
    names = ["a},{b", 'quoted "}, {" ]', "back\\", "]}", "größe → 核"]
    nested = {"list": [{"a": 1}, {"b": [{}, {}]}], "]": "}"}
    events = [event(name, args=nested, ts=i) for i, name in enumerate(names)]
    trace = {
        "note": '"traceEvents": [',
        "inner": {"traceEvents": [{"ph": "X", "cat": "kernel"}]},
        "traceEvents": events,
        "deviceProperties": [{"name": "GPU ]"}, {"name": "x},{"}],
        "distributedInfo": {"rank": 3},
    }
    timeline = read(write(tmp_path, json.dumps(trace, indent=indent, ensure_ascii=False)))
    assert timeline.names(timeline.kernels.name) == names
    assert timeline.kernels.start.tolist() == [0, 1000, 2000, 3000, 4000]
    assert timeline.origin.rank == 3
    assert timeline.origin.device_names == ("GPU ]", "x},{")
    assert timeline.origin.losses == ()


@pytest.mark.parametrize("tail", ["[]}", ' [ ] , "x": [1] }', "[{}]}"])
def test_a_trace_without_work_is_an_empty_timeline(tmp_path: Path, tail: str) -> None:
    timeline = read(write(tmp_path, '{"schemaVersion": 1, "traceEvents":' + tail))
    assert len(timeline.kernels) == 0
    assert timeline.origin.losses == ()


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [{},]}',
        '{"traceEvents": [,{}]}',
        '{"traceEvents": [{} {}]}',
        '{"traceEvents": [{}}',
        '{"traceEvents": [{}]',
        '{"traceEvents": [{}]}}',
        '{"traceEvents": [{}], }',
        '{"traceEvents": [{}] "x": 1}',
        '{"traceEvents": [' + 5000 * "[" + "]}",
    ],
)
def test_what_is_no_json_is_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for chunk in (*range(1, 24), 1 << 20):
        monkeypatch.setattr(json_stream, "_CHUNK", chunk)
        with pytest.raises(DamagedInput, match=r"rank0\.trace\.json is not valid JSON: "):
            read(write(tmp_path, text))


@pytest.mark.parametrize("end", ["", ",", ",\n", "\n]"])
def test_a_list_that_is_the_whole_file_need_not_be_closed(tmp_path: Path, end: str) -> None:
    timeline = read(write(tmp_path, json.dumps([event(name="aten::mm"), event(name="aten::add")])[:-1] + end))
    assert timeline.names(timeline.kernels.name) == ["aten::mm", "aten::add"]


@pytest.mark.parametrize("cut", [40, 60, 90])
def test_a_trace_that_ends_in_an_event_was_cut_off(tmp_path: Path, cut: int) -> None:
    text = json.dumps({"traceEvents": [event(name="aten::mm"), event(name="aten::add")]})
    with pytest.raises(DamagedInput, match="ends in the middle of an event: its writer"):
        read(write(tmp_path, text[:cut]))


def test_odd_events_are_left_out_and_the_rest_is_right(tmp_path: Path) -> None:
    odd = [
        event(None),  # type: ignore[arg-type]
        event(dur=-1),
        event(ts=2**70),
        event(ts=2**53, dur=2**53),
        event(ts=-(2**53), dur=-(2**53)),
        event(name=5),  # type: ignore[arg-type]
        event(tid=None),
    ]
    kept = [event(args={"correlation": 2**70}), event(args={"device": "a"}), event(args=[1])]
    usual = [event(args={"correlation": i}) for i in range(3)]
    events = [
        usual[0],
        *odd,
        *kept,
        usual[1],
        {"cat": 5},
        {"cat": None},
        {**usual[2], "args": {"correlation": 2, "x": [None]}},
    ]
    timeline = with_possible_times(read(write(tmp_path, json.dumps({"traceEvents": events}))))
    assert timeline.kernels.correlation.tolist() == [0, *[NO_CORRELATION] * len(kept), 1, 2]
    seen = len(odd) + len(kept) + len(usual)
    assert [(loss.detail, loss.count, loss.of) for loss in timeline.origin.losses] == [
        ("args", 1, seen),
        ("correlation", 1, seen),
        ("device", 1, seen),
        ("name", 2, seen),
        ("stream", 1, seen),
        ("ts", 1, seen),
        ("start", 2, seen - 4),
        ("end", 1, seen - 4),
    ]
    kinds = [loss.kind for loss in timeline.origin.losses]
    assert kinds == [LossKind.FIELD] * 3 + [LossKind.ROW] * 5


def test_stamps_at_the_ends_of_64_bits_break_no_analysis(tmp_path: Path) -> None:
    largest = 2**62 // 1000 - 1
    long = 2**53 // 1000
    events = [
        event(args={"device": 0, "stream": 7, "correlation": i}, ts=ts, dur=dur)
        for i, (ts, dur) in enumerate([(0, 1), (largest, 1), (-largest, 1), (5, 0), (-largest, long)])
    ]
    call = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 1,
    }
    events += [{**call, "args": {"correlation": i}} for i in range(5)]
    events.append({**call, "cat": "user_annotation", "name": "iteration", "ts": -largest, "dur": long})
    # Beyond what a clock can give: left out, and said.
    events += [event(ts=largest + 2), event(ts=-largest, dur=long + 1)]
    timeline = with_possible_times(read(write(tmp_path, json.dumps({"traceEvents": events}))))
    lost = [loss.sentence for loss in timeline.origin.losses if loss.kind is LossKind.ROW]
    assert lost == [
        "1 of 7 kernels has no valid start and is left out",
        "1 of 7 kernels has no valid duration and is left out",
    ]
    for analysis in ANALYSES.values():
        if analysis.scope is Scope.RANK:
            analyze_rank(analysis, timeline, 0)


def test_bytes_that_are_no_utf8_spoil_only_their_name(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace.json"
    text = json.dumps({"traceEvents": [event("caf#"), event()]}).encode().replace(b"#", b"\xe9")
    path.write_bytes(text)
    timeline = read(path)
    assert timeline.names(timeline.kernels.name) == ["caf?", "gemm"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK", 1 << 13)
    # Of these, none is kept.
    others = ",".join([json.dumps(event(f"file.py({i}): f", cat="overhead")) for i in range(1000)])
    path = write(tmp_path, '{"traceEvents": [' + ",".join([others] * 12) + "," + json.dumps(event()) + "]}")
    read(write(tmp_path / "warm", json.dumps({"traceEvents": [event()]})))
    tracemalloc.start()
    assert len(read(path).kernels) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 9e5
    assert peak < 4.5e5


def test_one_event_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK", 1 << 10)
    monkeypatch.setattr(json_stream, "_MAX_EVENT_BYTES", 1 << 16)
    with pytest.raises(DamagedInput, match="has an event of more than 0 MiB"):
        read(write(tmp_path, json.dumps({"traceEvents": [event("x" * (1 << 18))]})))
    with pytest.raises(DamagedInput, match="has no list of traceEvents"):
        read(write(tmp_path, json.dumps({"x": "y" * (1 << 18), "traceEvents": []})))


class Growing(io.BytesIO):
    """A file that another process appends to whenever its end was reached."""

    def __init__(self, text: bytes, more: bytes) -> None:
        super().__init__(text)
        self._more = more

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if not found and self._more:
            at = self.tell()
            self.write(self._more)
            self.seek(at)
            self._more = b""
        return found


@pytest.mark.parametrize("cut", [20, 60, 100, 150, 199])
def test_a_file_that_grows_while_it_is_read_is_refused_or_whole(cut: int) -> None:
    text = json.dumps({"traceEvents": [event(), event()], "distributedInfo": {"rank": 1}}).encode()
    growing = TraceStream(Growing(text[:cut], text[cut:]))
    try:
        assert sum(map(len, growing.batches())) == 2
        assert growing.properties["distributedInfo"] == {"rank": 1}
    except NotATrace as error:
        begins = (
            "is not valid JSON: ",
            "is not a PyTorch profiler trace: ",
            "ends in the middle of an event",
        )
        assert str(error).startswith(begins)
    with pytest.raises(NotATrace, match="is not valid JSON: Extra data"):
        list(TraceStream(Growing(text, text)).batches())


def test_a_packed_trace_cut_anywhere_or_followed_by_something_is_damaged(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"traceEvents": [event()]}).encode())
    path = tmp_path / "rank0.trace.json.gz"
    for content_ in [*(packed[:n] for n in range(len(packed))), packed + b"x", packed + packed[:20]]:
        path.write_bytes(content_)
        with pytest.raises(DamagedInput, match=r"rank0\.trace\.json\.gz"):
            read(path)


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        (["1763689200123456.789", "0.500", "-0.001"], [1763689200123456789, 500, -1]),
        (["1763689200123456.789", "0.5", "-0.25"], [1763689200123456789, 500, -250]),
        (["3999999999999999.999", "4000000000000000.001"], [3999999999999999999, 4000000000000000001]),
        (["5", "0.5", "1e3", "4.2e15", "12.3456"], [5000, 500, 10**6, 42 * 10**17, 12346]),
    ],
)
def test_times_of_any_spelling_in_one_batch_are_exact(
    tmp_path: Path, spelled: list[str], expected: list[int]
) -> None:
    events = ",".join(
        f'{{"ph":"X","cat":"user_annotation","name":"x","pid":1,"tid":1,"ts":{ts},"dur":0.000}}'
        for ts in spelled
    )
    found = read(write(tmp_path, f'{{"traceEvents": [{events}]}}')).ranges
    assert found.start.tolist() == expected
    assert np.array_equal(found.start, found.end)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.lists(
        st.tuples(
            st.floats(0, 1), st.binary(max_size=6) | st.sampled_from([b'"', b"}", b"]", b",", b"null"])
        ),
        min_size=1,
        max_size=4,
    ),
    chunk=st.sampled_from([5_000, 100_000, 1 << 23]),
)
def test_a_damaged_trace_is_refused_or_gives_no_more_than_the_whole_one(
    damage: list[tuple[float, bytes]], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gzip.decompress((DATA / TRACES[0]).read_bytes())
    text = bytearray(whole)
    for where, what in damage:
        at = int(where * len(text))
        text[at : at + len(what)] = what
    path = tmp_path / "rank0.trace.json"
    path.write_bytes(text)
    with monkeypatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        try:
            timeline = read(path)
        except DamagedInput as error:
            assert "rank0.trace.json" in str(error)
        else:
            # Each piece of damage changes at most two events.
            most = 84 + 2 * len(damage)
            assert 84 - 2 * len(damage) <= len(timeline.kernels) <= most


def test_control_characters_in_names_are_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace.json"
    event = '{"ph": "X", "cat": "user_annotation", "name": "a\x01\tb", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
    path.write_text(f'{{"schemaVersion": 1, "note": "x\x02", "traceEvents": [{event}]}}')
    timeline = read(path)
    assert timeline.names(timeline.ranges.name) == ["a\x01\tb"]


def test_countless_values_that_are_no_events_are_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_MAX_OTHER_VALUES", 100)
    text = b'{"schemaVersion": 1, "traceEvents": [' + b"0, " * 1000 + b"0]}"
    with pytest.raises(NotATrace, match="countless values that are no events"):
        [*TraceStream(io.BytesIO(text)).batches()]
