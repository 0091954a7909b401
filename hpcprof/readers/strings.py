"""The string table of a timeline while it is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from hpcprof.numbering import numbered
from hpcprof.timeline import NO_NAME, Ints


class StringTable:
    """Texts numbered in the order in which they were first added."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, text: str | None) -> int:
        """Return the number of a text; `NO_NAME` for None."""
        return NO_NAME if text is None else self._numbers.setdefault(text, len(self._numbers))

    def add_all(self, texts: Iterable[str | None]) -> Ints:
        """Return the number of each text."""
        return np.fromiter(map(self.add, texts), np.int64)

    def array(self) -> NDArray[np.object_]:
        """Return the texts in the order of their numbers."""
        texts = np.empty(len(self._numbers), object)
        texts[:] = list(self._numbers)
        return texts


def translate(ids: Ints, numbers: Mapping[int, int]) -> Ints:
    """Replace ids by numbers; `NO_NAME` where an id has none."""
    distinct, row = numbered(ids)
    return np.array([numbers.get(i, NO_NAME) for i in distinct.tolist()], np.int64)[row]
