"""Joining two tables on a pair of columns."""

from __future__ import annotations

import numpy as np

from hpcprof.timeline import Ints

_LATEST = int(np.iinfo(np.int64).max)


def pair_keys(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Number pairs of two columns so that equal pairs of both tables have equal numbers."""
    one, two = (np.concatenate(columns) for columns in zip(a, b, strict=True))
    ones, one = np.unique(one, return_inverse=True)
    low = int(two.min(initial=0))
    span = int(two.max(initial=0)) - low + 1
    if len(ones) * span > _LATEST:
        twos, two = np.unique(two, return_inverse=True)
        low, span = 0, len(twos)
    key = one * span + (two - low)
    return key[: len(a[0])], key[len(a[0]) :]


def matches(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return the row of each table in every pair of rows with equal keys, in the order of ``left``."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    low = np.searchsorted(ordered, left, side="left")
    count = np.searchsorted(ordered, left, side="right") - low
    rows = np.repeat(np.arange(len(left)), count)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, order[np.repeat(low, count) + within]
