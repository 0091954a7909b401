"""The events of a rank as part of a Parquet dataset, so that later questions need not read the profile again.

A table has one file for each rank, and without rows none (`hpcprof.profiles.event_folders`). The description
of a rank holds everything else; it is written last, and files count only if it is of the same profile. Each
row group has the least and the greatest time of its rows.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hpcprof.common.atomic import replacing, write_atomically
from hpcprof.profiles.event_columns import (
    STEPPED,
    arrow_columns,
    column_names,
    dataset_name,
    is_text,
    plain_text,
    table_of,
    table_schema,
    timeline_tables,
)
from hpcprof.profiles.event_folders import origin_path, table_path
from hpcprof.profiles.timeline import SHAPES, Ints, Mask, Origin, Table, Timeline

VERSION = 2
"""Raise it when the meaning of a column changes; new and removed tables and columns are noticed anyway."""

_ADDED_TABLES = (
    *("functions", "mpi_calls", "mpi_operations", "counters", "cpu_counters", "os_calls"),
    *("device_samples", "unended_kernels"),
)
"""Tables that files of earlier versions lack; the rest of these files is read, and these tables are empty."""

_Columns = Mapping[str, pa.ChunkedArray]

_KEY = b"hpcprof"

# Values that grow from row to row. The others repeat, and are smallest with a dictionary.
_ASCENDING_COLUMNS = ("start", "start_ns", "end", "end_ns", "time_ns", "correlation", "source_correlation")
_ROWS_IN_GROUP = 1 << 16
"""Rows in a group: the smallest part of a file that a reader can skip, and that is written at a time."""


class _OriginOnly(msgspec.Struct):
    """The second line of a rank's description without the texts, which can be many."""

    origin: dict[str, Any]


class _Description(msgspec.Struct):
    """The first line of a rank's description, about its files; the second holds everything else."""

    version: int
    layout: dict[str, list[str]]
    sha256: str
    rows: dict[str, int]


@dataclass(frozen=True)
class RankEvents:
    """The files of one rank in a dataset."""

    folder: Path
    run_id: str
    rank: int
    sha256: str

    def path(self, table: str) -> Path:
        """Return the file of a table by its name in the dataset."""
        return table_path(self.folder, table, self.run_id, self.rank)

    def write(self, timeline: Timeline, step: Ints) -> None:
        """Write the tables of a timeline; they do not count until `finish` is called.

        ``step``, of shape (kernels,), is the step of each kernel, -1 outside steps. Raises OSError if a file
        cannot be written.
        """
        self._origin.unlink(missing_ok=True)
        strings = timeline.strings.tolist()
        for field in timeline_tables():
            table: Table = getattr(timeline, field)
            self._write(dataset_name(field), table, strings, step if field == STEPPED else None)
        pa.default_memory_pool().release_unused()

    def discard(self) -> None:
        """Remove the tables of a timeline that could not be written as a whole."""
        for field in timeline_tables():
            # Where a folder could not be made, none of its files was.
            with suppress(FileNotFoundError, NotADirectoryError):
                self.path(dataset_name(field)).unlink()

    def finish(self, timeline: Timeline, more_tables: Mapping[str, pa.Table], *, events: bool = True) -> None:
        """Write other tables of the rank, and the description with which its files count.

        ``more_tables`` are by their names in the dataset; ``events`` is True if `write` has written the
        tables of the timeline. Raises OSError if a file cannot be written.
        """
        fields_written = timeline_tables() if events else ()
        rows = {dataset_name(field): len(getattr(timeline, field)) for field in fields_written}
        for name, table in more_tables.items():
            rows[name] = len(table)
            if self._make_folder(name, len(table)):
                with self._writer(name, table.schema) as writer:
                    writer.write_table(table, _ROWS_IN_GROUP)
        description = msgspec.json.encode(_Description(VERSION, _layout(), self.sha256, rows)).decode()
        origin = {**asdict(timeline.origin), "path": str(timeline.origin.path)}
        contents = json.dumps({"origin": origin, "strings": timeline.strings.tolist()})
        self._origin.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._origin, f"{description}\n{contents}\n")
        for ending in ("json", *(f"{field}.parquet" for field in timeline_tables())):
            _version_1(self.folder, self.rank, ending).unlink(missing_ok=True)

    def rows(self) -> dict[str, int] | None:
        """Return the number of rows of each table; None without events of this profile and version."""
        rows = self._rows()
        return rows if rows is not None and dataset_name(STEPPED) in rows else None

    def written_rows(self) -> dict[str, int]:
        """Return the number of rows of each table that there is, with or without events."""
        return self._rows() or {}

    def written(self) -> bool:
        """Return whether files of this profile and version exist."""
        return self._rows() is not None

    def table(self, name: str, schema: pa.Schema) -> pa.Table | None:
        """Read columns of a table that was given to `finish`.

        It is None if there is none of this profile and version, or it is damaged.
        """
        rows = self._rows()
        if rows is None or name not in rows:
            return None
        if not rows[name]:
            return schema.empty_table()
        try:
            with pq.ParquetFile(self.path(name)) as file:
                self._check(name, file, rows[name])
                return file.read(schema.names, use_threads=False).cast(schema)
        except (OSError, pa.ArrowException, ValueError, KeyError):
            return None

    def _rows(self) -> dict[str, int] | None:
        """Return the number of rows of each table that was written; None if none of this profile was."""
        try:
            with self._origin.open("rb") as file:
                description = msgspec.json.decode(file.readline(), type=_Description)
        except (OSError, msgspec.MsgspecError):
            return None
        required = [name for name in _layout() if name in description.layout or name not in _ADDED_TABLES]
        layout = {name: _layout()[name] for name in required}
        expected = (VERSION, layout, self.sha256)
        return (
            description.rows
            if (description.version, description.layout, description.sha256) == expected
            else None
        )

    def _check(self, name: str, file: pq.ParquetFile, rows: int) -> None:
        identity = self._identity(file.schema_arrow.names)
        if file.metadata.metadata[_KEY] != identity or file.metadata.num_rows != rows:
            raise ValueError(f"{self.path(name)} is of another profile")

    def load(self) -> Timeline | None:
        """Read the timeline.

        It is None if there is none, or it is of another profile or version, or damaged.
        """
        rows = self.rows()
        try:
            if rows is None:
                return _load_version_1(self.folder, self.rank, self.sha256)
            contents = self._origin.read_text(encoding="utf-8").partition("\n")[2]
            return _timeline(json.loads(contents), partial(self._read, rows))
        except (OSError, pa.ArrowException, msgspec.ValidationError, ValueError, KeyError, TypeError):
            return None

    def window(self, start_ns: int, end_ns: int) -> Timeline | None:
        """Read the rows that overlap a window of time (`overlaps_window`); other row groups are skipped.

        The timeline has only the texts of these row groups, so its numbers of texts are others than those of
        `load`. It is None if there is none of this profile and version, or it is damaged.
        """
        rows = self.rows()
        if rows is None:
            return None
        number: defaultdict[str, int] = defaultdict()
        number.default_factory = number.__len__
        try:
            tables = _tables(partial(self._read, rows, window=(start_ns, end_ns)), number)
            return Timeline(
                origin=_described_origin(self._read_origin()), strings=_texts(list(number)), **tables
            )
        except (OSError, pa.ArrowException, msgspec.MsgspecError, ValueError, KeyError, TypeError):
            return None

    def world_size(self) -> int | None:
        """Return the number of ranks that the profile records; None where it is not known."""
        if self._rows() is None:
            return None
        try:
            return _described_origin(self._read_origin()).world_size
        except (OSError, msgspec.MsgspecError):
            return None

    def _read_origin(self) -> dict[str, Any]:
        return msgspec.json.decode(self._origin.read_bytes().partition(b"\n")[2], type=_OriginOnly).origin

    @property
    def _origin(self) -> Path:
        return origin_path(self.folder, self.run_id, self.rank)

    def _write(self, name: str, table: Table, strings: list[str], step: Ints | None) -> None:
        if not self._make_folder(name, len(table)):
            return
        empty = arrow_columns(table.take(slice(0)), strings)
        with self._writer(name, (empty if step is None else _with_step(empty, step[:0])).schema) as writer:
            for first in range(0, len(table), _ROWS_IN_GROUP):
                part = slice(first, first + _ROWS_IN_GROUP)
                rows = arrow_columns(table.take(part), strings)
                writer.write_table(rows if step is None else _with_step(rows, step[part]))

    def _make_folder(self, name: str, count: int) -> bool:
        """Make the folder of a table if it has rows, else remove the file of another profile."""
        path = self.path(name)
        if count:
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            path.unlink(missing_ok=True)
        return count > 0

    @contextmanager
    def _writer(self, name: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        growing = [column for column in schema.names if column in _ASCENDING_COLUMNS]
        with (
            replacing(self.path(name)) as temporary,
            pq.ParquetWriter(
                temporary,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[column for column in schema.names if column not in growing],
                column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
                write_statistics=growing,
                # Other programs read texts as texts, not as a type of Arrow.
                store_schema=False,
            ) as writer,
        ):
            writer.add_key_value_metadata({_KEY: self._identity(schema.names)})
            yield writer

    def _read(
        self, rows: Mapping[str, int], field: str, kind: type[Table], window: tuple[int, int] | None = None
    ) -> _Columns | None:
        """Return the columns of a table by their names in the timeline; None if it has no rows.

        With a window, only those rows that overlap it are returned. Raises ValueError if the file is of
        another profile or version, or incomplete.
        """
        name = dataset_name(field)
        if not rows.get(name):
            return None
        texts = [f.name for f in fields(kind) if is_text(f.name)]
        with pq.ParquetFile(self.path(name), read_dictionary=texts) as file:
            self._check(name, file, rows[name])
            wanted = table_schema(kind).names
            columns = file.read(wanted) if window is None else _rows_in_window(file, wanted, *window)
        names = {part: f.name for f in fields(kind) if f.name not in SHAPES for part in column_names(f.name)}
        return {names.get(part, part): columns.column(part) for part in columns.column_names}

    def _identity(self, columns: Sequence[str]) -> bytes:
        """Return the metadata that a file must have."""
        return json.dumps({"version": VERSION, "layout": list(columns), "sha256": self.sha256}).encode()


@cache
def _layout() -> dict[str, list[str]]:
    """Return the columns of each table of a timeline by its name in the dataset."""
    return {
        dataset_name(field): table_schema(kind).names + ["step"] * (field == STEPPED)
        for field, kind in timeline_tables().items()
    }


def _with_step(rows: pa.Table, step: Ints) -> pa.Table:
    return rows.append_column("step", pa.array(step, mask=step < 0))


def _timeline(
    description: Mapping[str, Any], read: Callable[[str, type[Table]], _Columns | None]
) -> Timeline:
    """Return the timeline of a description; ``read`` returns the columns of a table, None without rows."""
    number = {plain_text(value): i for i, value in enumerate(description["strings"])}
    strings = _texts(description["strings"])
    return Timeline(origin=_described_origin(description["origin"]), strings=strings, **_tables(read, number))


def _tables(read: Callable[[str, type[Table]], _Columns | None], number: Mapping[str, int]) -> dict[str, Any]:
    tables = {}
    for field, kind in timeline_tables().items():
        columns = read(field, kind)
        tables[field] = kind.empty() if columns is None else table_of(kind, columns, number)
    return tables


def _texts(values: Sequence[str]) -> NDArray[np.object_]:
    strings = np.empty(len(values), object)
    strings[:] = values
    return strings


def _described_origin(description: Mapping[str, Any]) -> Origin:
    return msgspec.convert(description, Origin, dec_hook=lambda kind, value: kind(value))


def overlaps_window(start: Ints, end: Ints, start_ns: int, end_ns: int) -> Mask:
    """Return a mask of the rows that overlap a window of time, without its end; empty ones lie in it."""
    return (start < end_ns) & ((end > start_ns) | (start >= start_ns))


def _rows_in_window(file: pq.ParquetFile, names: list[str], start_ns: int, end_ns: int) -> pa.Table:
    """Read the rows of a file that overlap a window; groups of rows that lie outside are not read."""
    metadata, columns = file.metadata, file.schema_arrow.names
    first, last = ("start_ns", "end_ns") if "start_ns" in columns else ("time_ns", "time_ns")
    places = columns.index(first), columns.index(last)
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        starts, ends = (group.column(place).statistics for place in places)
        if starts.min < end_ns and max(starts.max, ends.max) >= start_ns:
            groups.append(number)
    rows = file.read_row_groups(groups, names)
    start, end = (rows.column(name).to_numpy() for name in (first, last))
    return rows.filter(pa.array(overlaps_window(start, end, start_ns, end_ns)))


def _load_version_1(folder: Path, rank: int, sha256: str) -> Timeline | None:
    """Read the files of hpcprof 0.1: one for each table, all in one folder, with numbers for kinds."""
    description = json.loads(_version_1(folder, rank, "json").read_text(encoding="utf-8"))
    identity = {"version": 1, "sha256": sha256}
    layout = [field for field in timeline_tables() if field not in _ADDED_TABLES]
    if {**description, **identity, "layout": layout} != description:
        return None

    def read(field: str, kind: type[Table]) -> _Columns | None:
        if field in _ADDED_TABLES:
            return None
        names = [
            part for f in fields(kind) for part in (column_names(f.name) if f.name in SHAPES else [f.name])
        ]
        with pq.ParquetFile(_version_1(folder, rank, f"{field}.parquet")) as file:
            if json.loads(file.metadata.metadata[_KEY]) != {**identity, "layout": names}:
                raise ValueError(f"{field} is of another profile")
            return dict(zip(names, file.read(names).columns, strict=True))

    return _timeline(description, read)


def _version_1(folder: Path, rank: int, ending: str) -> Path:
    return folder / f"rank{rank:05d}.{ending}"
