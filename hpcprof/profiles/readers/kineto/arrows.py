"""Arrows of a PyTorch trace from operators of the forward pass to those of the backward pass."""

import numpy as np

from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import NO_LINK, IntColumns, Ints, Mask

CATEGORIES = ("fwdbwd", "forward_backward")
COLUMNS = ("id", "time", "process", "thread", "ends")
"""The columns of the ends of arrows; ``ends`` is 1 where one ends, 0 where it begins."""


def linked_operators(operators: IntColumns, arrows: IntColumns) -> Ints:
    """Return the link of each operator (`hpcprof.profiles.timeline.Operators`), shape (operators,).

    An arrow begins and ends at the time at which an operator of its thread begins. Arrows with one end, or to
    an operator that has another one, are left out.
    """
    link = np.full(len(operators["start"]), NO_LINK)
    if not len(arrows["time"]):
        return link
    times = np.unique(arrows["time"])
    # np.isin would need several times the memory of a column.
    nearest = times.take(np.searchsorted(times, operators["start"]), mode="clip")
    rows = np.flatnonzero(nearest == operators["start"])
    # If operators begin at the same time, the outermost counts; it comes last.
    rows = rows[np.argsort((operators["end"] - operators["start"])[rows], kind="stable")]
    pairs = (("process", "process"), ("thread", "thread"), ("start", "time"))
    _, place = numbered_rows(*(np.concatenate([operators[o][rows], arrows[a]]) for o, a in pairs))
    operator = np.full(place.max(initial=-1) + 1, NO_LINK)
    operator[place[: len(rows)]] = rows
    row = operator[place[len(rows) :]]
    begin_ids, begin_rows = _first_arrows(arrows["id"], row, (arrows["ends"] == 0) & (row != NO_LINK))
    end_ids, end_rows = _first_arrows(arrows["id"], row, (arrows["ends"] != 0) & (row != NO_LINK))
    _, begin_at, end_at = np.intersect1d(begin_ids, end_ids, assume_unique=True, return_indices=True)
    linked: dict[int, int] = {}
    for begin, end in zip(begin_rows[begin_at].tolist(), end_rows[end_at].tolist(), strict=True):
        if begin != end and begin not in linked and end not in linked:
            linked[begin] = linked[end] = len(linked) // 2
    link[list(linked)] = list(linked.values())
    return link


def _first_arrows(ids: Ints, rows: Ints, chosen: Mask) -> tuple[Ints, Ints]:
    """Return the distinct ids of the chosen arrows, in ascending order, and the row of the first of each."""
    distinct_ids, at = np.unique(ids[chosen], return_index=True)
    return distinct_ids, rows[chosen][at]
