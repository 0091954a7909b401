"""The memory that the C library keeps: one heap for all threads, and what is freed back to the system."""

from __future__ import annotations

import ctypes

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def share() -> None:
    """Let threads that start from now on share one heap, where the C library gives each its own (glibc).

    What one thread frees then serves the others.
    """
    function = getattr(ctypes.CDLL(None), "mallopt", None)
    if function is not None:
        function(_ARENA_MAX, 1)


def trim() -> None:
    """Give freed memory back to the system, where the C library can (glibc; others do by themselves).

    glibc keeps freed arrays of up to 32 MB for later ones: of columns that come and go, as much as is used.
    """
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(0)
