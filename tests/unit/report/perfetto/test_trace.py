"""A trace holds what the timeline holds."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hpcprof.analysis.steps.gpu_projection import ranges_on_gpu
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Ints, Timeline
from hpcprof.report.perfetto.trace import clock_packet, rank_packets
from hpcprof.report.trace_arrows import gradients, launches
from hpcprof.results.run_communication import RankCommunication
from hpcprof.results.windows import RankSteps
from tests.data import generated_exports
from tests.unit.report.perfetto.decoded import Decoded, decode

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
    threads = {f"thread {thread}" for thread in calls.thread.tolist()}
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
