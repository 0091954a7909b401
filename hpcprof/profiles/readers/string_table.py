"""The string table of a timeline while it is built."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.columns.unique import MAX_SPAN_RATIO, numbered
from hpcprof.profiles.timeline import NO_NAME, Ints

_BATCH_OF_IDS = 1 << 16
_MAX_CHARACTERS = 1 << 16
"""Maximum characters of a text; names of kernels have some thousands, and every analysis reads them again."""


class _Numbers(dict[str | None, int]):
    """The number of each text; a text that is looked up for the first time gets the next one."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self) - 1  # None is counted, but is no text.
        return number


class StringTable:
    """Texts numbered in the order in which they were first added."""

    def __init__(self) -> None:
        self._numbers = _Numbers({None: NO_NAME})

    def add(self, text: str | None) -> int:
        """Return the number of a text; `NO_NAME` for None."""
        return self._numbers[text]

    def add_all(self, texts: Iterable[str | None]) -> Ints:
        """Return the number of each text, of shape (texts,)."""
        return np.fromiter(map(self._numbers.__getitem__, texts), np.int64)

    def array(self) -> NDArray[np.object_]:
        """Return the texts in the order of their numbers, of shape (numbers,); very long ones are cut off."""
        texts = np.empty(len(self._numbers) - 1, object)
        texts[:] = list(self._numbers)[1:]
        for number, length in enumerate(map(len, texts)):
            if length > _MAX_CHARACTERS:
                texts[number] = f"{texts[number][:_MAX_CHARACTERS]}…"
        return texts


def translate(ids: Ints, numbers: Mapping[int, int]) -> Ints:
    """Replace ids by their numbers, or by `NO_NAME` if they have none, in the same array."""
    low, high = int(ids.min(initial=NO_NAME)), int(ids.max(initial=NO_NAME))
    if low == NO_NAME and high < MAX_SPAN_RATIO * len(ids):
        # A table by id is quick, unless ids are far apart. `NO_NAME` is -1 and selects its last element.
        table = np.full(high + 2, NO_NAME)
        listed = [i for i in numbers if 0 <= i <= high]
        table[listed] = [numbers[i] for i in listed]
        for at in range(0, len(ids), _BATCH_OF_IDS):
            part = ids[at : at + _BATCH_OF_IDS]
            part[:] = table[part]
        return ids
    distinct, row = numbered(ids)
    ids[:] = np.array([numbers.get(i, NO_NAME) for i in distinct.tolist()], np.int64)[row]
    return ids
