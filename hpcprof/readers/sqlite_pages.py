"""Columns of integers straight from the pages of a SQLite file, decoded by numpy many rows at once.

SQLite and its drivers hand over one value at a time, and that is most of the time of a collect (figures in
docs/performance.md). Here only the plain case is read: a table in a file without a write-ahead log, whose
columns hold integers and NULL. For anything else, and for whatever looks damaged, the answer is None, and
the caller asks SQLite, which reads it or says what is wrong.

The format: https://sqlite.org/fileformat2.html, sections 1.6 (pages of a tree) and 2.1 (records).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcprof.readers.windows import windows
from hpcprof.timeline import Ints

Bytes = NDArray[np.uint8]

_INTERIOR, _LEAF = 5, 13
_DEEPEST = 20
# So many pages are decoded at once: their arrays fit into the second-level cache.
_PAGES = 256
_WORD = 8
# Among so many rows there are at most so many kinds; with more, SQLite is as fast.
_KINDS = 256
# In a number of variable length: another byte follows.
_CONTINUED = 128

# Of each serial type the bytes of its value, -1 for those that are not read: two are reserved, and those of
# longer texts take several bytes.
_SHORT_TEXT = [(kind - 12) // 2 for kind in range(12, 128)]
_SIZES = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0, -1, -1, *_SHORT_TEXT, *[-1] * 128]
_NULL, _REAL, _ONE, _LAST = 0, 7, 9, 9


class _Unusual(Exception):
    """Only SQLite itself can read it, or say what is wrong."""


@dataclass(frozen=True)
class _File:
    """The pages of an open file; ``usable`` bytes of each hold content."""

    descriptor: int
    page: int
    usable: int
    pages: int

    def read(self, numbers: Ints) -> Bytes:
        """Return pages one after the other, and one word more; pages are counted from 1."""
        if len(numbers) and (numbers.min() < 1 or numbers.max() > self.pages):
            raise _Unusual
        buffer = np.empty(len(numbers) * self.page + _WORD, np.uint8)
        buffer[-_WORD:] = 0
        bounds = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        for i, j in pairwise(bounds):
            part = buffer[i * self.page : j * self.page]
            offset = (int(numbers[i]) - 1) * self.page if j > i else 0
            if os.preadv(self.descriptor, [part.data], offset) != len(part):
                raise _Unusual
        return buffer


def int_columns(path: Path, root: int, columns: Sequence[int], nulls: Sequence[int]) -> list[Ints] | None:
    """Return columns of a table in the order of its rows, None where only SQLite can read them.

    The caller holds a read transaction, so that no other process changes the file meanwhile.

    Parameters
    ----------
    path : Path
        The SQLite file.
    root : int
        The table's root page.
    columns : sequence of int
        Their places in the table, counted from 0.
    nulls : sequence of int
        What stands for NULL in each.
    """
    order = sorted(range(len(columns)), key=columns.__getitem__)
    wanted = {columns[i]: nulls[i] for i in order}
    try:
        with path.open("rb") as stream:
            file = _opened(stream.fileno())
            leaves = _leaves(file, root)
            parts = [leaves[i : i + _PAGES] for i in range(0, len(leaves), _PAGES)]
            found = _joined((_decoded(file, part, wanted) for part in parts), len(parts), wanted)
    except (_Unusual, OSError, IndexError):
        return None
    return [found[column] for column in columns]


def _joined(parts: Iterator[dict[int, Ints]], count: int, wanted: Iterable[int]) -> dict[int, Ints]:
    """Join the columns of so many parts; each is freed once it is copied, or all would be there twice."""
    columns = {column: np.empty(0, np.int64) for column in wanted}
    rows = room = 0
    for done, part in enumerate(parts):
        more = len(next(iter(part.values())))
        if rows + more > room:
            # The parts hold about as many rows each.
            room = rows + more * (count - done)
            columns = {column: _longer(values[:rows], room) for column, values in columns.items()}
        for column, values in part.items():
            columns[column][rows : rows + more] = values
        rows += more
    return {column: values[:rows] for column, values in columns.items()}


def _longer(values: Ints, room: int) -> Ints:
    grown = np.empty(room, np.int64)
    grown[: len(values)] = values
    return grown


def _opened(descriptor: int) -> _File:
    header = os.pread(descriptor, 100, 0)
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    # Bytes 18 and 19 are 2 where the newest pages may stand in a write-ahead log.
    if len(header) < 100 or header[18:20] != b"\x01\x01" or page < 512:
        raise _Unusual
    return _File(descriptor, page, page - header[20], os.fstat(descriptor).st_size // page)


def _leaves(file: _File, root: int) -> Ints:
    """Return the leaf pages of a table's tree in the order of their rows; all are equally deep."""
    level = np.array([root])
    for _ in range(_DEEPEST):
        if file.read(level[:1])[0] == _LEAF:
            return level
        if len(level) > file.pages:
            break
        level = np.concatenate([_children(file.read(level[i : i + 1])) for i in range(len(level))])
    raise _Unusual


def _children(page: Bytes) -> Ints:
    """Return the children of an interior page: one before each cell's key, and the right-most."""
    if page[0] != _INTERIOR:
        raise _Unusual
    count = int.from_bytes(page[3:5].tobytes(), "big")
    cells = page[12 : 12 + 2 * count].view(">u2").astype(np.int64)
    places = np.append(cells, 8)
    numbers: Ints = page[places[:, None] + np.arange(4)].view(">u4").astype(np.int64).ravel()
    return numbers


def _decoded(file: _File, leaves: Ints, wanted: dict[int, int]) -> dict[int, Ints]:
    """Return the wanted columns of leaf pages by their place in the table.

    A record begins with the serial types of its values, a byte each. Rows of the same types have their
    values in the same places and are read together; a table has few kinds of rows.
    """
    content = file.read(leaves)
    cell = _cells(content, file.page, len(leaves))
    record, payload = _records(file, content, cell)
    header = _header(content, record, max(wanted) + 2)
    found = {column: np.empty(len(cell), np.int64) for column in wanted}
    left = np.arange(len(cell))
    for _ in range(_KINDS):
        if not len(left):
            return found
        alike = np.logical_and.reduce([word[left] == word[left[0]] for word in header])
        rows, left = left[np.flatnonzero(alike)], left[np.flatnonzero(~alike)]
        kinds = np.array([word[rows[0]] for word in header]).view(np.uint8).tolist()
        places = _places(kinds, max(wanted))
        begin, end = places[min(wanted)], places[-1]
        if end > payload[rows].min():
            raise _Unusual
        parts = windows(content, end - begin + _WORD)[record[rows] + begin]
        for column, null in wanted.items():
            found[column][rows] = _values(parts, places[column] - begin, kinds[column + 1], null)
    raise _Unusual


def _records(file: _File, content: Bytes, cell: Ints) -> tuple[Ints, Ints]:
    """Return where the record of each cell begins, and its bytes."""
    payload_bytes = _bytes_at(content, cell)
    rowid = cell + _varint_length(payload_bytes)
    record = rowid + _varint_length(_bytes_at(content, rowid))
    payload = _payload(payload_bytes)
    # A longer one goes on in overflow pages; one that leaves its page is damaged.
    if len(cell) and (
        payload.max() > file.usable - 35 or np.any(cell % file.page + (record - cell) + payload > file.usable)
    ):
        raise _Unusual
    return record, payload


def _header(content: Bytes, record: Ints, size: int) -> list[Ints]:
    """Return the first ``size`` bytes of each record, in words; what is behind them is zero."""
    words = []
    for at in range(0, size, _WORD):
        part = _bytes_at(content, record + at)
        part[:, max(0, size - at) :] = 0
        words.append(part.view(np.int64)[:, 0])
    return words


def _places(kinds: Sequence[int], last: int) -> list[int]:
    """Return where in a record each value up to that of the column ``last`` begins, and where that ends.

    ``kinds`` begins with the size of the record's header, which the values follow, then come their types.
    """
    # A smaller header was written before its table had all columns.
    if not last + 1 < kinds[0] < _CONTINUED:
        raise _Unusual
    sizes = [_SIZES[kind] for kind in kinds[1 : last + 2]]
    if min(sizes) < 0:
        raise _Unusual
    return list(accumulate(sizes, initial=kinds[0]))


def _cells(content: Bytes, page: int, pages: int) -> Ints:
    """Return where each cell of leaf pages begins."""
    start = np.arange(pages) * page
    counts = (content[start + 3].astype(np.int64) << 8) + content[start + 4]
    if pages and (counts.max() > page // 2 or np.any(content[start] != _LEAF)):
        raise _Unusual
    of_page = np.repeat(start, counts)
    within = np.arange(len(of_page)) - np.repeat(np.cumsum(counts) - counts, counts)
    pointers = content[: pages * page].view(">u2")
    cells: Ints = of_page + pointers[of_page // 2 + 4 + within]
    return cells


def _bytes_at(content: Bytes, place: Ints) -> Bytes:
    """Return the eight bytes from each place on, shape (n, 8)."""
    return windows(content, _WORD)[place].view(np.uint8).reshape(-1, _WORD)


def _varint_length(content: Bytes) -> Ints:
    """Return the bytes of the number at the beginning of each row: all but the last have the high bit.

    The ninth is the last whatever it is.
    """
    length = np.ones(len(content), np.int64)
    more = np.ones(len(content), bool)
    for i in range(_WORD):
        more &= content[:, i] > 127
        if not more.any():
            break
        length += more
    return length


def _payload(content: Bytes) -> Ints:
    """Return the number at the beginning of each row; of three bytes it is not that of some integers."""
    first, second = content[:, 0].astype(np.int64), content[:, 1].astype(np.int64)
    long = first > 127
    if np.any(long & (second > 127)):
        raise _Unusual
    return np.where(long, ((first & 127) << 7) + second, first)


def _values(parts: NDArray[np.void], place: int, kind: int, null: int) -> Ints | int:
    """Return the integers of one serial type that stand at a place in parts of records."""
    size = _SIZES[kind]
    if kind > _LAST or kind == _REAL:
        raise _Unusual
    if not size:
        return null if kind == _NULL else int(kind == _ONE)
    values = np.ndarray((len(parts),), ">i8", parts, place, (parts.itemsize,))
    shifted: Ints = values.astype(np.int64) >> (8 * (_WORD - size))
    return shifted
