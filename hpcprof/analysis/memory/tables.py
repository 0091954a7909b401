"""The tables about the memory of a run, from step lines, snapshots of PyTorch and samples of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.memory.contents import (
    FRAGMENTATION,
    KINDS,
    OUTSIDE,
    Contents,
    Held,
    Place,
    contents_of,
    differences,
    line_of,
)
from hpcprof.analysis.memory.declarations import NO_SNAPSHOTS
from hpcprof.analysis.memory.host import host_rows
from hpcprof.analysis.telemetry.tables import RunTelemetry
from hpcprof.common.units import counted
from hpcprof.profiles.readers.memory_snapshot import DeviceMemory, MemorySnapshot
from hpcprof.profiles.timeline import Ints

OUT_OF_MEMORY, ASKED = "out_of_memory", "asked"
"""The events of the snapshots of a rank that ran out of memory, and of the others then."""

_NO_LINES = "no rank noted the memory of a GPU"
_NO_SAMPLES = "the memory of the ranks on the host was not sampled"
_MOST_MOMENTS, _MOST_PLACES, _MOST_LINES = 400, 2000, 60
REST = "(rest)"
"""The line of what has too little memory for a row of its own."""


class MemoryLine(NamedTuple):
    """A rank's line about the steps up to one, with the peaks of PyTorch's allocator so far, in bytes."""

    step: int
    allocated: int
    reserved: int
    inactive_split: int


class RankSnapshot(NamedTuple):
    """A snapshot of a rank, in a file; None if that is damaged."""

    rank: int
    file: str
    snapshot: MemorySnapshot | None


@dataclass(frozen=True, eq=False)
class RunMemory:
    """Facts about the memory of a run.

    Attributes
    ----------
    lines : mapping of int to sequence of MemoryLine
        By rank, in the order of time.
    snapshots : iterable of RankSnapshot
        Each is read when it is asked for.
    telemetry : RunTelemetry or None
    """

    lines: Mapping[int, Sequence[MemoryLine]]
    snapshots: Iterable[RankSnapshot]
    telemetry: RunTelemetry | None = None


@dataclass(frozen=True, eq=False)
class _Looked:
    """A GPU in a snapshot that was looked at, without its blocks and events."""

    key: dict[str, Any]
    held: dict[Place, Held]
    summary: dict[str, Any]
    series: list[dict[str, Any]]

    @property
    def moment(self) -> tuple[str, int | None]:
        """Properties that compared snapshots share; a failure and who was asked are one."""
        event = self.key["event"]
        return (
            (OUT_OF_MEMORY, None)
            if event == ASKED
            else (event, None if event == OUT_OF_MEMORY else self.key["step"])
        )


def memory_tables(run: RunMemory) -> dict[str, Outcome]:
    """Compute the tables about the memory of a run, by their names."""
    looked: list[_Looked] = []
    damaged = 0
    for one in run.snapshots:
        if one.snapshot is None:
            damaged += 1
        else:
            looked += _looked_at(one.rank, one.file, one.snapshot)
    reason = f"{counted(damaged, 'snapshot')} could not be read" if damaged else ""
    lines = [row for rank, own in sorted(run.lines.items()) for row in _line_rows(rank, own)]
    host = [*host_rows(run.telemetry)] if run.telemetry is not None else []
    return {
        "memory_use": _outcome(lines, _NO_LINES),
        "memory_snapshots": _outcome([one.key | one.summary for one in looked], NO_SNAPSHOTS, reason),
        "memory": _outcome([*_place_rows(looked)], NO_SNAPSHOTS, reason),
        "memory_over_step": _outcome([row for one in looked for row in one.series], NO_SNAPSHOTS, reason),
        "host_memory": _outcome(host, _NO_SAMPLES),
    }


def _outcome(rows: list[dict[str, Any]], otherwise: str, reason: str = "") -> Outcome:
    return Outcome(columns_of(rows), reason) if rows else no_rows(reason or otherwise)


def _line_rows(rank: int, lines: Sequence[MemoryLine]) -> Iterator[dict[str, Any]]:
    """Yield at most 60 rows of a rank, each with the highest peaks of its lines."""
    lines = [line for line in lines if line.reserved]
    for own in np.array_split(np.arange(len(lines)), min(_MOST_LINES, len(lines))) if lines else ():
        some = [lines[at] for at in own.tolist()]
        yield {
            "rank": rank,
            "first_step": lines[own[0] - 1].step + 1 if own[0] else 0,
            "last_step": some[-1].step,
            "allocated_bytes": max(line.allocated for line in some),
            "reserved_bytes": max(line.reserved for line in some),
            "inactive_split_bytes": max(line.inactive_split for line in some),
        }


def _looked_at(rank: int, file: str, snapshot: MemorySnapshot) -> Iterator[_Looked]:
    notes = snapshot.notes
    for memory in snapshot.devices:
        if not memory.reserved_bytes and not memory.blocks:
            continue
        found = contents_of(snapshot, memory)
        peak, total = found.peak, found.by_kind.sum(axis=0)
        held, allocated, reserved = found.held(peak), int(total[peak]), int(found.reserved[peak])
        held[Place(FRAGMENTATION, "", "")] = Held(max(0, reserved - allocated), 0)
        failed = notes.asked_bytes is not None and notes.device == memory.device
        outside = None
        if failed and notes.device_bytes is not None and notes.free_bytes is not None:
            outside = max(0, notes.device_bytes - notes.free_bytes - reserved)
            held[Place(OUTSIDE, "", "")] = Held(outside, 0)
        key = {"rank": rank, "event": notes.event, "step": notes.step, "device": memory.device}
        line = _failed_line(snapshot, memory) if failed else None
        summary = {
            "file": file,
            "time_ns": int(found.times_us[peak]) * 1000,
            "peak_bytes": allocated,
            "allocated_bytes": int(total[-1]),
            "reserved_bytes": reserved,
            "asked_bytes": notes.asked_bytes if failed else None,
            "free_bytes": notes.free_bytes if failed else None,
            "capacity_bytes": notes.device_bytes if failed else None,
            "outside_bytes": outside,
            "module": notes.module or None,
            "line": line,
            "complete": int(not notes.lost and bool(memory.events)),
        }
        series = [key | row for row in _series_rows(found, total)]
        yield _Looked(key, held, summary, series)


def _failed_line(snapshot: MemorySnapshot, memory: DeviceMemory) -> str | None:
    """Return the line that asked for what was not there; None if it is not recorded."""
    failed = [event for event in memory.events if event.action == "oom"]
    return line_of(snapshot.stacks[failed[-1].stack]) if failed else None


def _series_rows(found: Contents, total: Ints) -> Iterator[dict[str, Any]]:
    """Yield the moments of a snapshot with the bytes of each kind; of near ones, that with the most."""
    times = found.times_us
    span = max(1, int(times[-1] - times[0]))
    group = (times - times[0]) * _MOST_MOMENTS // (span + 1)
    order = np.lexsort((-total, group))
    chosen = np.sort(order[np.unique(group[order], return_index=True)[1]])
    for at in chosen.tolist():
        held = dict(zip(KINDS, found.by_kind[:, at].tolist(), strict=True))
        held[FRAGMENTATION] = max(0, int(found.reserved[at] - total[at]))
        yield {"time_ns": int(times[at]) * 1000, **{f"{kind}_bytes": size for kind, size in held.items()}}


def _place_rows(looked: Sequence[_Looked]) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``memory``: what each GPU of each snapshot held at its peak, the most first."""
    by_moment: dict[tuple[str, int | None], list[_Looked]] = defaultdict(list)
    for one in looked:
        by_moment[one.moment].append(one)
    for one in looked:
        rank = one.key["rank"]
        others = [other.held for other in by_moment[one.moment] if other.key["rank"] != rank]
        differs = differences(one.held, others)
        whole = sum(held.bytes for held in one.held.values()) or 1
        places = sorted(
            {*one.held, *differs}, key=lambda place: (-_held(one, place).bytes, -abs(differs.get(place, 0)))
        )
        shown, left = places[:_MOST_PLACES], places[_MOST_PLACES:]
        rest: dict[str, list[Place]] = defaultdict(list)
        for place in left:
            rest[place.kind].append(place)
        groups = [[place] for place in shown] + [*rest.values()]
        for group in groups:
            held = [_held(one, place) for place in group]
            size = sum(each.bytes for each in held)
            kind, module, line = group[0] if len(group) == 1 else (group[0].kind, "", REST)
            yield one.key | {
                "kind": kind,
                "module": module,
                "line": line,
                "bytes": size,
                "blocks": sum(each.blocks for each in held),
                "share_pct": round(100 * size / whole, 3),
                "difference_bytes": sum(differs[place] for place in group) if others else None,
            }


def _held(one: _Looked, place: Place) -> Held:
    return one.held.get(place, Held(0, 0))
