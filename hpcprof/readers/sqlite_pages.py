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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcprof.timeline import Ints

Bytes = NDArray[np.uint8]

_INTERIOR, _LEAF = 5, 13
_DEEPEST = 20
# So many pages are decoded at once: their arrays fit into the second-level cache.
_PAGES = 256
_WORD = 8

# Of each serial type the bytes of its value, -1 for those that are not read: two are reserved, and those of
# longer texts take several bytes.
_SHORT_TEXT = [(kind - 12) // 2 for kind in range(12, 128)]
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, -1, -1, *_SHORT_TEXT, *[-1] * 128])
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


def int_columns(
    path: Path, root: int, columns: Sequence[int], nulls: Sequence[int], threads: int
) -> list[Ints] | None:
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
    threads : int
        How many threads decode; numpy works outside Python's lock.
    """
    order = sorted(range(len(columns)), key=columns.__getitem__)
    wanted = {columns[i]: nulls[i] for i in order}
    try:
        with path.open("rb") as stream:
            file = _opened(stream.fileno())
            leaves = _leaves(file, root)
            parts = [leaves[i : i + _PAGES] for i in range(0, len(leaves), _PAGES)]
            with ThreadPoolExecutor(threads) as pool:
                found = _joined(
                    pool.map(lambda part: _decoded(file, part, wanted), parts), len(parts), wanted
                )
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
    """Return the wanted columns of leaf pages by their place in the table."""
    content = file.read(leaves)
    # A word from every place in the content, aligned or not.
    words = np.ndarray((len(content) - _WORD + 1,), ">i8", content, strides=(1,))
    cell = _cells(content, file.page, len(leaves))
    payload_bytes = _bytes_at(words, cell)
    rowid = cell + _varint_length(payload_bytes)
    record = rowid + _varint_length(_bytes_at(words, rowid))
    payload = _payload(payload_bytes)
    columns = max(wanted) + 1
    header = content[record]
    if len(cell) and (
        # It goes on in overflow pages, or leaves its own.
        payload.max() > file.usable - 35
        or np.any(cell % file.page + (record - cell) + payload > file.usable)
        # It was written before its table had all columns, or has a header of 128 bytes and more.
        or header.min() < columns + 1
        or header.max() > 127
    ):
        raise _Unusual
    place = record + header
    found = {}
    for column in range(columns):
        if column % _WORD == 0:
            types = _bytes_at(words, record + 1 + column)
        kind = types[:, column % _WORD]
        if column in wanted:
            found[column] = _values(words, place, kind, wanted[column])
        place = place + _size(kind)
    if np.any(place > record + payload):
        raise _Unusual
    return found


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


def _bytes_at(words: NDArray[np.int64], place: Ints) -> Bytes:
    """Return the eight bytes from each place on, shape (n, 8)."""
    return words[place].view(np.uint8).reshape(-1, _WORD)


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


def _size(kind: Bytes) -> Ints | int:
    """Return the bytes of the values of some serial types; often all are of one."""
    size = _SIZES[kind[0]] if len(kind) and np.all(kind == kind[0]) else _SIZES[kind]
    if np.any(size < 0):
        raise _Unusual
    return size


def _values(words: NDArray[np.int64], place: Ints, kind: Bytes, null: int) -> Ints:
    """Return big-endian integers of the sizes that serial types say."""
    if np.any((kind > _LAST) | (kind == _REAL)):
        raise _Unusual
    size = _size(kind)
    values: Ints = words[place].astype(np.int64) >> (64 - 8 * np.maximum(size, 1))
    if np.any(np.equal(size, 0)):
        values = np.where(np.equal(size, 0), np.where(kind == _NULL, null, kind == _ONE), values)
    return values
