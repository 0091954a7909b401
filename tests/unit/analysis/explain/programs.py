"""Programs with known times, and a slow simulator that says what their hosts and GPUs do at which moment.

The simulator knows nothing of graphs: it executes each rank's instructions one after another until the next
collective or message, and goes on when all of its ranks have come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.common_clock import RankClock, connect
from hpcprof.analysis.collectives.matches import arrivals_of
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.framework.declaration import Part
from hpcprof.analysis.framework.outcome import AnalysisTable, Outcome, analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.mpi.run_lists import RunLists
from hpcprof.analysis.mpi.tables import mpi_tables
from hpcprof.profiles.host_memory import host_memory_of_name
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    NO_NAME,
    NO_PEER,
    NO_STREAM,
    ApiCalls,
    Category,
    Collectives,
    Gpu,
    Ints,
    Kernels,
    MemoryOperations,
    MpiCalls,
    MpiOperations,
    Operations,
    Origin,
    Ranges,
    Synchronizations,
    SyncKind,
    Timeline,
)
from tests.unit.analysis.mpi.programs import match_mpi
from tests.unit.analysis.over_all_ranks import analyze, matched, matches_among

US, MS = 1_000, 1_000_000
CALL, LAUNCH, GAP, EVENT, RETURN = 4 * US, 9 * US, 1 * US, 2 * US, 5 * US
"""The times of a call, to the start of a launch, between operations, after an event, and of a return."""

QUEUE = 1022
"""The launches that a stream holds; a further one returns when there is room."""


@dataclass(frozen=True)
class Host:
    """The host works."""

    ns: int


@dataclass(frozen=True)
class Launch:
    """A kernel, a copy (``blocks``: its call returns when it has ended), a collective, or a message.

    A collective is an all-reduce of all ranks, or of those of its ``group``; with a ``root``, a broadcast
    from it or, if it ``gathers``, a reduce to it. A message goes to its ``peer`` if it ``sends``, else it
    comes from there. ``call_ns`` is the time of the call, ``grid`` the size of the grid of a kernel.
    """

    ns: int
    stream: int = 7
    name: str = "gemm"
    category: Category = Category.COMP
    collective: bool = False
    blocks: bool = False
    root: int | None = None
    gathers: bool = False
    device: int = 0
    call_ns: int = CALL
    group: tuple[int, ...] = ()
    peer: int | None = None
    sends: bool = False
    op: str = "AllReduce"
    grid: int = 1

    @property
    def communicates(self) -> bool:
        """True for collectives and messages."""
        return self.collective or self.peer is not None

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        if self.peer is not None:
            return "ncclDevKernel_SendRecv"
        if not self.collective:
            return self.name
        op = self.op if self.root is None else "Reduce" if self.gathers else "Broadcast"
        return f"ncclDevKernel_{op}"


@dataclass(frozen=True)
class Wait:
    """The host waits for a stream or, with none, for all of a device, and ``late_ns`` more."""

    stream: int | None = 7
    device: int = 0
    late_ns: int = 0


@dataclass(frozen=True)
class Memory:
    """The host allocates memory of the GPU or, when all streams are empty, frees it; or does by ``name``."""

    ns: int
    frees: bool = False
    name: str = ""


@dataclass(frozen=True)
class Compile:
    """The host compiles a kernel and loads it."""

    ns: int


@dataclass(frozen=True)
class StreamWait:
    """A stream waits for what another one has been given."""

    stream: int
    source: int
    device: int = 0
    source_device: int = 0


@dataclass(frozen=True)
class Place:
    """Instructions inside a range."""

    name: str
    inside: tuple[Instruction, ...]


@dataclass(frozen=True)
class Once:
    """Instructions of a single step: in their place inside it, or after its end."""

    step: int
    inside: tuple[Instruction, ...]
    after: bool = False


@dataclass(frozen=True)
class Mpi:
    """A call of MPI on the host: an all-reduce or, with a ``peer``, a message; it goes to it if it ``sends``.

    It ends ``ns`` after all of its ranks have come.
    """

    ns: int
    bytes: int = 1 << 22
    peer: int | None = None
    sends: bool = False


Instruction = Host | Launch | Wait | Memory | Compile | StreamWait | Place | Once | Mpi


Meeting = tuple[int, ...]
"""The ranks that take part in a collective, or the sender and the receiver of a message; empty for all."""

Executing = Generator[tuple[Meeting, int], dict[int, int], None]
"""Yields when a rank comes to each meeting, and is sent when each of its ranks came to it."""


@dataclass
class _Rank:
    """The events of a rank so far."""

    rank: int = 0
    now: int = 0
    number: int = 0
    step: int = 0
    after: bool = False
    calls: list[tuple[int, int, str, int]] = field(default_factory=list)
    work: list[tuple[int, int, Launch, int]] = field(default_factory=list)
    ranges: list[tuple[int, int, str]] = field(default_factory=list)
    syncs: list[tuple[int, int, int, int, int, int, int, int]] = field(default_factory=list)
    starts: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    events: dict[tuple[int, int], int] = field(default_factory=dict)
    mpi: list[tuple[int, int, Mpi]] = field(default_factory=list)


def simulate(ranks: Sequence[Sequence[Instruction]], steps: int) -> dict[int, Timeline]:
    """Execute the instructions of each rank in every step, and return what a profiler would record."""
    return dict(_simulated(tuple(tuple(one) for one in ranks), steps))


@lru_cache(32)
def _simulated(ranks: tuple[tuple[Instruction, ...], ...], steps: int) -> Mapping[int, Timeline]:
    found = [_Rank(number, now=1000 * US) for number in range(len(ranks))]
    running = [_executed(rank, program, steps) for rank, program in zip(found, ranks, strict=True)]
    come = [next(one, None) for one in running]
    every = tuple(range(len(ranks)))
    while any(come):
        meeting = next((one for one in come if one and _is_complete(one[0] or every, one[0], come)), None)
        assert meeting, "the ranks communicate in different orders"
        arrived = {rank: one[1] for rank in meeting[0] or every if (one := come[rank])}
        for rank in arrived:
            come[rank] = _sent(running[rank], arrived)
    return {rank.rank: _timeline(rank, rank.rank, len(ranks)) for rank in found}


def without_waits(timeline: Timeline) -> Timeline:
    """Return a timeline as of a profiler that records no waits of the host or of streams, as that of XLA."""
    calls, strings = timeline.calls, timeline.strings
    waits = np.array(["Synchronize" in name or "Event" in name for name in strings], bool)[calls.name]
    return replace(timeline, calls=calls.take(~waits), synchronizations=Synchronizations.empty())


def _is_complete(ranks: Sequence[int], meeting: Meeting, come: Sequence[tuple[Meeting, int] | None]) -> bool:
    return all((one := come[rank]) is not None and one[0] == meeting for rank in ranks)


def _sent(one: Executing, arrived: dict[int, int]) -> tuple[Meeting, int] | None:
    try:
        return one.send(arrived)
    except StopIteration:
        return None


def _executed(rank: _Rank, program: Sequence[Instruction], steps: int) -> Executing:
    for rank.step in range(steps):
        begin = rank.now
        rank.after = False
        for one in program:
            yield from _execute(rank, one)
        rank.ranges.append((begin, rank.now, "iteration"))
        rank.after = True
        for one in program:
            if isinstance(one, Once):
                yield from _execute(rank, one)


def _execute(rank: _Rank, one: Instruction) -> Executing:
    if isinstance(one, Host):
        rank.now += one.ns
    elif isinstance(one, Once):
        for inner in one.inside if (one.step, one.after) == (rank.step, rank.after) else ():
            yield from _execute(rank, inner)
    elif isinstance(one, Place):
        begin = rank.now
        for inner in one.inside:
            yield from _execute(rank, inner)
        rank.ranges.append((begin, rank.now, one.name))
    elif isinstance(one, Launch):
        yield from _launch(rank, one)
    elif isinstance(one, Mpi):
        begin = rank.now
        arrived = yield _meeting(rank.rank, one), begin
        rank.now = max(arrived.values()) + one.ns
        rank.mpi.append((begin, rank.now, one))
    elif isinstance(one, Memory):
        begin, name = rank.now, one.name or ("cudaFree" if one.frees else "cudaMalloc")
        number = _call(rank, name)
        rank.now = (max(begin, *rank.ends.values()) if one.frees and rank.ends else begin) + one.ns
        rank.calls[-1] = (begin, rank.now, name, number)
    elif isinstance(one, Compile):
        rank.now += one.ns
        _call(rank, "cuModuleLoadDataEx")
    elif isinstance(one, Wait):
        _wait(rank, one)
    else:
        record = _call(rank, "cudaEventRecord")
        begin, number = rank.now, _call(rank, "cudaStreamWaitEvent")
        source, stream = (one.source_device, one.source), (one.device, one.stream)
        # A stream without work of its own passes on what it waits for.
        done = max(rank.ends.get(source, -EVENT), rank.events.get(source, -EVENT))
        rank.events[stream] = max(rank.events.get(stream, 0), done + EVENT)
        wait = (SyncKind.STREAM_WAIT, number, one.device, one.stream, one.source, record)
        rank.syncs.append((begin, rank.now, *wait))


def _wait(rank: _Rank, one: Wait) -> None:
    name = "cudaDeviceSynchronize" if one.stream is None else "cudaStreamSynchronize"
    begin, number = rank.now, _call(rank, name)
    # A stream that waits for an event is not empty before that.
    given = [*rank.ends.items(), *((stream, end - EVENT) for stream, end in rank.events.items())]
    awaited = [
        end for (device, stream), end in given if device == one.device and one.stream in (None, stream)
    ]
    rank.now = max(rank.now, *(end + RETURN for end in awaited), 0) + one.late_ns
    rank.calls[-1] = (begin, rank.now, name, number)
    kind, stream = (SyncKind.DEVICE, NO_STREAM) if one.stream is None else (SyncKind.STREAM, one.stream)
    rank.syncs.append((begin, rank.now, kind, number, one.device, stream, NO_STREAM, NO_CORRELATION))


def _call(rank: _Rank, name: str, ns: int = CALL) -> int:
    begin = rank.now
    rank.now += ns
    rank.number += 1
    rank.calls.append((begin, rank.now, name, rank.number))
    return rank.number


def _launch(rank: _Rank, one: Launch) -> Executing:
    begin, name = rank.now, "cudaMemcpyAsync" if one.category is Category.MEM else "cudaLaunchKernel"
    number = _call(rank, name, one.call_ns)
    stream = (one.device, one.stream)
    ready = rank.ends[stream] + GAP if stream in rank.ends else 0
    start = max(begin + one.call_ns + LAUNCH - CALL, ready, rank.events.pop(stream, 0))
    end = start + one.ns
    if one.communicates:
        arrived = yield one.group or _meeting(rank.rank, one), start
        end = max(start, _awaited(rank.rank, one, arrived)) + one.ns
    starts = rank.starts.setdefault(stream, [])
    if len(starts) >= QUEUE:
        rank.now = max(rank.now, starts[-QUEUE])
    if one.blocks:
        rank.now = max(rank.now, end + RETURN)
    rank.calls[-1] = (begin, rank.now, name, number)
    starts.append(start)
    rank.work.append((start, end, one, number))
    rank.ends[stream] = end


def _meeting(rank: int, one: Launch | Mpi) -> Meeting:
    if one.peer is None:
        return ()
    return (rank, one.peer) if one.sends else (one.peer, rank)


def _awaited(rank: int, one: Launch, arrived: Mapping[int, int]) -> int:
    """Return until when a rank waits in a collective to which the ranks came at these moments."""
    if one.root is None or (one.gathers and rank == one.root):
        return max(arrived.values())
    return arrived[rank] if one.gathers else arrived[one.root]


def _timeline(rank: _Rank, number: int, ranks: int) -> Timeline:
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    kernels = [one for one in rank.work if one[2].category is not Category.MEM]
    copies = [one for one in rank.work if one[2].category is Category.MEM]
    ranges = sorted(rank.ranges, key=lambda one: (one[0], -one[1]))
    columns = Operations(**_operations(kernels, text))
    count = len(kernels)
    shape = np.ones((count, 3), np.int64)
    grid = shape * _ints(one[2].grid for one in kernels)[:, None]
    return Timeline(
        Origin(
            Path(f"rank{number:05}.sqlite"),
            "nsys",
            number,
            ranks,
            gpus=(Gpu(0, "NVIDIA H200", compute_capability="9.0"),),
        ),
        kernels=Kernels(**vars(columns), grid=grid, block=32 * shape),
        memops=MemoryOperations(
            **_operations(copies, text),
            bytes=np.ones(len(copies), np.int64),
            host_memory=_ints(int(host_memory_of_name(one[2].kernel)) for one in copies),
        ),
        calls=ApiCalls(
            start=_ints(one[0] for one in rank.calls),
            end=_ints(one[1] for one in rank.calls),
            process=np.zeros(len(rank.calls), np.int64),
            thread=np.zeros(len(rank.calls), np.int64),
            name=_ints(text(one[2]) for one in rank.calls),
            correlation=_ints(one[3] for one in rank.calls),
        ),
        ranges=Ranges(
            start=_ints(one[0] for one in ranges),
            end=_ints(one[1] for one in ranges),
            process=np.zeros(len(ranges), np.int64),
            thread=np.zeros(len(ranges), np.int64),
            name=_ints(text(one[2]) for one in ranges),
            domain=np.full(len(ranges), NO_NAME),
            style=np.zeros(len(ranges), np.int64),
            closed=np.ones(len(ranges), np.int64),
            one_thread=np.ones(len(ranges), np.int64),
        ),
        synchronizations=_synchronizations(rank),
        collectives=_collectives(rank, ranks, text),
        **_mpi(rank, ranks, text),
        strings=np.array(list(texts), object),
    )


def _synchronizations(rank: _Rank) -> Synchronizations:
    of_event = ("source_stream", "source_correlation")
    names = ("start", "end", "kind", "correlation", "device", "stream", *of_event)
    table = np.array(rank.syncs, np.int64).reshape(-1, len(names))
    zeros = np.zeros(len(table), np.int64)
    return Synchronizations(process=zeros, **dict(zip(names, table.T, strict=True)))


def _collectives(rank: _Rank, ranks: int, text: Callable[[str], int]) -> Collectives:
    """Return the calls of NCCL, which only programs with groups or messages record."""
    work = [one for one in rank.work if one[2].communicates]
    if not any(one[2].group or one[2].peer is not None for one in work):
        return Collectives.empty()
    call = {number: (begin, end) for begin, end, _, number in rank.calls}
    members = [one[2].group or tuple(range(ranks)) for one in work]
    peers = _ints(NO_PEER if one[2].peer is None else one[2].peer for one in work)
    zeros = np.zeros(len(work), np.int64)
    return Collectives(
        start=_ints(call[one[3]][0] for one in work),
        end=_ints(call[one[3]][1] for one in work),
        process=zeros,
        thread=zeros,
        operation=_ints(text(_operation(one[2])) for one in work),
        communicator=_ints(text(f"ranks {group}") for group in members),
        bytes=zeros + 1,
        ranks=_ints(len(group) for group in members),
        peer=peers,
        comm_peer=peers,
    )


def _mpi(rank: _Rank, ranks: int, text: Callable[[str], int]) -> dict[str, Any]:
    """Return the calls of MPI and what begins and ends in them."""
    found = rank.mpi
    ops = ["AllReduce" if one.peer is None else "Send" if one.sends else "Recv" for *_, one in found]
    start, end = _ints(one[0] for one in found), _ints(one[1] for one in found)
    zeros, sizes = np.zeros(len(found), np.int64), _ints(one.bytes for *_, one in found)
    unknown = np.full(len(found), -1)
    calls = MpiCalls(start, end, zeros, zeros, _ints(text(f"MPI_{one.capitalize()}") for one in ops))
    operations = MpiOperations(
        start=start,
        end=end,
        process=zeros,
        thread=zeros,
        operation=_ints(map(text, ops)),
        communicator=np.full(len(found), text("world")),
        ranks=np.full(len(found), ranks),
        peer=_ints(-1 if one.peer is None else one.peer for *_, one in found),
        comm_peer=unknown,
        root=unknown,
        tag=zeros,
        bytes=sizes,
        received_bytes=sizes,
        begin_ns=end - start,
        wait_ns=zeros,
    )
    return {"mpi_calls": calls, "mpi_operations": operations}


def _operation(one: Launch) -> str:
    if one.peer is not None:
        return "Send" if one.sends else "Recv"
    return one.kernel.removeprefix("ncclDevKernel_")


def _operations(work: Sequence[tuple[int, int, Launch, int]], text: Callable[[str], int]) -> dict[str, Ints]:
    return {
        "start": _ints(one[0] for one in work),
        "end": _ints(one[1] for one in work),
        "device": _ints(one[2].device for one in work),
        "stream": _ints(one[2].stream for one in work),
        "name": _ints(text(one[2].kernel) for one in work),
        "category": _ints(int(Category.COMM if one[2].communicates else one[2].category) for one in work),
        "correlation": _ints(one[3] for one in work),
        "process": np.zeros(len(work), np.int64),
    }


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), np.int64)


class _Tables(dict[str, pd.DataFrame]):
    """The analyses of timelines, each computed at its first use."""

    def __init__(self, timelines: Mapping[int, Timeline]) -> None:
        super().__init__()
        self.timelines = timelines

    def __missing__(self, name: str) -> pd.DataFrame:
        analysis = ANALYSES[name]
        if analysis.map_over is Part.MPI:
            self[name] = self._of_mpi().get(name, pd.DataFrame())
        elif analysis.scope.value == "rank":
            rows = [analyze_rank(analysis, one, rank).frame for rank, one in self.timelines.items()]
            filled = [one for one in rows if len(one)]
            self[name] = pd.concat(filled or [rows[0].astype(np.int64)], ignore_index=True)
        else:
            tables = {one: AnalysisTable(Outcome(self[one]).arrays()) for one in analysis.computed_from}
            self[name] = analyze(analysis, tables).frame
        return self[name]

    def _of_mpi(self) -> dict[str, pd.DataFrame]:
        """Return the analyses of the calls of MPI; empty without any."""
        lists = RunLists()
        calls, operations = self["mpi_call_list"], self["mpi_operation_list"]
        if not len(calls):
            return {}
        for rank in self.timelines:
            lists.add(rank, *(rows[rows["rank"] == rank] for rows in (calls, operations)))
        clocks = {rank: RankClock.shifted(0) for rank in self.timelines}
        found = mpi_tables(lists, [self["mpi_regions"]], clocks, dict.fromkeys(clocks, "node"))
        return {name: outcome.rows for name, outcome in found.items()}


def whole_run(tables: Mapping[str, pd.DataFrame], clocks: Mapping[int, RankClock]) -> RunMpi | None:
    """Return the calls of MPI of all ranks on the common clock."""
    found = match_mpi(tables["mpi_call_list"], tables["mpi_operation_list"])
    return found and found.on_common_clock(clocks)


def inputs_of(timelines: Mapping[int, Timeline]) -> ExplainInputs:
    """Return what an explanation of these timelines is computed from; ranks may be missing."""
    tables = _Tables(timelines)
    rows = tables["rank_collectives"]
    sizes = pd.concat([rows["comm_ranks"], rows["world_ranks"]])
    found = matched(rows)
    clocks, aligned = {}, [*timelines]
    if parts := connect(found.aligned):
        clocks, aligned = (
            {rank: one for part in parts for rank, one in part.clocks.items()},
            [*parts[0].clocks],
        )
    elif any(len(one.mpi_calls) for one in timelines.values()):
        # Calls of MPI align the clocks, which are one here.
        clocks = {rank: RankClock.shifted(0) for rank in timelines}
    return ExplainInputs(
        ranks=tuple(timelines),
        read=timelines.__getitem__,
        window=lambda rank, *_: timelines[rank],
        mpi=lambda _: whole_run(tables, clocks),
        tables=tables,
        losses={},
        clocks=clocks,
        aligned=aligned if clocks else (),
        matches=lambda _: matches_among(found),
        arrivals=lambda: [arrivals_of([matches_among(found)])],
        world_size=max([len(timelines), *sizes.dropna().astype(int)]),
        gpus={rank: one.origin.gpus for rank, one in timelines.items()},
    )
