"""A trace of a run has its chosen ranks and steps on one clock."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.steps.gpu_projection import ranges_on_gpu
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.errors import HpcprofError
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.readers.kineto import MERGED
from hpcprof.profiles.timeline import Ints, Timeline
from hpcprof.report.formatting import thread_names
from hpcprof.report.perfetto import export
from hpcprof.report.perfetto.export import TRACE, clock_packet, export_trace, rank_packets
from hpcprof.report.trace_arrows import gradients, launches
from hpcprof.report.trace_events import export_timelines
from hpcprof.results.ask.windows import RankSteps, RunWindows
from hpcprof.results.collect.collection import update_run
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.collect.timelines import find_timelines
from hpcprof.results.store.run_communication import RankCommunication
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from tests.data import generated_exports
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program
from tests.unit.report.perfetto.decoded import Decoded, decode

PROGRAM = Program(4, 800, slow={2: 3.0}, step_ms=20.0)
Stored = tuple[Run, Store]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("trace")
    store, _ = store_program(folder, PROGRAM)
    update_run(RUN, store)
    return Run(RUN, folder / "profiles"), store


def _export(
    stored: Stored, folder: Path, ranks: list[int], steps: tuple[int, int] | None
) -> tuple[Decoded, list[str]]:
    told: list[Path] = []
    done = export_trace(*stored, folder, told.append, ranks=ranks, steps=steps)
    assert done.written == told == [folder / TRACE]
    return decode(gzip.decompress((folder / TRACE).read_bytes())), done.notes


def test_ranks_and_steps_that_were_chosen_are_in_the_trace(stored: Stored, tmp_path: Path) -> None:
    found, notes = _export(stored, tmp_path / "new", [0, 2, 3], (2, 3))
    assert sorted(found.tracks) == ["rank 0", "rank 2", "rank 3"]
    for rank in ("rank 0", "rank 2", "rank 3"):
        own = [one for one in found.slices if one.process == rank]
        assert [one.name for one in own if one.category == "step"] == ["step 2", "step 3"]
        assert sum(one.category == "kernel" for one in own) == 200
    assert len(found.arrows) == 600
    assert notes == run_communication(*stored).clocks.notes()


def test_all_ranks_end_a_collective_together_and_an_arrow_connects_them(
    stored: Stored, tmp_path: Path
) -> None:
    found, _ = _export(stored, tmp_path, [0, 1, 2, 3], None)
    assert len(found.together) == PROGRAM.steps
    clocks = run_communication(*stored).clocks
    error = sum(clocks.uncertainty_ns(rank) or 0 for rank in range(4)) + 5_000
    for slices in found.together.values():
        assert sorted(one.process for one in slices) == [f"rank {rank}" for rank in range(4)]
        # The slow rank, which begins last, is the last that the arrows reach.
        assert slices[-1].process == "rank 2"
        ends = [one.end for one in slices]
        assert max(ends) - min(ends) <= error
    assert found.utc is not None
    starts = np.array([one.start for one in found.slices])
    assert abs(starts.min() - found.utc) < 200 * 10**9


def test_a_trace_without_utc_times_begins_at_zero(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_communication(*stored)
    found.clocks = replace(found.clocks, start_utc_ns=None)
    monkeypatch.setattr(export, "run_communication", lambda *run: found)
    for steps in ((2, 2), None):
        written, _ = _export(stored, tmp_path, [0, 1], steps)
        assert (min(one.start for one in written.slices), written.utc) == (0, None)


def test_a_chrome_trace_of_all_ranks_has_the_same_clock(stored: Stored, tmp_path: Path) -> None:
    communication = run_communication(*stored)
    done = export_timelines(find_timelines(stored[0]), tmp_path, lambda path: None, communication)
    assert done.notes == [f"{MERGED}: {note}" for note in communication.clocks.notes()]
    trace = json.loads(gzip.decompress((tmp_path / MERGED).read_bytes()))
    perfetto, _ = _export(stored, tmp_path, [0, 1, 2, 3], None)
    wanted = sorted((one.process, one.start) for one in perfetto.slices if one.category == "kernel")
    base = trace["baseTimeNanoseconds"]
    found = [
        (f"rank {event['pid']}", base + round(event["ts"] * 1000))
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel"
    ]
    assert sorted(found) == wanted


def test_the_same_run_gives_the_same_bytes(stored: Stored, tmp_path: Path) -> None:
    for name in ("one", "two"):
        _export(stored, tmp_path / name, [1], (4, 4))
    assert (tmp_path / "one" / TRACE).read_bytes() == (tmp_path / "two" / TRACE).read_bytes()


def test_steps_that_no_rank_has_are_one_sentence_and_no_folder(stored: Stored, tmp_path: Path) -> None:
    sentence = (
        r"nothing written: rank 0 of run has no step 90: its steps are 0 to 7\. So it is with 1 other rank"
    )
    with pytest.raises(HpcprofError, match=sentence):
        _export(stored, tmp_path / "none", [0, 1], (90, 90))
    assert not (tmp_path / "none").exists()


def test_a_rank_whose_profile_is_gone_is_left_out_with_a_note(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = RunWindows.read_steps

    def without_rank_0(self: RunWindows, rank: int, first: int, last: int) -> object:
        if rank == 0:
            raise HpcprofError("the profile of rank 0 is no longer there.")
        return read(self, rank, first, last)

    monkeypatch.setattr(RunWindows, "read_steps", without_rank_0)
    found, notes = _export(stored, tmp_path, [0, 1], (1, 1))
    assert sorted(found.tracks) == ["rank 1"]
    assert notes[0] == "the profile of rank 0 is no longer there."


def test_an_arrow_connects_a_send_with_its_receive(tmp_path: Path) -> None:
    store, _ = store_program(tmp_path, Program(2, 200, pipeline=2))
    update_run(RUN, store)
    found, _ = _export((Run(RUN, tmp_path / "profiles"), store), tmp_path / "new", [0, 1], None)
    ends = [sorted(one.process for one in slices) for slices in found.together.values()]
    assert ends and all(one == ["rank 0", "rank 1"] for one in ends)
    assert len(ends) == len(store.table(RUN, "point_to_point").rows)


DATA = Path(__file__).parents[3] / "data"
BEGIN = 10**15


def _shared(start: Ints) -> RankCommunication:
    """Collectives that begin at some times."""
    none = np.zeros(len(start), np.int64)
    return RankCommunication(start, np.arange(len(start)), none, none, [""] * len(start))


NONE = _shared(np.empty(0, np.int64))
TABLES = {
    "kernel": "kernels",
    "memory": "memops",
    "graph": "graphs",
    "api": "calls",
    "operator": "operators",
    "module": "modules",
    "range": "ranges",
}


OTHERS = ("wait", "annotation", "projection")


def _shift(stamps: Ints) -> Ints:
    return stamps + BEGIN


def _steps(timeline: Timeline) -> RankSteps:
    times = step_intervals(timeline)
    return RankSteps(np.arange(len(times.start)), times.start, times.end)


@pytest.fixture(scope="module", params=["nsys", "torch", "memory", "graphs", "generated"])
def timeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    path = tmp_path_factory.mktemp("profile") / "rank0.sqlite"
    if request.param == "generated":
        generated_exports.write(path, 7)
    elif request.param in ("nsys", "graphs"):
        name = {"nsys": "sp_bf16_rank0", "graphs": "cuda_graphs"}[request.param]
        path.write_bytes(lzma.decompress((DATA / f"{name}.sqlite.xz").read_bytes()))
    else:
        name = {"torch": "ddp_step_rank0", "memory": "allocator_rank0"}[request.param]
        path = DATA / f"{name}.pt.trace.json.gz"
    found = read_profile(path)
    assert isinstance(found, Timeline)
    return found


@pytest.fixture(scope="module")
def trace(timeline: Timeline) -> Decoded:
    return decode(b"".join(rank_packets(5, timeline, _steps(timeline), NONE, _shift)))


def test_every_event_is_a_slice_with_its_name_and_times(timeline: Timeline, trace: Decoded) -> None:
    expected: Counter[tuple[str, str, int, int]] = Counter()
    for category, field in TABLES.items():
        table = getattr(timeline, field)
        names = [name or "(no name)" if name is None else name for name in timeline.names(table.name)]
        times = (_shift(table.start).tolist(), np.maximum(_shift(table.start), _shift(table.end)).tolist())
        expected.update(zip([category] * len(table), names, *times, strict=True))
    steps = _steps(timeline)
    for number, start, end in zip(steps.number, steps.start, steps.end, strict=True):
        expected["step", f"step {number}", int(start) + BEGIN, int(end) + BEGIN] += 1
    found = Counter(one.key() for one in trace.slices if one.category not in OTHERS)
    assert found == expected
    projected = ranges_on_gpu(timeline)
    assert len(trace.slices) - found.total() == len(timeline.gpu_marks) + len(projected)
    drawn = sorted(one.start for one in trace.slices if one.category == "projection")
    assert drawn == sorted(_shift(projected.start).tolist())
    assert {one.process for one in trace.slices} <= {"rank 5"}


def test_work_is_on_the_track_of_its_stream_and_calls_on_that_of_their_thread(
    timeline: Timeline, trace: Decoded
) -> None:
    kernels, calls = timeline.kernels, timeline.calls
    streams = {
        f"GPU {device} stream {stream}"
        for device, stream in zip(kernels.device.tolist(), kernels.stream.tolist(), strict=True)
    }
    assert {one.track.partition(" (")[0] for one in trace.slices if one.category == "kernel"} == streams
    threads = {*thread_names(calls.thread.tolist()).values()}
    assert {one.track.partition(" (")[0] for one in trace.slices if one.category == "api"} == threads


def test_arrows_lead_from_calls_to_what_they_launched(timeline: Timeline, trace: Decoded) -> None:
    call, operation = launches(timeline)
    forward, backward = gradients(timeline)
    work, host = timeline.operations(), timeline.operators
    expected = Counter(
        [
            *zip(timeline.calls.start[call].tolist(), work.start[operation].tolist(), strict=True),
            *zip(host.start[forward].tolist(), host.start[backward].tolist(), strict=True),
        ]
    )
    assert Counter((one.start - BEGIN, two.start - BEGIN) for one, two in trace.arrows) == expected


def test_shapes_and_sizes_are_notes(timeline: Timeline, trace: Decoded) -> None:
    grids = Counter(" x ".join(map(str, grid)) for grid in timeline.kernels.grid.tolist())
    assert Counter(one.notes["grid"] for one in trace.slices if one.category == "kernel") == grids
    sizes = Counter(size for size in timeline.memops.bytes.tolist() if size >= 0)
    assert Counter(one.notes["bytes"] for one in trace.slices if "bytes" in one.notes) == sizes
    shapes = Counter(shape for shape in timeline.names(timeline.operators.dims) if shape is not None)
    assert Counter(one.notes["shapes"] for one in trace.slices if "shapes" in one.notes) == shapes


def test_counters_show_memory_and_how_much_launched_work_waits(timeline: Timeline, trace: Decoded) -> None:
    table = timeline.allocations
    for device in np.unique(table.device).tolist():
        rows = table.device == device
        where = "on the host" if device < 0 else f"on GPU {device}"
        values = trace.counters["rank 5", f"allocated {where}"]
        assert sorted(values) == sorted(
            zip((table.time[rows] + BEGIN).tolist(), table.allocated[rows].tolist(), strict=True)
        )
        assert trace.units[f"allocated {where}"] == 3
    call, operation = launches(timeline)
    if len(call):
        waiting = dict(trace.counters["rank 5", "launched operations that wait"])
        begin, launched = timeline.operations().start[operation], timeline.calls.start[call]
        for moment, value in list(waiting.items())[:: len(waiting) // 50 + 1]:
            now = moment - BEGIN
            expected = np.count_nonzero((np.minimum(launched, begin) <= now) & (begin > now))
            assert value == expected


def test_matched_collectives_of_two_ranks_share_an_arrow(timeline: Timeline) -> None:
    kernels = timeline.kernels
    own = np.flatnonzero(kernels.category == 1)[:3]
    matched, steps = _shared(kernels.start[own]), _steps(timeline)
    ranks = [b"".join(rank_packets(rank, timeline, steps, matched, _shift)) for rank in (0, 1)]
    found = decode(b"".join([clock_packet(BEGIN), *ranks]))
    assert found.utc == BEGIN and sorted(found.tracks) == ["rank 0", "rank 1"]
    assert len(found.together) == len(set(kernels.start[own].tolist()))
    for slices in found.together.values():
        assert [one.process for one in slices] == ["rank 0", "rank 1"]
        assert slices[0].key() == slices[1].key() and slices[0].category == "kernel"


def test_collectives_of_the_host_share_an_arrow_too() -> None:
    timeline = read_profile(DATA / "cpu_ddp_rank0.pt.trace.json.gz")
    assert isinstance(timeline, Timeline) and not len(timeline.kernels)
    start = timeline.host_collectives.start
    found = decode(b"".join(rank_packets(0, timeline, _steps(timeline), _shared(start), _shift)))
    assert [len(slices) for slices in found.together.values()] == [1] * len(start)
    assert {one.category for (one,) in found.together.values()} == {"range"}
    assert sorted(one.start - BEGIN for (one,) in found.together.values()) == sorted(start.tolist())
