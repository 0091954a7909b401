"""Reader of the logs of NCCL's Inspector: a line of JSON for each collective and message that has ended.

The duration of an operation is that of its kernel on the GPU. When it ran is there only with
``NCCL_INSPECTOR_DUMP_VERBOSE=1``, in microseconds since 1970 on the host's clock.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.inspector import INSPECTOR
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_PEER,
    ApiCalls,
    Category,
    Collectives,
    Ints,
    Kernels,
    MemoryOperations,
    Origin,
    Ranges,
    Timeline,
)

_HEAD_BYTES = 1 << 16
_ON_GPU = "kernel_gpu"
_PLACEHOLDER_NS = 1_000_000_000
"""The time between the ends of operations whose times are unknown."""

_MIN_LINE_CHARACTERS = 100
"""Bytes that each line with an operation has at least: the names of its fields."""

_MAX_DURATION_US = 1 << 43
_MAX_STAMP_US = 1 << 52


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int


class _Metadata(msgspec.Struct):
    inspector_output_format_version: str = ""
    hostname: str = ""
    pid: int = 0


class _KernelEvent(msgspec.Struct):
    kernel_stop_ts: int = 0


class _EventTrace(msgspec.Struct):
    kernel_events: list[_KernelEvent] = []


def _keys_of(kind: str) -> Callable[[str], str]:
    return lambda field: {"name": kind, "event_trace_ts": field}.get(field, f"{kind}_{field}")


class _Collective(msgspec.Struct, rename=_keys_of("coll")):
    name: str
    sn: int
    msg_size_bytes: int
    exec_time_us: int
    timing_source: str = ""
    event_trace_ts: _EventTrace | None = None


class _Message(msgspec.Struct, rename=_keys_of("p2p")):
    name: str
    sn: int
    peer: int
    msg_size_bytes: int
    exec_time_us: int
    timing_source: str = ""
    event_trace_ts: _EventTrace | None = None


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: _Message | None = None

    @property
    def done(self) -> _Collective | _Message | None:
        """The operation, whichever it is."""
        return self.coll_perf or self.p2p_perf

    @property
    def is_valid(self) -> bool:
        """True if the line has an operation with possible numbers."""
        completed = self.done
        if completed is None or operation(completed.name) is None or self.header.n_ranks < 1:
            return False
        in_time = 0 <= completed.exec_time_us < _MAX_DURATION_US and 0 <= self.ended_us < _MAX_STAMP_US
        return in_time and 0 <= completed.msg_size_bytes < 1 << 62

    @property
    def ended_us(self) -> int:
        """Stop of the last channel of its kernel; 0 if that is not in the log."""
        times = self.done.event_trace_ts if self.done else None
        return max((event.kernel_stop_ts for event in times.kernel_events), default=0) if times else 0


_DECODER = msgspec.json.Decoder(_Line)


def is_log(path: Path) -> bool:
    """Return whether a file begins as a log of the Inspector does."""
    with reading(path), path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return head.startswith(b"{") and b'"inspector_output_format_version"' in head


def identify_rank(path: Path) -> int | None:
    """Return the rank in the name of a log, else that in its largest communicator, by its first lines."""
    named = rank_from_name(path)
    if named is not None:
        return named
    with reading(path), path.open("rb") as file:
        lines, _ = _lines(file.read(_HEAD_BYTES))
    largest = max((line.header for line in lines), key=lambda header: header.n_ranks, default=None)
    return None if largest is None else largest.rank


def read(path: Path) -> Timeline:
    """Read a log, also one whose end is missing because the program was killed.

    Without times in the log, operations end a second apart in their order, on all ranks at the same moment:
    only durations, sizes and the order are right.
    """
    with reading(path):
        written = path.read_bytes()
    lines, damaged = _lines(written)
    if not lines:
        raise DamagedInput(
            f"{path} is not a log of NCCL's Inspector, or has no operation; no other logs are read."
        )
    lost = losses(LossKind.ROW, Subject.EVENT, {"form": damaged}, len(lines) + damaged)
    end, without_time = _ends(lines)
    order = np.argsort(end, kind="stable")
    lines, end = [lines[row] for row in order.tolist()], end[order]
    return _timeline(path, lines, end, lost + _losses(lines, without_time))


def _lines(written: bytes) -> tuple[list[_Line], int]:
    """Return the valid lines of a log, and how many are not."""
    lines, damaged = [], 0
    for text in filter(None, map(bytes.strip, written.splitlines())):
        if len(text) < _MIN_LINE_CHARACTERS:  # an exception takes ten times as long
            damaged += 1
            continue
        try:
            line = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            damaged += 1
            continue
        if line.is_valid:
            lines.append(line)
        else:
            damaged += 1
    return lines, damaged


def _ends(lines: Sequence[_Line]) -> tuple[Ints, int]:
    """Return the ends of operations in ns, and the number of unknown ends.

    An operation ends on all ranks at about the same time, so each communicator has its own count.
    """
    ends = np.array([line.ended_us * 1000 for line in lines], np.int64)
    unknown = int(np.count_nonzero(ends == 0))
    if unknown:
        counts: dict[str, int] = defaultdict(int)
        for row, line in enumerate(lines):
            counts[line.header.id] += 1
            ends[row] = counts[line.header.id] * _PLACEHOLDER_NS
    return ends, unknown


def _losses(lines: Sequence[_Line], without_time: int) -> list[Loss]:
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for line in lines:
        if line.coll_perf is not None:
            numbers[line.header.id, line.coll_perf.name].append(line.coll_perf.sn)
    # The Inspector counts from 0; what it has written last need not be the last.
    expected = sum(max(sequence) + 1 for sequence in numbers.values())
    missing = sum(max(sequence) + 1 - len(set(sequence)) for sequence in numbers.values())
    by_cpu = sum(bool(line.done and line.done.timing_source not in ("", _ON_GPU)) for line in lines)
    fields = {"time": without_time, "duration from the GPU": by_cpu}
    return [
        *losses(LossKind.ROW, Subject.COLLECTIVE, {"record": missing}, expected),
        *losses(LossKind.FIELD, Subject.COLLECTIVE, fields, len(lines)),
    ]


def _timeline(path: Path, lines: Sequence[_Line], end: Ints, lost: list[Loss]) -> Timeline:
    strings, count = StringTable(), len(lines)
    completed = [call for line in lines if (call := line.done) is not None]
    numbers = np.arange(count)
    process = np.array([line.metadata.pid for line in lines], np.int64)
    streams: dict[str, int] = {}
    stream = np.array([streams.setdefault(line.header.id, len(streams)) for line in lines], np.int64)
    start = end - np.array([record.exec_time_us * 1000 for record in completed], np.int64)
    # Each has a call of its own, at a moment of its own.
    called = np.maximum.accumulate(start - numbers) + numbers
    host_columns = {"start": called, "end": called, "process": process, "thread": np.zeros(count, np.int64)}
    name = strings.add_all(f"nccl{record.name}" for record in completed)
    first = lines[0].metadata
    return Timeline(
        origin=Origin(
            path=path,
            kind=INSPECTOR.name,
            rank=identify_rank(path),
            world_size=max(line.header.n_ranks for line in lines),
            host=first.hostname or None,
            profiler_version=first.inspector_output_format_version or None,
            start_utc_ns=0,
            losses=tuple(lost),
        ),
        kernels=Kernels(
            start=start,
            end=end,
            device=np.zeros(count, np.int64),
            stream=stream,
            name=name,
            category=np.full(count, int(Category.COMM)),
            correlation=numbers,
            process=process,
        ),
        memops=MemoryOperations.empty(),
        calls=ApiCalls(**host_columns, name=name, correlation=numbers),
        ranges=Ranges.empty(),
        collectives=Collectives(
            **host_columns,
            operation=strings.add_all(operation(record.name) for record in completed),
            communicator=strings.add_all(line.header.id for line in lines),
            bytes=np.array([record.msg_size_bytes for record in completed], np.int64),
            ranks=np.array([line.header.n_ranks for line in lines], np.int64),
            comm_peer=np.array([getattr(record, "peer", NO_PEER) for record in completed], np.int64),
        ),
        strings=strings.array(),
    )
