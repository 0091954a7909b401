"""Values and rows in a file: those of thousands of ranks would take gigabytes of memory at once."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from secrets import token_bytes
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.collectives.across_ranks import in_order
from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.outcome import Outcome, as_declared, no_rows

_BLOCK = 2048
_AT_ONCE = 50_000
"""About how many rows are sorted at a time."""

Table = Mapping[str, NDArray[Any]]
"""Rows as columns, in the order of the column ``begin``."""


_MARK_BYTES = 16


class Shelf:
    """Values in a temporary file, which goes with the shelf.

    Attributes
    ----------
    shared : SharedShelf
        Finds the values in another process.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the shelf)
        finalize(self, self._file.close)
        mark = token_bytes(_MARK_BYTES)
        self._file.write(mark)
        self.shared = SharedShelf(Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}"), mark)
        _HERE[self.shared] = self

    def put(self, value: object) -> int:
        """Write a value and return its place."""
        place = self._file.seek(0, SEEK_END)
        pickle.dump(value, self._file)
        return place

    def get(self, places: Iterable[int]) -> list[Any]:
        """Read the values at some places."""
        return [pickle.load(self._file) for _ in map(self._file.seek, places)]

    def flush(self) -> None:
        """Let other processes see all values."""
        self._file.flush()


@dataclass(frozen=True)
class SharedShelf:
    """The shelf of another process on this machine: its file, which has no name, and how it begins."""

    file: Path
    mark: bytes

    @contextmanager
    def opened(self) -> Iterator[Callable[[Iterable[int]], list[Any]]]:
        """Open the shelf, and return what reads the values at some places.

        Raises
        ------
        OSError
            If it is not here: on another machine, any file may be in its place.
        """
        if self in _HERE:  # Only Linux has its file.
            yield _HERE[self].get
            return
        missing = FileNotFoundError(errno.ENOENT, "not the shelf", str(self.file))
        if not self.file.is_file():  # Reading the pipe of a stranger would take what is meant for others.
            raise missing
        with self.file.open("rb") as file:
            if file.read(_MARK_BYTES) != self.mark:
                raise missing
            yield lambda places: [pickle.load(file) for _ in map(file.seek, places)]


_HERE: WeakValueDictionary[SharedShelf, Shelf] = WeakValueDictionary()
"""The shelves of this process."""


@dataclass(frozen=True)
class ShelvedRows:
    """The outcome of an analysis over the ranks whose rows are on a shelf.

    Attributes
    ----------
    parts : callable
        Yields an outcome with the first rows, one with the next rows, and so on.
    reason : str
    """

    parts: Callable[[], Iterator[Outcome]]
    reason: str

    def batches(self, size: int) -> Iterator[dict[str, list[Any]]]:
        """Yield the columns of at most ``size`` rows after the other, as `Outcome.batches` does."""
        for part in self.parts():
            yield from part.batches(size)

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of all rows in Python's own types."""
        parts = [part.columns() for part in self.parts()]
        return {name: [value for part in parts for value in part[name]] for name in parts[0]}


@dataclass(frozen=True)
class Block:
    """Rows of a table that are on a shelf: when the first of them begins, and the columns of objects."""

    begin: int
    place: int
    objects: frozenset[str]


def put_table(table: Table, shelf: Shelf) -> list[Block]:
    """Write the rows of a table in blocks."""
    objects = frozenset(name for name, values in table.items() if values.dtype == object)
    begin = table.get("begin", ())
    return [
        Block(
            int(begin[at]),
            shelf.put({name: values[at : at + _BLOCK] for name, values in table.items()}),
            objects,
        )
        for at in range(0, len(begin), _BLOCK)
    ]


def sorted_rows(blocks: Sequence[Block], shelf: Shelf, analysis: Analysis, reason: str) -> ShelvedRows:
    """Return the rows of several tables in the order of ``begin``; see `in_order`."""
    objects = frozenset[str]().union(*(block.objects for block in blocks))

    def parts() -> Iterator[Outcome]:
        if not blocks:
            yield as_declared(no_rows(reason), analysis)
        for table in _merged(blocks, shelf):
            yield as_declared(Outcome(in_order(table, objects)), analysis)

    return ShelvedRows(parts, reason)


def _merged(blocks: Sequence[Block], shelf: Shelf) -> Iterator[Table]:
    """Yield the rows of blocks some at a time: all that begin before the next ones."""
    read: list[Table] = []
    count, most = 0, _AT_ONCE
    for block in sorted(blocks, key=lambda block: block.begin):
        if count >= most:
            done, left = _divided(_joined(read), block.begin)
            if len(done["begin"]):
                yield done
            read, count = [left], len(left["begin"])
            # If few rows were done, looking again soon would take long.
            most = max(_AT_ONCE, 2 * count)
        read += shelf.get([block.place])
        count += len(read[-1]["begin"])
    if count:
        yield _joined(read)


def _joined(tables: Sequence[Table]) -> Table:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _divided(table: Table, begin: int) -> tuple[Table, Table]:
    """Return the rows that begin before a moment, and the others."""
    before = table["begin"] < begin
    done, left = ({name: of[rows] for name, of in table.items()} for rows in (before, ~before))
    return done, left
