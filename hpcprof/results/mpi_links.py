"""The messages and collectives of MPI that ranks have in common, kept beside the communication of a run.

``mpi.parquet`` has a row for each end of a message, and for each rank of a collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.mpi.run_lists import NONE
from hpcprof.profiles.timeline import Ints

FILE = "mpi.parquet"

_SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("rank", "row")),
        *((name, pa.int64()) for name in ("start_ns", "match")),
        ("peer", pa.int32()),
        ("way", pa.int8()),
        ("pending", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class MpiLinks:
    """The n messages and collectives of a rank; arrays of shape (n,).

    Attributes
    ----------
    row : ndarray of int64
        The position in ``mpi_operation_list`` of the rank.
    start : ndarray of int64
        When the call begins that begins it, on the clock of the rank.
    match : ndarray of int64
        What all of its ranks have in common, from 0.
    peer : ndarray of int64
        The other rank of a message, -1 for a collective.
    way : ndarray of int64
        1 for a message that is sent, -1 for one that is received, 0 for a collective.
    pending : ndarray of int64
        1 if it ends in another call than the one that begins it.
    """

    row: Ints
    start: Ints
    match: Ints
    peer: Ints
    way: Ints
    pending: Ints


class LinkWriter:
    """Writes the links of a run into a folder, window by window."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(
            folder / FILE, _SCHEMA, compression="zstd", compression_level=1, store_schema=False
        )
        self._count = 0

    def __enter__(self) -> LinkWriter:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the file."""
        self._writer.close()

    def add(self, run: RunMpi) -> None:
        """Write the matches of a window."""
        calls, found = run.calls, run.operations
        rows = np.flatnonzero((found.match != NONE) & calls.counted[found.begin])
        message = found.partner[rows] != NONE
        way = np.where(message, np.where(found.sends[rows], 1, -1), 0)
        columns = (
            found.rank[rows],
            found.row[rows],
            calls.own_start[found.begin[rows]],
            found.match[rows] + self._count,
            np.where(message, found.peer[rows], NONE),
            way,
            (found.end[rows] != NONE) & (found.end[rows] != found.begin[rows]),
        )
        self._count += int(found.match.max(initial=NONE)) + 1
        arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
        self._writer.write_table(pa.table(arrays, _SCHEMA))


def read_links(folder: Path, rank: int) -> MpiLinks:
    """Read the links of a rank, by start.

    Raises
    ------
    OSError, pa.ArrowException
        If the file is missing or damaged.
    """
    with pq.ParquetFile(folder / FILE) as file:
        parts = [
            part.filter(pc.equal(part.column("rank"), rank))
            for number in range(file.metadata.num_row_groups)
            for part in [file.read_row_group(number, use_threads=False)]
        ]
    whole = pa.concat_tables(parts).sort_by("start_ns") if parts else _SCHEMA.empty_table()
    names = ("row", "start_ns", "match", "peer", "way", "pending")
    return MpiLinks(*(whole.column(name).to_numpy().astype(np.int64) for name in names))
