"""Arrows of a PyTorch trace from operators of the forward pass to those of the backward pass."""

from __future__ import annotations

import numpy as np

from hpcprof.profiles.timeline import NO_LINK, IntColumns, Ints

CATEGORIES = ("fwdbwd", "forward_backward")
COLUMNS = ("id", "time", "process", "thread", "ends")
"""The columns of the ends of arrows; ``ends`` is 1 where one ends, 0 where it begins."""


def linked_operators(operators: IntColumns, arrows: IntColumns) -> Ints:
    """Return the link of each operator (`hpcprof.profiles.timeline.Operators`), shape (operators,).

    An arrow begins and ends at the time at which an operator of its thread begins. Arrows with one end, or to
    an operator that has another one, are left out.
    """
    link = np.full(len(operators["start"]), NO_LINK)
    rows = np.flatnonzero(np.isin(operators["start"], arrows["time"]))
    # Of operators that begin at the same time the outermost counts, which comes last.
    rows = rows[np.argsort((operators["end"] - operators["start"])[rows], kind="stable")]
    places = zip(*(operators[name][rows].tolist() for name in ("process", "thread", "start")), strict=True)
    found = dict(zip(places, rows.tolist(), strict=True))
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    ends_of_arrows = zip(*(arrows[name].tolist() for name in COLUMNS), strict=True)
    for number, time, process, thread, is_end in ends_of_arrows:
        if (row := found.get((process, thread, time))) is not None:
            (ends if is_end else begins).setdefault(number, row)
    linked: dict[int, int] = {}
    for number in sorted(begins.keys() & ends.keys()):
        begin, end = begins[number], ends[number]
        if begin != end and begin not in linked and end not in linked:
            linked[begin] = linked[end] = len(linked) // 2
    link[list(linked)] = list(linked.values())
    return link
