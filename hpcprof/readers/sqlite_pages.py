"""Columns of integers straight from the pages of a SQLite file, decoded by ``sqlite_pages.c``.

SQLite and its drivers hand over one value at a time, and that is most of the time of a collect (figures in
docs/performance.md). Here only the plain case is read: a table in a file without a write-ahead log, whose
columns hold integers and NULL. For anything else, for whatever looks damaged, and where no C compiler was
there when hpcprof was installed, the answer is None, and the caller asks SQLite, which reads it or says
what is wrong.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.ctypeslib import ndpointer

from hpcprof.timeline import Ints

_FEWEST_BYTES, _MOST_BYTES = 512, 65536


@cache
def _library() -> ctypes.CDLL | None:
    """Load what was compiled, None where nothing was, or for another machine. It is no module of Python."""
    found = find_spec("hpcprof.readers._sqlite_pages")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:
        return None
    int64, ints, pages = ctypes.c_int64, ndpointer(np.int64), ndpointer(np.uint32)
    library.hpcprof_leaves.argtypes = [ints, int64, pages, pages]
    library.hpcprof_leaves.restype = int64
    library.hpcprof_store.argtypes = [ints, pages, pages, int64, int64, ints, ints, ndpointer(np.uintp)]
    library.hpcprof_store.restype = int64
    return library


def int_columns(
    descriptor: int, root: int, columns: Sequence[int], nulls: Sequence[int]
) -> list[Ints] | None:
    """Return columns of a table in the order of its rows, None where only SQLite can read them.

    The caller holds a read transaction, so that no other process changes the file meanwhile.

    Parameters
    ----------
    descriptor : int
        The SQLite file, open until the transaction ends: where a process closes a file, it loses its locks.
    root : int
        The table's root page.
    columns : sequence of int
        Their places in the table, counted from 0; each is there once.
    nulls : sequence of int
        What stands for NULL in each.
    """
    library = _library()
    if library is None:
        return None
    try:
        file = _file(descriptor)
    except OSError:
        return None
    return None if file is None else _read(library, file, root, columns, nulls)


def _file(descriptor: int) -> Ints | None:
    """Return ``struct file``: the descriptor, the bytes of a page, those that hold content, the pages."""
    header = os.pread(descriptor, 100, 0)
    page = int.from_bytes(header[16:18], "big")
    page = _MOST_BYTES if page == 1 else page
    # Bytes 18 and 19 are 2 where the newest pages may stand in a write-ahead log.
    if len(header) < 100 or header[18:20] != b"\x01\x01" or page < _FEWEST_BYTES:
        return None
    return np.array([descriptor, page, page - header[20], os.fstat(descriptor).st_size // page])


def _read(
    library: ctypes.CDLL, file: Ints, root: int, columns: Sequence[int], nulls: Sequence[int]
) -> list[Ints] | None:
    # Of each page that may be a leaf its number, and its rows; what is not written takes no memory.
    leaves, rows = np.empty(file[3], np.uint32), np.empty(file[3], np.uint32)
    count = library.hpcprof_leaves(file, root, leaves, rows)
    if count < 0:
        return None
    found = [np.empty(int(rows[:count].sum(dtype=np.int64)), np.int64) for _ in columns]
    # Of each column of the table, up to the last one that is wanted, the array that takes it.
    arrays = np.full(max(columns) + 1, -1)
    arrays[[*columns]] = np.arange(len(columns))
    places = np.array([column.ctypes.data for column in found], np.uintp)
    failed = library.hpcprof_store(
        file, leaves, rows, count, len(arrays), arrays, np.array(nulls, np.int64), places
    )
    return None if failed else found
