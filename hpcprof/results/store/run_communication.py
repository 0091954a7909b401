"""The communication of a run, computed once: matched operations, waits, and one clock.

A collect computes it with the analyses over the ranks and keeps it beside the events, in
``communication/run=ID``: ``part-N.parquet`` has the rows of `Matches` of some communicators,
``clocks.parquet`` the clocks, and ``description.json``, which is written last, everything else.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import Enum, IntEnum
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hpcprof.analysis.collectives.common_clock import Aligned, Alignment, RankClock, connect
from hpcprof.analysis.collectives.matches import UNKNOWN, Arrivals, Matches, arrivals_of
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.common.atomic import replacing, write_atomically
from hpcprof.common.decode import from_json, read_file
from hpcprof.common.errors import StoreError
from hpcprof.common.units import format_bytes, format_ns, named_ranks
from hpcprof.profiles.event_columns import timeline_tables
from hpcprof.profiles.timeline import Allocations, Ints, Timeline
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.store.mpi_links import FILE as MPI_FILE
from hpcprof.results.store.mpi_links import calls_between, read_links
from hpcprof.results.store.rank_tables import MPI_TABLES, has_mpi, kept_table

VERSION = 3
"""Increased when matches or clocks are computed in another way, so that they are computed again."""

DESCRIPTION, CLOCKS = "description.json", "clocks.parquet"
_ROW_GROUP_ROWS, _BATCH_ROWS = 1 << 16, 1 << 18
_COLLECTIVE_COLUMNS = ("op", "comm_id", "seq", "bytes")
_MESSAGE_COLUMNS = ("op", "comm_id", "tag", "bytes")
_TIME_COLUMNS = ("start_ns", "end_ns", "arrived_ns")
_NULLABLE_FIELDS = ("peer", "arrived")
_MATCH_BITS = 32
MATCH_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("rank", "row", "match_group", "match")),
        ("op", pa.string()),
        *((name, pa.int64()) for name in ("part", "start_ns", "end_ns", "peer")),
        ("sends", pa.bool_()),
        ("arrived_ns", pa.int64()),
    ]
)
"""The columns of the files of matches; see `Matches`. Unknown values are null."""

_COLUMN_OF_FIELD = dict(zip((field.name for field in fields(Matches)), MATCH_SCHEMA.names, strict=True))
_written_size = lru_cache(1024)(format_bytes)


class ClockSource(Enum):
    """The evidence by which the clock of a rank was aligned with the reference clock."""

    COMMUNICATION = "communication"
    NODE = "node"
    UTC = "utc"
    STEPS = "steps"


@dataclass(frozen=True)
class RunClocks:
    """The clocks of a run's ranks, each related to one common clock: that of the reference rank."""

    clocks: Mapping[int, RankClock]
    """By rank."""
    sources: Mapping[int, ClockSource]
    """By rank."""
    errors: Mapping[int, float]
    """Maximum error of the times of a rank, in ns; ranks with an unknown error are missing."""
    start_utc_ns: int | None = None
    """The UTC time of the common clock's zero in ns since 1970; None if the profiles do not record it."""

    def to_common(self, rank: int, stamps: Ints) -> Ints:
        """Return time stamps of a rank's profile on the common clock, in ns."""
        return self.clocks[rank].to_common(stamps)

    def to_rank(self, rank: int, stamps: Ints) -> Ints:
        """Return times on the common clock as time stamps of a rank's profile, in ns."""
        return self.clocks[rank].to_rank(stamps)

    def stamp_on_common(self, rank: int, stamp: int) -> int:
        """Return one time stamp of a rank's profile on the common clock, in ns."""
        return int(self.to_common(rank, np.array([stamp]))[0])

    def on_common(self, rank: int, timeline: Timeline) -> Timeline:
        """Return the timeline of a rank with all times on the common clock."""
        moved = {}
        for name in timeline_tables():
            table = getattr(timeline, name)
            stamps = ("time",) if isinstance(table, Allocations) else ("start", "end")
            moved[name] = replace(table, **{s: self.to_common(rank, getattr(table, s)) for s in stamps})
        return replace(timeline, **moved)

    @cached_property
    def aligned(self) -> dict[int, RankClock]:
        """The clocks that communication aligned with each other."""
        return {rank: clock for rank, clock in self.clocks.items() if rank in self.errors}

    def uncertainty_ns(self, rank: int) -> int | None:
        """Return the maximum error in ns of a rank's times on the common clock; None if it is unknown."""
        return round(self.errors[rank]) if rank in self.errors else None

    def notes(self) -> list[str]:
        """Return a sentence about the alignment of the clocks of several ranks."""
        if len(self.clocks) < 2:
            return []
        most = max((self.errors[rank] for rank in self._clock_order(ClockSource.COMMUNICATION)), default=0.0)
        how = {
            ClockSource.COMMUNICATION: f"are aligned by their communication to {format_ns(round(most))}",
            ClockSource.NODE: "are the node's, which their communication confirms",
            ClockSource.UTC: "are aligned by the UTC times of their profiles, to an unknown precision",
            ClockSource.STEPS: "are unknown, so that each rank's first step starts with that of the others",
        }
        parts = []
        for source, text in how.items():
            if ranks := self._clock_order(source):
                suffix = "" if len(ranks) == len(self.clocks) else f" of {named_ranks(ranks)}"
                parts.append(f"the clocks{suffix} {text}")
        return [f"{'; '.join(parts)}.".capitalize().replace("utc", "UTC")]

    def _clock_order(self, source: ClockSource) -> list[int]:
        return [rank for rank, source_of_rank in sorted(self.sources.items()) if source_of_rank is source]


def run_clocks(
    aligned: Iterable[Aligned], events: Mapping[int, RankEvents], utc: Mapping[int, int | None]
) -> RunClocks:
    """Relate the clocks of all ranks to one common clock.

    1. Connect the clocks that collectives and messages align, by the ranks that they share
       (`hpcprof.analysis.collectives.common_clock`). The largest connected component gives the common clock.
    2. Shift each other component by the UTC times in its profiles,
    3. or, where these are missing, so that its first step starts together with that of the largest component.

    ``events`` has the kept events of each rank, with its steps; ``utc`` has the UTC time of the zero of each
    rank's clock in ns since 1970, None if its profile does not record it.
    """
    aligned = [*aligned]
    node_ranks = {rank for ranks, clocks_of_set in aligned if clocks_of_set.of_node for rank in ranks}
    parts = connect(aligned) if len(utc) > 1 else []
    lone_ranks = [rank for rank in utc if not any(rank in part.clocks for part in parts)]
    parts += [Alignment({rank: RankClock.shifted(0)}, {rank: 0.0}) for rank in lone_ranks]
    if not parts:
        return RunClocks({}, {}, {})
    zeros = [_utc_zero(part, utc) for part in parts]
    first = {} if None not in zeros else first_steps(events)
    clocks = dict(parts[0].clocks)
    alone = ClockSource.STEPS if zeros[0] is None else ClockSource.UTC
    together = ClockSource.NODE if node_ranks >= clocks.keys() else ClockSource.COMMUNICATION
    sources = dict.fromkeys(clocks, together if len(clocks) > 1 else alone)
    for part, zero in zip(parts[1:], zeros[1:], strict=True):
        if zero is not None and zeros[0] is not None:
            shift, source = zero - zeros[0], ClockSource.UTC
        else:
            shift, source = (
                _first_step_start(parts[0], first) - _first_step_start(part, first),
                ClockSource.STEPS,
            )
        for rank, clock in part.clocks.items():
            clocks[rank], sources[rank] = replace(clock, base=clock.base + shift), source
    return RunClocks(dict(sorted(clocks.items())), sources, parts[0].uncertainty, zeros[0])


def _utc_zero(part: Alignment, utc: Mapping[int, int | None]) -> int | None:
    """Return the UTC time of the zero of a component's clock: the median over the ranks that record it."""
    utc_zero = []
    for rank, clock in part.clocks.items():
        start = utc.get(rank)
        if start is not None:
            utc_zero.append(start + clock.zero - int(clock.to_common(np.array([clock.zero]))[0]))
    return sorted(utc_zero)[len(utc_zero) // 2] if utc_zero else None


def first_steps(events: Mapping[int, RankEvents]) -> dict[int, int]:
    """Return the start of the first step of each rank that has steps, on its own clock."""
    rows = kept_table(events.values(), "step_parts", ["start_ns"], lost={}).to_pandas()
    first = rows.groupby("rank")["start_ns"].min()
    return dict(zip(first.index.tolist(), first.tolist(), strict=True))


def _first_step_start(part: Alignment, first: Mapping[int, int]) -> int:
    """Return the start of the first step of a component, on its clock; 0 without steps."""
    starts = [
        int(clock.to_common(np.array([first[rank]]))[0])
        for rank, clock in part.clocks.items()
        if rank in first
    ]
    return min(starts, default=0)


@dataclass(frozen=True)
class RankCommunication:
    """The n matched collectives and messages of a rank, by start."""

    start: Ints
    """Start of their kernel, or of the call on the host, on the clock of the rank's profile. Several messages
    may share a kernel. If collectives share one, only the first is here. Shape (n,).
    """
    number: Ints
    """The number of a collective or a message, equal on all of its ranks; shape (n,)."""
    way: Ints
    """1 for a message that is sent, -1 for one that is received, 0 for a collective; shape (n,)."""
    carrier: Ints
    """`Carrier` values; shape (n,)."""
    texts: list[str]
    """A description of each of them."""

    @classmethod
    def joined(cls, parts: "Sequence[RankCommunication]") -> "RankCommunication":
        """Return several parts as one, by start."""
        start, number, way, carrier = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("start", "number", "way", "carrier")
        )
        order = np.lexsort((number, start))
        texts = [text for part in parts for text in part.texts]
        named = [texts[place] for place in order.tolist()]
        return cls(start[order], number[order], way[order], carrier[order], named)


class Carrier(IntEnum):
    """The kind of event of a rank that performs a collective or a message."""

    WORK = 0
    """A kernel, or work of the host."""
    MPI_CALL = 1
    MPI_REQUEST = 2
    """An operation of MPI that ends in another call."""


_NO_INTEGERS = np.array([], np.int64)
_NO_COMMUNICATION = RankCommunication(_NO_INTEGERS, _NO_INTEGERS, _NO_INTEGERS, _NO_INTEGERS, [])


class PartFile(msgspec.Struct, frozen=True):
    """One file of matches, and the ranks that occur in it."""

    name: Annotated[str, msgspec.Meta(pattern=r"\Apart-\d+\.parquet\Z")]
    ranks: tuple[int, ...]


class _Description(msgspec.Struct):
    """The other facts that are kept about a run's communication; ``profiles`` is the `profiles_digest`."""

    version: int
    profiles: str
    parts: list[PartFile]
    sources: dict[int, ClockSource]
    errors: dict[int, float]
    start_utc_ns: int | None
    size: int
    mpi: bool = False


def profiles_digest(events: Mapping[int, RankEvents]) -> str:
    """Return a digest that identifies the profiles of a run."""
    profiles = [f"{rank} {rank_events.sha256}" for rank, rank_events in sorted(events.items())]
    return sha256("\n".join(profiles).encode()).hexdigest()


def write_matches(folder: Path, number: int, matches: Matches) -> PartFile:
    """Write one file of matches into the folder of a run's communication."""
    ordered = matches.take(np.lexsort((matches.row, matches.rank)))
    # The number of the file makes its matches' numbers distinct from those of other files.
    first = number << _MATCH_BITS
    arrays = []
    for field, column in _COLUMN_OF_FIELD.items():
        values = getattr(ordered, field)
        if field in ("group", "match"):
            values = values + first
        kind = MATCH_SCHEMA.field(column).type
        arrays.append(pa.array(values, kind, mask=values == UNKNOWN if field in _NULLABLE_FIELDS else None))
    folder.mkdir(parents=True, exist_ok=True)
    name = f"part-{number}.parquet"
    with replacing(folder / name) as temporary:
        pq.write_table(
            pa.table(arrays, MATCH_SCHEMA),
            temporary,
            row_group_size=_ROW_GROUP_ROWS,
            compression="zstd",
            compression_level=1,
            use_dictionary=["op"],
            column_encoding=dict.fromkeys(_TIME_COLUMNS, "DELTA_BINARY_PACKED"),
            write_statistics=["rank"],
            store_schema=False,
        )
    return PartFile(name, tuple(np.unique(ordered.rank).tolist()))


def read_matches(folder: Path, parts: Sequence[PartFile], ranks: Sequence[int] | None = None) -> Matches:
    """Read the matches of some ranks, by default of all, from the files of a run's communication."""
    wanted = None if ranks is None else np.array(sorted(ranks), np.int64)
    chosen = [p for p in parts if wanted is None or not {*p.ranks}.isdisjoint(wanted.tolist())]
    tables = [_read_part(folder / part.name, wanted) for part in chosen]
    return _matches(pa.concat_tables(tables) if tables else MATCH_SCHEMA.empty_table())


def _matches(whole: pa.Table) -> Matches:
    columns = {}
    for field, column in _COLUMN_OF_FIELD.items():
        values = whole.column(column)
        columns[field] = (values.fill_null(UNKNOWN) if field in _NULLABLE_FIELDS else values).to_numpy()
    return Matches(**columns)


def _read_part(path: Path, ranks: Ints | None) -> pa.Table:
    with pq.ParquetFile(path) as file:
        groups = []
        for number in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(number).column(0).statistics
            if ranks is None or ((ranks >= statistics.min) & (ranks <= statistics.max)).any():
                groups.append(number)
        table = file.read_row_groups(groups, MATCH_SCHEMA.names, use_threads=False)
    if ranks is None:
        return table
    return table.filter(pa.array(np.isin(table.column("rank").to_numpy(), ranks)))


def _batches(path: Path) -> Iterator[Matches]:
    """Read a file of matches, some rows at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=MATCH_SCHEMA.names, use_threads=False):
            yield _matches(pa.Table.from_batches([batch]))


class RunCommunication:
    """The communication of a run, from the files in a folder.

    ``size`` is the largest number of ranks that a collective records, profiled or not, 0 if none does;
    ``lost`` is the error that prevented the matching, and ``mpi`` is True if there are operations of MPI.
    """

    def __init__(
        self,
        folder: Path,
        parts: Sequence[PartFile],
        clocks: RunClocks,
        events: Mapping[int, RankEvents],
        size: int = 0,
        temporary: tempfile.TemporaryDirectory[str] | None = None,
        lost: StoreError | None = None,
        mpi: bool = False,
    ) -> None:
        self.clocks, self.parts, self.size, self.lost, self.mpi = clocks, tuple(parts), size, lost, mpi
        self._folder, self._events = folder, events
        # The folder is removed with this object.
        self._temporary = temporary

    def matches(self, ranks: Sequence[int] | None = None) -> Matches:
        """Return the matches of some ranks, by default of all.

        Raises StoreError if the files are gone or damaged, or nothing could be matched.
        """
        with self._reading():
            return read_matches(self._folder, self.parts, ranks)

    def arrivals(self) -> Iterator[Arrivals]:
        """Yield the arrivals of the ranks at their matches, file by file."""
        with self._reading():
            for part in self.parts:
                yield arrivals_of(_batches(self._folder / part.name))

    def mpi_calls(self, between: Mapping[int, tuple[int, int]]) -> RunMpi | None:
        """Return the MPI calls of some ranks in a window of time of each, on the common clock.

        None unless all of these ranks call MPI, and any of them has a message or collective.
        """
        ranks, events = sorted(between), [self._events[rank] for rank in between]
        if not self.mpi or not all(map(has_mpi, events)):
            return None
        if not any(has_mpi(item, MPI_TABLES[1]) for item in events):
            return None
        tables = ((rank, *(kept_table([self._events[rank]], name) for name in MPI_TABLES)) for rank in ranks)
        with self._reading():
            calls = calls_between(self._folder, tables, between)
        return calls.on_common_clock(self.clocks.aligned)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self.lost is not None:
            raise self.lost
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{self._folder} cannot be read: {error}. Collect the run again.") from error

    def of_rank(self, rank: int) -> RankCommunication:
        """Return the communication of a rank with others; empty if it has none."""
        if self.lost is not None:
            return _NO_COMMUNICATION
        joint = self.matches([rank])
        # Only the first of the collectives that share a kernel is drawn.
        joint = joint.take((joint.part == 0) | (joint.peer != UNKNOWN))
        joint = joint.take(np.lexsort((joint.match, joint.start)))
        direction = np.where(joint.peer == UNKNOWN, 0, np.where(joint.sends, 1, -1))
        carrier = np.full(len(direction), int(Carrier.WORK))
        kernels = RankCommunication(
            joint.start, joint.match, direction, carrier, self._texts(rank, joint, direction)
        )
        return RankCommunication.joined([kernels, self._mpi_communication(rank)]) if self.mpi else kernels

    def _mpi_communication(self, rank: int) -> RankCommunication:
        with self._reading():
            links = read_links(self._folder, rank)
        if not len(links.row):
            return _NO_COMMUNICATION
        rows = kept_table([self._events[rank]], "mpi_operation_list", _MESSAGE_COLUMNS).take(links.row)
        values = (rows.column(name).to_pylist() for name in _MESSAGE_COLUMNS)
        texts = [
            _mpi_text(*row) for row in zip(*values, links.way.tolist(), links.peer.tolist(), strict=True)
        ]
        # Numbers after those of the files of matches.
        number = links.match + (len(self.parts) << _MATCH_BITS)
        carrier = np.where(links.pending == 1, int(Carrier.MPI_REQUEST), int(Carrier.MPI_CALL))
        return RankCommunication(links.start, number, links.way, carrier, texts)

    def _texts(self, rank: int, matches: Matches, direction: Ints) -> list[str]:
        if not len(matches):
            return []
        rows = kept_table([self._events[rank]], "rank_collectives", _COLLECTIVE_COLUMNS).take(matches.row)
        values = (rows.column(name).to_pylist() for name in _COLLECTIVE_COLUMNS)
        return [
            _kernel_text(*row) for row in zip(*values, direction.tolist(), matches.peer.tolist(), strict=True)
        ]

    def save(self) -> None:
        """Write the clocks and the description, which make the files in the folder valid; remove others."""
        clocks = self.clocks
        self._folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._folder / CLOCKS) as temporary:
            pq.write_table(_clock_table(clocks.clocks), temporary, compression="zstd", store_schema=False)
        described = _Description(
            VERSION,
            profiles_digest(self._events),
            [*self.parts],
            dict(clocks.sources),
            dict(clocks.errors),
            clocks.start_utc_ns,
            self.size,
            self.mpi,
        )
        write_atomically(self._folder / DESCRIPTION, msgspec.json.encode(described).decode())
        names = {CLOCKS, DESCRIPTION, *(part.name for part in self.parts)}
        if self.mpi:
            names.add(MPI_FILE)
        for path in self._folder.iterdir():
            if path.name not in names and not path.name.startswith("."):
                path.unlink(missing_ok=True)


def load_communication(folder: Path, events: Mapping[int, RankEvents]) -> RunCommunication | None:
    """Return the communication in a folder; None unless it is of these profiles and this version."""
    try:
        described = from_json(read_file(folder / DESCRIPTION), _Description)
        if (described.version, described.profiles) != (VERSION, profiles_digest(events)):
            return None
        clocks = _clocks(pq.read_table(folder / CLOCKS, use_threads=False))
    except (OSError, msgspec.MsgspecError, pa.ArrowException, KeyError):
        return None
    whole = RunClocks(clocks, described.sources, described.errors, described.start_utc_ns)
    return RunCommunication(folder, described.parts, whole, events, described.size, mpi=described.mpi)


def _clock_table(clocks: Mapping[int, RankClock]) -> pa.Table:
    """Return the clocks as a table with a row for each knot of their interpolation."""
    columns: dict[str, list[Any]] = {name: [] for name in ("rank", "zero_ns", "base_ns", "rate")}
    moments, ahead = [], []
    for rank, clock in clocks.items():
        count = len(clock.moment)
        for values, value in zip(columns.values(), (rank, clock.zero, clock.base, clock.rate), strict=True):
            values += [value] * count
        moments.append(clock.moment)
        ahead.append(clock.ahead)
    knots = {"moment_ns": np.concatenate([*moments, []]), "ahead_ns": np.concatenate([*ahead, []])}
    return pa.table({**columns, **knots})


def _clocks(table: pa.Table) -> dict[int, RankClock]:
    rank, moment, ahead = (table.column(name).to_numpy() for name in ("rank", "moment_ns", "ahead_ns"))
    bounds = np.flatnonzero(np.diff(rank, prepend=-1, append=-1)).tolist()
    clocks = {}
    for low, high in pairwise(bounds):
        zero, base, rate = (table.column(name)[low].as_py() for name in ("zero_ns", "base_ns", "rate"))
        clocks[int(rank[low])] = RankClock(zero, base, moment[low:high], ahead[low:high], rate)
    return clocks


def _kernel_text(op: str, comm_id: str | None, seq: int, size: int | None, direction: int, peer: int) -> str:
    partner = f" {'to' if direction > 0 else 'from'} rank {peer}" if direction else ""
    where = f"communicator {comm_id}" if comm_id else "an unknown communicator"
    return f"{op} {seq}{partner} of {where}{f', {_written_size(size)}' if size is not None else ''}"


def _mpi_text(op: str, comm_id: str | None, tag: int, size: int, direction: int, peer: int) -> str:
    partner = (
        f" {'to' if direction > 0 else 'from'} rank {peer}{f', tag {tag}' if tag >= 0 else ''}"
        if direction
        else ""
    )
    where = comm_id or "an unknown communicator"
    return f"{op}{partner}, {where}{f', {_written_size(size)}' if size >= 0 else ''}"
