"""The matched messages and collectives of MPI, kept beside the communication of a run.

``mpi.parquet`` has a row for each end of a message, and for each rank of a collective.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hpcprof.analysis.mpi.matching import RunMpi, with_matches
from hpcprof.analysis.mpi.run_lists import NONE, RunLists
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import Ints, Mask

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


class MpiLinks(msgspec.Struct, frozen=True):
    """The n messages and collectives of a rank; arrays of shape (n,)."""

    row: Ints
    """The position in ``mpi_operation_list`` of the rank."""
    start: Ints
    """Start of the call that begins it, on the clock of the rank."""
    match: Ints
    """The number that all of its ranks have in common, from 0."""
    peer: Ints
    """The other rank of a message, -1 for a collective."""
    way: Ints
    """1 for a message that is sent, -1 for one that is received, 0 for a collective."""
    pending: Ints
    """1 if another call than the first one ends it."""


class LinkWriter:
    """Writes the links of a run into a folder, window by window."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(
            folder / FILE, _SCHEMA, compression="zstd", compression_level=1, store_schema=False
        )
        self._count = 0

    def __enter__(self) -> "LinkWriter":
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the file."""
        self._writer.close()

    def add(self, run: RunMpi) -> None:
        """Write the matches of a window."""
        calls, ops = run.calls, run.operations
        rows = np.flatnonzero((ops.match != NONE) & calls.counted[ops.begin])
        message = ops.partner[rows] != NONE
        direction = np.where(message, np.where(ops.sends[rows], 1, -1), 0)
        columns = (
            ops.rank[rows],
            ops.row[rows],
            calls.own_start[ops.begin[rows]],
            ops.match[rows] + self._count,
            np.where(message, ops.peer[rows], NONE),
            direction,
            (ops.end[rows] != NONE) & (ops.end[rows] != ops.begin[rows]),
        )
        self._count += int(ops.match.max(initial=NONE)) + 1
        arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
        self._writer.write_table(pa.table(arrays, _SCHEMA))


def read_links(folder: Path, rank: int) -> MpiLinks:
    """Read the links of a rank, ordered by start."""
    columns = ("row", "start_ns", "match", "peer", "way", "pending")
    parts = [part.filter(pc.equal(part.column("rank"), rank)) for part in _parts(folder)]
    whole = pa.concat_tables(parts).sort_by("start_ns") if parts else _SCHEMA.empty_table()
    return MpiLinks(*(_ints(whole, name) for name in columns))


def _parts(folder: Path) -> Iterator[pa.Table]:
    """Yield the links of each window of the run; all ends of a match lie in one window."""
    with pq.ParquetFile(folder / FILE) as file:
        for number in range(file.metadata.num_row_groups):
            yield file.read_row_group(number, use_threads=False)


def _ints(rows: pa.Table, name: str) -> Ints:
    values: Ints = rows.column(name).to_numpy().astype(np.int64)
    return values


def calls_between(
    folder: Path, tables: Iterable[tuple[int, pa.Table, pa.Table]], between: Mapping[int, tuple[int, int]]
) -> RunMpi:
    """Return the calls of some ranks that begin in a window of time, matched as in the whole run.

    An operation stays matched only if all of its ends lie in the window of one of these ranks. ``tables`` has
    the ranks in ascending order, each with its rows of ``mpi_call_list`` and ``mpi_operation_list``;
    ``between`` has the window of each rank, on its own clock.
    """
    lists, chosen = RunLists(most_calls=np.iinfo(np.int64).max), {}
    for rank, calls, operations in tables:
        calls, operations, chosen[rank] = _cut_window(calls, operations, *between[rank])
        lists.add(rank, calls.to_pandas(), operations.to_pandas())
    first = np.full(max(chosen) + 2, NONE)
    first[[*chosen]] = np.cumsum([0, *map(len, chosen.values())])[:-1]
    inside = np.concatenate([*chosen.values()])
    place = np.where(inside, np.cumsum(inside) - 1, NONE).astype(np.int32)
    match, peer = np.full((2, np.count_nonzero(inside)), NONE)
    is_matched = np.zeros(len(match), bool)
    for part in _parts(folder):
        ranks, row, number, other = (_ints(part, name) for name in ("rank", "row", "match", "peer"))
        # The last place belongs to no rank.
        begin = first[np.minimum(ranks, len(first) - 1)]
        ours = np.flatnonzero(begin != NONE)
        at = place[begin[ours] + row[ours]]
        used, group = numbered(number[ours])
        is_inside = at != NONE
        count = np.bincount(group, minlength=len(used))
        whole = np.bincount(group[is_inside], minlength=len(used)) == count
        usable = whole[group] & ((count[group] == _ENDS_OF_A_MESSAGE) | (other[ours] == NONE))
        is_matched[at[is_inside]] = True
        is_usable = is_inside & usable
        match[at[is_usable]], peer[at[is_usable]] = number[ours][is_usable], other[ours][is_usable]
    return with_matches(lists, match, peer, is_matched)


_ENDS_OF_A_MESSAGE = 2


def _cut_window(
    calls: pa.Table, operations: pa.Table, start: int, end: int
) -> tuple[pa.Table, pa.Table, Mask]:
    """Return the calls that begin in a window, the operations in them, and a mask of these operations."""
    begun = _ints(calls, "start_ns")
    inside = np.append((begun >= start) & (begun < end), False)
    place = np.where(inside, np.cumsum(inside) - 1, NONE)
    begin, completed = _ints(operations, "begin_call"), _ints(operations, "end_call")
    chosen = inside[begin] & ((completed == NONE) | inside[completed])
    rows = operations.filter(chosen)
    for name, column in (("begin_call", begin), ("end_call", completed)):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(place[column[chosen]]))
    return calls.filter(inside[:-1]), rows, chosen
