"""The columnar model that every analysis reads: what one rank did, whatever profiler recorded it.

Times are int64 nanoseconds on the profile's own clock; ``Origin.start_utc_ns`` is that clock's zero
in UTC. Names are ids into one string table, ``Timeline.strings``; -1 stands for a name that the
profiler left out. All columns of a table have the same length, and rows keep the profiler's order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NO_NAME = -1
NO_PROCESS = -1
NO_CORRELATION = -1

TableT = TypeVar("TableT", bound="Table")


class Category(IntEnum):
    """What a GPU operation does: compute, communicate, or move memory."""

    COMP = 0
    COMM = 1
    MEM = 2


class Style(IntEnum):
    """How a range was opened: pushed and popped on one thread, or started and ended anywhere."""

    PUSH_POP = 0
    START_END = 1


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    def __post_init__(self) -> None:
        lengths = {f.name: len(getattr(self, f.name)) for f in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of {type(self).__name__} differ in length: {lengths}")

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self: TableT, rows: NDArray[np.bool_] | Ints) -> TableT:
        """Return the rows that a mask or an index array selects."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def empty(cls: type[TableT]) -> TableT:
        """Return the table without rows."""
        return cls(**{f.name: np.empty(SHAPES.get(f.name, (0,)), np.int64) for f in fields(cls)})


# Columns with more than one value a row.
SHAPES = {"grid": (0, 3), "block": (0, 3)}


@dataclass(frozen=True)
class Operations(Table):
    """Work on a GPU, one row an operation.

    ``correlation`` names the API call that launched the row and is unique only within ``process``;
    it is `NO_CORRELATION`, and ``process`` is `NO_PROCESS`, where the profiler left it out.
    ``category`` holds `Category` values.
    """

    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    name: Ints
    category: Ints
    correlation: Ints
    process: Ints


@dataclass(frozen=True)
class Kernels(Operations):
    """GPU kernels; ``grid`` and ``block`` have shape (n, 3)."""

    grid: Ints
    block: Ints


@dataclass(frozen=True)
class MemoryOperations(Operations):
    """Memory copies and sets; ``bytes`` is the size of each, -1 where the profile does not tell."""

    bytes: Ints


@dataclass(frozen=True)
class ApiCalls(Table):
    """CUDA runtime and driver calls on the host."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    name: Ints
    correlation: Ints


@dataclass(frozen=True)
class Ranges(Table):
    """Ranges that the program marked (NVTX, record_function).

    ``style`` holds `Style` values. ``domain`` is the name of the NVTX domain, which ``name`` then
    begins with (``NCCL:ncclAllReduce``), or `NO_NAME`. ``closed`` is 0 where the profile ends before
    the range does; its ``end`` is then the last time stamp that the profile has of any range or mark.
    ``one_thread`` is 0 where another thread ended the range.
    """

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    name: Ints
    domain: Ints
    style: Ints
    closed: Ints
    one_thread: Ints


@dataclass(frozen=True)
class Gpu:
    """What a profile says about one GPU of the node, None where it does not.

    ``device`` is its number in the profile. The peaks are those of the data sheet: the clock in Hz, the
    memory's bandwidth in bytes a second.
    """

    device: int
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    clock_hz: int | None = None
    memory_bytes: int | None = None
    memory_bytes_per_s: int | None = None


@dataclass(frozen=True)
class Fact:
    """One more thing that a profile says.

    ``kind`` is environment, option (of the capture), version (of software) or machine.
    """

    kind: str
    name: str
    value: str


@dataclass(frozen=True)
class Origin:
    """Where a timeline comes from, and what the profile says about itself.

    ``rank`` is what the profile or its file name tells, None where neither does.
    ``start_utc_ns`` is the UTC time of the clock's zero in nanoseconds since 1970, None if unknown.
    ``notes`` are sentences about what the profile holds but the timeline does not.
    """

    path: Path
    kind: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    device_names: tuple[str, ...] = ()
    profiler_version: str | None = None
    start_utc_ns: int | None = None
    gpus: tuple[Gpu, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """One rank's profile as columns."""

    origin: Origin
    strings: NDArray[np.object_]
    kernels: Kernels
    memops: MemoryOperations
    calls: ApiCalls
    ranges: Ranges

    def names(self, ids: Ints) -> list[str | None]:
        """Return the strings of ``ids``; None for `NO_NAME`."""
        return [None if i == NO_NAME else str(self.strings[i]) for i in ids.tolist()]

    def operations(self) -> Operations:
        """Return kernels and memory operations as one table, kernels first."""
        return concatenate(Operations, (self.kernels, self.memops))


def concatenate(kind: type[TableT], tables: Iterable[Table]) -> TableT:
    """Join tables row by row, keeping only the columns of ``kind``."""
    parts = list(tables)
    return kind(**{f.name: np.concatenate([getattr(t, f.name) for t in parts]) for f in fields(kind)})
