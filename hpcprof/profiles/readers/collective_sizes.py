"""Sizes of the collectives of MPI as nsys and Score-P count them."""

from __future__ import annotations

import numpy as np

from hpcprof.profiles.timeline import NO_BYTES, Ints

NULL = -(1 << 63)
"""Stands for a size that the profiler did not record."""


def own_sizes(operation: str, sent: Ints, received: Ints, ranks: Ints, own: Ints) -> tuple[Ints, Ints]:
    """Return what a rank gives to collectives and gets from them, in bytes, or `NO_BYTES`.

    Both profilers count each pair of ranks: they multiply the size of a buffer with the number of ranks that
    get it or from which it comes, one less in place. Where one of both is NULL and the other is not, it is 0.

    Parameters
    ----------
    sent, received : ndarray of int64, shape (n,)
        As the profiler counts.
    ranks, own : ndarray of int64, shape (n,)
        The size of the communicator and the own rank in it; -1 if unknown.
    """
    one, others = np.ones_like(ranks), ranks - 1
    to, by = {
        "AllReduce": (ranks, ranks),
        "AllGather": (ranks, one),
        "AllGatherV": (ranks, one),
        "Broadcast": (ranks, one),
        "Reduce": (one, ranks),
        "ReduceScatter": (one, ranks),
        "Scan": (ranks - own, own + 1),
        "Exscan": (others - own, own),
    }.get(operation, (one, one))
    gives, gets = sent != NULL, received != NULL
    given = np.where(gives, sent, 0)
    got = np.where(gets, received, 0)
    if operation == "AllReduce":
        # Sizes are those of whole elements, which tells most that are in place.
        in_place = (given % np.maximum(ranks, 1) != 0) & (given % np.maximum(others, 1) == 0)
        to = by = np.where(in_place, others, ranks)
    elif operation == "Broadcast":
        got = np.where(gives, 0, got)
    elif operation == "Reduce":
        in_place = gets & ~gives
        by = np.where(in_place, others, ranks)
        given = np.where(in_place, got // np.maximum(others, 1), given)
    known = (gives | gets) & (to >= 0) & (by >= 0) & (ranks > 0)
    return (
        np.where(known, given // np.maximum(to, 1), NO_BYTES),
        np.where(known, got // np.maximum(by, 1), NO_BYTES),
    )
