"""Columns of text: numbering the texts of a timeline, and columns for DataFrames."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.timeline import Ints, Timeline


def number_texts(
    timeline: Timeline, ids: Ints, edit: Callable[[str | None], str | None] = lambda text: text
) -> tuple[NDArray[np.object_], Ints]:
    """Assign numbers to the texts that occur, in ascending order with None first.

    ``ids`` has the place of each row's text in the timeline's string table, shape (n,); several may have the
    same text. ``edit`` changes each text before they are compared. Returned are the distinct texts, and for
    each row the place of its text among them, shape (n,).
    """
    used = distinct(ids)
    names = [edit(name) for name in timeline.names(used)]
    texts = sorted(set(names), key=lambda text: (text is not None, text or ""))
    place = {text: i for i, text in enumerate(texts)}
    # `NO_NAME` is -1 and so selects the last element.
    number = np.zeros(len(timeline.strings) + 1, np.int64)
    number[used] = [place[name] for name in names]
    return object_array(texts), number[ids]


def object_array(values: Iterable[object]) -> NDArray[np.object_]:
    """Return an array of Python objects that keeps each value as it is, None included."""
    items = list(values)
    column = np.empty(len(items), object)
    column[:] = items
    return column
