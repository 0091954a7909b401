"""Columns straight from the pages of a SQLite file, decoded by ``sqlite_pages.c``.

SQLite and its drivers hand over one value at a time, and that is most of the time of a collect (figures in
docs/performance.md). Here only the plain case is read: a table in a file in UTF-8 without a write-ahead log,
whose columns hold integers and NULL, or texts, blobs and NULL. For anything else, for whatever looks
damaged, and where no C compiler was there when hpcprof was installed, the answer is None, and the caller
asks SQLite, which reads it or says what is wrong.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.ctypeslib import ndpointer
from numpy.typing import NDArray

from hpcprof.profiles.readers.nsys.cells import Cells
from hpcprof.profiles.timeline import Ints

Columns = tuple[list[Ints], list[Cells]]
"""Columns of integers, and columns of texts and blobs."""

_FEWEST_BYTES, _MOST_BYTES = 512, 65536
_SAMPLE = 256
_TOO_LITTLE = -2  # As sqlite_pages.c says it.


class _Cells(ctypes.Structure):
    """``struct cells``."""

    _fields_ = (
        ("end", ctypes.c_void_p),
        ("content", ctypes.c_void_p),
        ("kind", ctypes.c_void_p),
        ("room", ctypes.c_int64),
    )


class _Wanted(ctypes.Structure):
    """``struct wanted``."""

    _fields_ = (
        ("columns", ctypes.c_int64),
        ("numbers", ctypes.c_void_p),
        ("ints", ctypes.c_int64),
        ("nulls", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("cells", ctypes.POINTER(_Cells)),
    )


@cache
def _library() -> ctypes.CDLL | None:
    """Load what was compiled, None where nothing was, or for another machine. It is no module of Python."""
    found = find_spec("hpcprof.profiles.readers.nsys._sqlite_pages")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:
        return None
    int64, ints, pages = ctypes.c_int64, ndpointer(np.int64), ndpointer(np.uint32)
    library.hpcprof_leaves.argtypes = [ints, int64, pages, pages]
    library.hpcprof_leaves.restype = int64
    library.hpcprof_store.argtypes = [ints, pages, int64, int64, ctypes.POINTER(_Wanted)]
    library.hpcprof_store.restype = int64
    return library


def read_columns(
    descriptor: int, root: int, ints: Sequence[int], nulls: Sequence[int], cells: Sequence[int] = ()
) -> Columns | None:
    """Return columns of a table in the order of its rows, None where only SQLite can read them.

    The caller holds a read transaction, so that no other process changes the file meanwhile.

    Parameters
    ----------
    descriptor : int
        The SQLite file, open until the transaction ends: where a process closes a file, it loses its locks.
    root : int
        The table's root page.
    ints : sequence of int
        The places of columns of integers in the table, counted from 0; each is there once.
    nulls : sequence of int
        What stands for NULL in each of them.
    cells : sequence of int
        The places of columns of texts and blobs.
    """
    library = _library()
    if library is None:
        return None
    try:
        file = _file(descriptor)
        return None if file is None else _read(library, file, root, ints, nulls, cells)
    except OSError:
        return None


def _file(descriptor: int) -> Ints | None:
    """Return ``struct file``: the descriptor, the bytes of a page, those that hold content, the pages."""
    header = os.pread(descriptor, 100, 0)
    page = int.from_bytes(header[16:18], "big")
    page = _MOST_BYTES if page == 1 else page
    # Bytes 18 and 19 are 2 where the newest pages may stand in a write-ahead log, 56 to 59 are 1 for UTF-8.
    plain = header[18:20] == b"\x01\x01" and header[56:60] == b"\0\0\0\x01"
    if len(header) < 100 or not plain or page < _FEWEST_BYTES:
        return None
    return np.array([descriptor, page, page - header[20], os.fstat(descriptor).st_size // page])


def _read(
    library: ctypes.CDLL,
    file: Ints,
    root: int,
    ints: Sequence[int],
    nulls: Sequence[int],
    cells: Sequence[int],
) -> Columns | None:
    # What is not written takes no memory.
    leaves, children = np.empty(file[3], np.uint32), np.empty(file[3], np.uint32)
    count = library.hpcprof_leaves(file, root, leaves, children)
    if count < 0:
        return None
    leaves = leaves[:count]
    numbers = np.full(max((*ints, *cells)) + 1, -1)
    numbers[[*ints, *cells]] = np.arange(len(ints) + len(cells))
    null = np.array(nulls, np.int64)
    rows, room = _TOO_LITTLE, _rows(file, leaves)
    # What the texts and blobs take is less than the pages that they stand in.
    size = count * int(file[1])
    while rows == _TOO_LITTLE:
        values = [np.empty(room, np.int64) for _ in ints]
        found = [
            (np.empty(room, np.int64), np.empty(size, np.uint8), np.empty(room, np.uint8)) for _ in cells
        ]
        places = np.array([column.ctypes.data for column in values], np.uintp)
        targets = [_Cells(*(part.ctypes.data for part in parts), size) for parts in found]
        wanted = _Wanted(
            columns=len(numbers),
            numbers=numbers.ctypes.data,
            ints=len(ints),
            nulls=null.ctypes.data,
            values=places.ctypes.data,
            cells=(_Cells * len(cells))(*targets),
        )
        rows = library.hpcprof_store(file, leaves, count, room, wanted)
        room *= 2
    if rows < 0:
        return None
    return [column[:rows] for column in values], [
        Cells(content, np.concatenate(([0], end[:rows]))[:rows], end[:rows], kind[:rows])
        for end, content, kind in found
    ]


def _rows(file: Ints, leaves: NDArray[np.uint32]) -> int:
    """Return about how many rows leaf pages have, and hardly ever too few, by some of them."""
    descriptor, page = file[:2].tolist()
    some = leaves[:: max(1, len(leaves) // _SAMPLE)].tolist()
    most = max(int.from_bytes(os.pread(descriptor, 2, (leaf - 1) * page + 3), "big") for leaf in some)
    return len(leaves) * (most + 1 + most // 16)
