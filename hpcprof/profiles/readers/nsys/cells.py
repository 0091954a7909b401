"""Texts and blobs of a column, without a Python object for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.timeline import Ints

# As sqlite_pages.c calls them.
_NULL, _TEXT, _BLOB = 0, 1, 2


@dataclass(frozen=True)
class Cells:
    """A column of texts and blobs: row i is ``content[begin[i]:end[i]]``.

    ``kind`` says of each row whether it is NULL, a text in UTF-8 or a blob. ``begin``, ``end`` and ``kind``
    have shape (n,).
    """

    content: NDArray[np.uint8]
    begin: Ints
    end: Ints
    kind: NDArray[np.uint8]

    @classmethod
    def of(cls, values: Sequence[object]) -> Cells:
        """Return the column of some values; what is neither bytes nor None becomes a text."""
        parts = [b"" if v is None else v if isinstance(v, bytes) else str(v).encode() for v in values]
        kinds = [_NULL if v is None else _BLOB if isinstance(v, bytes) else _TEXT for v in values]
        length = np.array([len(part) for part in parts], np.int64)
        end = np.cumsum(length)
        content = np.frombuffer(b"".join(parts), np.uint8)
        return cls(content, end - length, end, np.array(kinds, np.uint8))

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Ints) -> Cells:
        """Return the rows that an index array selects."""
        return Cells(self.content, self.begin[rows], self.end[rows], self.kind[rows])

    def texts(self) -> list[str | None]:
        """Return the rows as texts, NULL as None; bytes that are no UTF-8 are replaced."""
        places = zip(self.begin.tolist(), self.end.tolist(), (self.kind != _NULL).tolist(), strict=True)
        return [
            self.content[begin:end].tobytes().decode("utf-8", "replace") if known else None
            for begin, end, known in places
        ]

    def blob_sizes(self) -> Ints:
        """Return the bytes of each blob, shape (n,); 0 for what is none."""
        return np.where(self.kind == _BLOB, self.end - self.begin, 0)
