"""Freed memory, back to the system."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give freed memory back to the system, where the C library can (glibc; others do by themselves).

    glibc keeps freed arrays of up to 32 MB for later ones, and those of each thread apart: of columns that
    come and go, as much is kept as is used.
    """
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(0)
