"""Columns of a SQLite file, decoded from its pages by numpy.

Python's sqlite3 makes an object of every value, which for the large tables of an export takes twenty times as
long (docs/explanation/performance.md). This module decodes the part of the file format that such tables use,
https://sqlite.org/fileformat2.html: tables with rowids. SQLite reads everything else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.timeline import Ints, Mask


def quoted(name: str) -> str:
    """Return a name of an export as it is written in SQL."""
    return '"' + name.replace('"', '""') + '"'


class BinaryColumn(msgspec.Struct, frozen=True):
    """A column of bytes or NULL: row i is ``content[begin[i]:end[i]]`` if ``present[i]``, else NULL.

    ``begin``, ``end`` and ``present`` have shape (n,). A NULL takes no bytes of the content.
    """

    content: NDArray[np.uint8]
    begin: Ints
    end: Ints
    present: Mask

    @classmethod
    def from_values(cls, values: Sequence[object]) -> BinaryColumn:
        """Build the column from values; other values than bytes and None become texts in UTF-8."""
        parts = [b"" if v is None else v if isinstance(v, bytes) else str(v).encode() for v in values]
        end = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        present = np.array([v is not None for v in values], bool)
        return cls(np.frombuffer(b"".join(parts), np.uint8), end[:-1], end[1:], present)

    @classmethod
    def concatenate(cls, columns: Sequence[BinaryColumn]) -> BinaryColumn:
        """Join columns whose contents have no gaps, one behind the other."""
        if not columns:
            return cls.from_values([])
        before = np.cumsum([0, *(len(column.content) for column in columns[:-1])])
        return cls(
            np.concatenate([column.content for column in columns]),
            np.concatenate([column.begin + at for column, at in zip(columns, before, strict=True)]),
            np.concatenate([column.end + at for column, at in zip(columns, before, strict=True)]),
            np.concatenate([column.present for column in columns]),
        )

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: Ints) -> BinaryColumn:
        """Return the rows that an index array selects."""
        return BinaryColumn(self.content, self.begin[rows], self.end[rows], self.present[rows])

    def texts(self) -> list[str | None]:
        """Return the rows as texts, NULL as None; bytes that are not UTF-8 are replaced."""
        rows = zip(self.begin.tolist(), self.end.tolist(), self.present.tolist(), strict=True)
        return [
            self.content[begin:end].tobytes().decode("utf-8", "replace") if present else None
            for begin, end, present in rows
        ]

    def sizes(self) -> Ints:
        """Return the bytes of each row, shape (n,); 0 for NULL."""
        return self.end - self.begin


TableColumns = tuple[dict[str, Ints], dict[str, BinaryColumn]]
"""Columns of integers, and columns of texts and blobs, by their names."""

_Bytes = NDArray[np.uint8]

_CHUNK = 512
"""Pages that are decoded at a time: enough to outweigh a call of numpy, few enough for the cache."""

_MAX_LEVELS = 64

_MIN_ROW_BYTES = 4
"""The least that a row takes of a page: its length, its rowid, its header and a value."""

_LEAF, _INTERIOR = 13, 5
_LEAF_HEADER, _INTERIOR_HEADER = 8, 12

# Serial types: 0 is NULL, 1 to 6 integers of 1, 2, 3, 4, 6 and 8 bytes, 7 a float, 8 and 9 the integers
# 0 and 1, even numbers from 12 blobs, odd ones from 13 texts.
_NULL, _FLOAT, _ZERO, _ONE_BYTE_TYPES, _BLOB = 0, 7, 8, 9, 12
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 128))])


class _Unusual(Exception):
    """The file holds what is not decoded here, or is damaged."""


class StoredTable(msgspec.Struct, frozen=True):
    """A table of a SQLite file."""

    root: int
    """The number of its first page."""
    places: Mapping[str, int]
    """The place of each column in a record."""
    rowid: str | None = None
    """The column that is the rowid, if there is one."""


class Wanted(msgspec.Struct, frozen=True):
    """Columns of a table that are decoded.

    ``integers`` has the value for NULL, ``binary`` says of each column whether texts count; blobs always do.
    """

    integers: Mapping[str, int]
    binary: Mapping[str, bool]


class TablePages:
    """The pages of a SQLite file. Only a file that nobody changes while it is read may be decoded.

    A process that closes a file loses all its locks on it (https://sqlite.org/howtocorrupt.html, section
    2.2), so close this after SQLite's connection to the same file.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        header = os.pread(self._file, 100, 0)
        size = int.from_bytes(header[16:18], "big")
        self._size = 65536 if size == 1 else size
        self._usable = self._size - header[20]
        self._pages = os.fstat(self._file).st_size // self._size
        # In a new file, 0 stands for UTF-8 too.
        self._utf8 = int.from_bytes(header[56:60], "big") <= 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def read(self, table: StoredTable, wanted: Wanted) -> TableColumns | None:
        """Return columns in the order of the rowids; None where SQLite has to read them."""
        if not {*wanted.integers, *wanted.binary} <= {*table.places} or not (self._utf8 or not wanted.binary):
            return None
        room = np.empty(_CHUNK * self._size, np.uint8)
        binary: dict[str, list[BinaryColumn]] = {name: [] for name in wanted.binary}
        at = 0
        try:
            leaves = self._leaves(table.root)
            rows = self._max_rows(leaves)
            integers = {name: np.empty(rows, np.int64) for name in wanted.integers}
            for first in range(0, len(leaves), _CHUNK):
                records = self._records(leaves[first : first + _CHUNK], room)
                for name, column in records.columns(table, wanted):
                    if isinstance(column, BinaryColumn):
                        binary[name].append(column)
                    else:
                        integers[name][at : at + len(records)] = column
                at += len(records)
        except (_Unusual, IndexError, ValueError):  # An offset beyond the chunk, rows beyond the last.
            return None
        return (
            {name: values[:at] for name, values in integers.items()},
            {name: BinaryColumn.concatenate(parts) for name, parts in binary.items()},
        )

    def _max_rows(self, leaves: Ints) -> int:
        """Return the number of rows if none was deleted."""
        ends = self._records(leaves[[0, -1]]).rowid
        rows = int(ends[-1] - ends[0] + 1) if len(ends) else 0
        # Where most were deleted, the places of all would take too much memory.
        if rows > len(leaves) * self._size // _MIN_ROW_BYTES:
            raise _Unusual
        return rows

    def _leaves(self, root: int) -> Ints:
        level = np.array([root], np.int64)
        for _ in range(_MAX_LEVELS):
            if self._content(level[:1])[0] == _LEAF:
                return level
            content = self._content(level)
            if not (content[:: self._size] == _INTERIOR).all():
                break
            base, cells = self._cells(content, len(level), _INTERIOR_HEADER)
            # The last child is in the page's header. A child comes before what is to the right of its cell.
            at = np.concatenate((cells, base + 8))
            order = np.lexsort((np.repeat([0, 1], (len(cells), len(base))), at // self._size))
            level = _big_endian(content, at[order], 4)
            # A page has one parent: else a small file stands for any number of rows.
            if len(np.unique(level)) < len(level):
                break
        raise _Unusual

    def _cells(self, content: _Bytes, pages: int, header: int) -> tuple[Ints, Ints]:
        """Return the place of each page in its content, and that of each of their cells."""
        base = np.arange(pages) * self._size
        count = _big_endian(content, base + 3, 2)
        first = base + header - 2 * (np.cumsum(count) - count)
        pointer = _big_endian(content, np.repeat(first, count) + 2 * np.arange(count.sum()), 2)
        if (pointer >= self._usable).any():
            raise _Unusual
        return base, np.repeat(base, count) + pointer

    def _content(self, pages: Ints, room: _Bytes | None = None) -> _Bytes:
        if not len(pages) or pages.min() < 1 or pages.max() > self._pages:
            raise _Unusual
        content = (
            np.empty(len(pages) * self._size, np.uint8) if room is None else room[: len(pages) * self._size]
        )
        end = 0
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            begin, end = end, end + len(run) * self._size
            if os.preadv(self._file, [content[begin:end].data], (int(run[0]) - 1) * self._size) < end - begin:
                raise _Unusual
        return content

    def _records(self, leaves: Ints, room: _Bytes | None = None) -> _Records:
        """Read the records of leaf pages; ``room`` is as for `_content`."""
        content = self._content(leaves, room)
        if not (content[:: self._size] == _LEAF).all():
            raise _Unusual
        _, at = self._cells(content, len(leaves), _LEAF_HEADER)
        page_end = at - at % self._size + self._usable
        length, at = _varints(content, at)
        rowid, begin = _varints(content, at)
        length, rowid = length.astype(np.int64), rowid.astype(np.int64)
        is_long = length > self._usable - 35
        # Records that share bytes may be longer together than the file.
        if length.max(initial=0) > (most := self._pages * self._size) or length.sum() > most:
            raise _Unusual
        if (begin + np.where(is_long, 0, length) > page_end).any():
            raise _Unusual
        long = np.flatnonzero(is_long).tolist()
        whole = [self._overflowing_record(content, int(begin[row]), int(length[row])) for row in long]
        begin[long] = len(content) + np.cumsum([0, *map(len, whole)])[:-1]
        end = begin + length
        if whole:
            content = np.concatenate([content, *(np.frombuffer(page, np.uint8) for page in whole)])
        return _Records(content, begin, end, rowid)

    def _overflowing_record(self, content: _Bytes, begin: int, length: int) -> bytes:
        """Return a record that goes on in pages of its own."""
        least, most = (self._usable - 12) * 32 // 255 - 23, self._usable - 35
        local = least + (length - least) % (self._usable - 4)
        local = local if local <= most else least
        if length > self._pages * self._size:
            raise _Unusual
        parts, remaining = [content[begin : begin + local].tobytes()], length - local
        following = int.from_bytes(content[begin + local : begin + local + 4].tobytes(), "big")
        while remaining > 0:
            page = self._content(np.array([following])).tobytes()
            parts.append(page[4 : min(self._usable, 4 + remaining)])
            remaining -= len(parts[-1])
            following = int.from_bytes(page[:4], "big")
        return b"".join(parts)


class _Records:
    """Records, each with a header of serial types before its values.

    ``begin``, ``end`` and ``rowid`` have shape (rows,); the first two are offsets into ``content``.
    """

    def __init__(self, content: _Bytes, begin: Ints, end: Ints, rowid: Ints) -> None:
        self._content, self._begin, self._end, self.rowid = content, begin, end, rowid
        # Two words hold any 8 bytes; there is always another word after the last word of a record.
        whole = len(content) // 8
        self._words = np.zeros(whole + 2, np.uint64)
        self._words[:whole] = content[: 8 * whole].view(">u8")
        self._words[whole] = int.from_bytes(content[8 * whole :].tobytes().ljust(8, b"\0"), "big")

    def __len__(self) -> int:
        return len(self.rowid)

    def columns(self, table: StoredTable, wanted: Wanted) -> Iterator[tuple[str, Any]]:
        """Decode columns, in the order of their places."""
        names = {place: name for name, place in table.places.items()}
        last = max(table.places[name] for name in (*wanted.integers, *wanted.binary))
        length, at = _varints(self._content, self._begin)
        header_end = value = self._begin + length
        for place in range(last + 1):
            kind, at = _varints(self._content, at)
            if kind.size and (kind == kind[0]).all():
                kind = kind[:1]
            size = _SIZES.take(kind) if kind.max(initial=0) < len(_SIZES) else _sizes(kind)
            name = names.get(place, "")
            if name in wanted.integers:
                yield name, self._integers(value, kind, size, wanted.integers[name], name == table.rowid)
            elif name in wanted.binary:
                yield name, self._binary(value, kind, size, wanted.binary[name])
            value = value + size
        # A table to which columns were added has records without them.
        if (
            (at > header_end).any()
            or (value > self._end).any()
            or (value < self._end)[at == header_end].any()
        ):
            raise _Unusual

    def _integers(self, at: Ints, kind: Ints, size: Ints, null: int, is_rowid: bool) -> Ints:
        """Return a column; ``kind`` and ``size`` have one row if all are equal."""
        word, bit = at >> 3, ((at & 7) << 3).view(np.uint64)
        high, low = self._words.take(word), self._words.take(word + 1)
        # A shift by all 64 bits is none.
        raw = (high << bit) | (low >> np.uint64(1) >> (np.uint64(63) - bit))
        values: Ints = raw.view(np.int64) >> (64 - 8 * size)
        if ((kind == _NULL) | (kind >= _FLOAT)).any():
            if ((kind == _FLOAT) | (kind > _ONE_BYTE_TYPES)).any():
                raise _Unusual
            values = np.where(kind >= _ZERO, kind.astype(np.int64) - _ZERO, values)
            values = np.where(kind == _NULL, self.rowid if is_rowid else null, values)
        return values

    def _binary(self, at: Ints, kind: Ints, size: Ints, texts: bool) -> BinaryColumn:
        """Return a column; ``kind`` and ``size`` have one row if all are equal."""
        is_text = (kind > _BLOB) & (kind % 2 == 1)
        if texts and ((kind != _NULL) & (kind < _BLOB)).any():
            raise _Unusual
        counts = (kind >= _BLOB) & (texts | ~is_text)
        rows = len(at)
        size = np.broadcast_to(np.where(counts, size, 0), rows)
        end = np.cumsum(size)
        begin = end - size
        taken = np.repeat(at - begin, size) + np.arange(end[-1] if rows else 0)
        return BinaryColumn(self._content.take(taken), begin, end, np.broadcast_to(counts, rows))


def _sizes(kind: Ints) -> Ints:
    """Return the bytes of values of serial types, some of them long texts or blobs."""
    return np.where(kind < len(_SIZES), _SIZES.take(np.minimum(kind, len(_SIZES) - 1)), (kind - _BLOB) >> 1)


def _big_endian(content: _Bytes, at: Ints, size: int) -> Ints:
    value = content.take(at).astype(np.int64)
    for byte in range(1, size):
        value = value << 8 | content.take(at + byte)
    return value


def _varints(content: _Bytes, at: Ints) -> tuple[Any, Ints]:
    """Return the integers of variable length at offsets, and the offsets behind them."""
    byte = content.take(at)
    at = at + 1
    more = byte > 127
    if not more.any():
        return byte, at
    value = byte.astype(np.int64) & 127
    rows = np.flatnonzero(more)
    # Only rowids beyond any table's size have a ninth byte, whose bits would all count.
    for _ in range(7):
        byte = content.take(at[rows])
        at[rows] += 1
        value[rows] = value[rows] << 7 | byte & 127
        rows = rows[byte > 127]
        if not len(rows):
            return value, at
    raise _Unusual
