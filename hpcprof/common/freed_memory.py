"""Limit the memory that glibc keeps of freed arrays; other C libraries keep none.

Both functions serve one limit: an export of 318 MB (``benchmarks/collect.py``) is collected in less than
800 MB. In turns with and without, most memory of 6 collects: 710 MiB with both, 763 MiB without
`use_one_heap`, 854 MiB without `return_freed_memory`, at the same CPU time (docs/explanation/performance.md,
"Tricks kept and removed").
"""

import ctypes

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def use_one_heap() -> None:
    """Let threads that start from now on share one heap, where glibc gives each its own.

    Memory that one thread frees then serves the others.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Return freed memory to the system, where glibc keeps freed arrays of up to 32 MB for later ones."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
