"""A column of texts or blobs, without a Python object for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class BinaryColumn:
    """A column of bytes or NULL: row i is ``content[begin[i]:end[i]]`` if ``present[i]``, else NULL.

    ``begin``, ``end`` and ``present`` have shape (n,). A NULL takes no bytes of the content.
    """

    content: NDArray[np.uint8]
    begin: Ints
    end: Ints
    present: NDArray[np.bool_]

    @classmethod
    def from_values(cls, values: Sequence[object]) -> BinaryColumn:
        """Build the column from values; whatever is neither bytes nor None becomes a text in UTF-8."""
        parts = [b"" if v is None else v if isinstance(v, bytes) else str(v).encode() for v in values]
        end = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        present = np.array([v is not None for v in values], bool)
        return cls(np.frombuffer(b"".join(parts), np.uint8), end[:-1], end[1:], present)

    @classmethod
    def concatenate(cls, columns: Sequence[BinaryColumn]) -> BinaryColumn:
        """Join columns whose contents have no gaps, one behind the other."""
        if not columns:
            return cls.from_values([])
        before = np.cumsum([0, *(len(column.content) for column in columns[:-1])])
        return cls(
            np.concatenate([column.content for column in columns]),
            np.concatenate([column.begin + at for column, at in zip(columns, before, strict=True)]),
            np.concatenate([column.end + at for column, at in zip(columns, before, strict=True)]),
            np.concatenate([column.present for column in columns]),
        )

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: Ints) -> BinaryColumn:
        """Return the rows that an index array selects."""
        return BinaryColumn(self.content, self.begin[rows], self.end[rows], self.present[rows])

    def texts(self) -> list[str | None]:
        """Return the rows as texts, NULL as None; bytes that are not UTF-8 are replaced."""
        rows = zip(self.begin.tolist(), self.end.tolist(), self.present.tolist(), strict=True)
        return [
            self.content[begin:end].tobytes().decode("utf-8", "replace") if present else None
            for begin, end, present in rows
        ]

    def sizes(self) -> Ints:
        """Return the bytes of each row, shape (n,); 0 for NULL."""
        return self.end - self.begin
