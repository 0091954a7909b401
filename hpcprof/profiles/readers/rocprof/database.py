"""Reader of rocpd databases of schemas 3 and 4, plain and with LZ4, told apart by their columns.

A database has one set of tables for each process, or several after a merge: the names of a set's tables end
with the same identifier. Rows of a set refer to each other by the columns ``id``.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from hpcprof.common.errors import DamagedInput
from hpcprof.common.paths import read_only_uri
from hpcprof.profiles.columns.joins import matches
from hpcprof.profiles.columns.unique import distinct, map_unique, numbered, numbered_rows
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers import environment_allowlist
from hpcprof.profiles.readers.declaration import SeveralRanks, rank_from_name
from hpcprof.profiles.readers.nsys.export import NO_ID, REQUIRED, ExportTable, NsysExport, open_export
from hpcprof.profiles.readers.nsys.table_pages import quoted
from hpcprof.profiles.readers.rocprof import ROCPD
from hpcprof.profiles.readers.rocprof.records import (
    GRID,
    WORKGROUP,
    Agent,
    CallCategory,
    Details,
    Records,
    architectures,
    call_category,
    copy_directions,
    gpu_of_copies,
    gpus_of,
    join_records,
    style_of,
    timeline,
)
from hpcprof.profiles.readers.string_table import StringTable, translate
from hpcprof.profiles.timeline import (
    NO_NAME,
    Columns,
    Fact,
    IntColumns,
    Ints,
    Origin,
    Timeline,
    empty_columns,
)

_DESCRIPTION = "a rocpd database"
_DATA_TABLE = re.compile(r"rocpd_(kernel_dispatch|region)(.*)")
_EVENT_TABLES = ("kernel_dispatch", "memory_copy", "region")
_DecodedT = TypeVar("_DecodedT")

# The columns that schema 4 keeps in the table of tracks.
_TRACK = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_PLACED_COLUMNS: dict[str, int | None] = {"start": REQUIRED, "end": REQUIRED, "event_id": NO_ID}
_DISPATCH: dict[str, int | None] = {
    **_PLACED_COLUMNS,
    **dict.fromkeys(("pid", "agent_id", "queue_id", "stream_id", "kernel_id", "dispatch_id"), NO_ID),
    **dict.fromkeys((*WORKGROUP, *GRID), 1),
}
_COPY: dict[str, int | None] = {
    **_PLACED_COLUMNS,
    **dict.fromkeys(
        ("pid", "queue_id", "stream_id", "name_id", "dst_agent_id", "src_agent_id", "size"), NO_ID
    ),
}
_REGION: dict[str, int | None] = {**_PLACED_COLUMNS, **dict.fromkeys(("pid", "tid", "name_id"), NO_ID)}
_EVENT: dict[str, int | None] = {"id": REQUIRED, "stack_id": NO_ID, "category_id": NO_ID}

_PROCESS_SHIFT = 32
"""Bits of a process that hold its number in the system; the set of a merged database is above them."""
_MAX_JSON_BYTES, _LZ4_RATIO = 64 << 20, 255
"""Maximum bytes of a value that is stored as JSON, and of the content of one byte of LZ4."""


class _Message(msgspec.Struct):
    message: str = ""


def read(path: Path, threads: int = 2) -> Timeline:
    """Read a rocpd database, its large tables in several threads.

    Times are of the node's clock since it started; the database does not relate it to UTC.
    """
    with open_database(path, threads) as database:
        strings = StringTable()
        records = join_records(part.records(strings) for part in database.parts)
        return timeline(_origin(database), records, strings)


def identify_rank(path: Path) -> int | None:
    """Return the rank in a database, else in its name; None if neither has one."""
    with open_database(path) as database:
        return _rank(database)


def several_ranks(path: Path) -> SeveralRanks | None:
    """Return the processes of each rank in a merged database; None if one process ran kernels."""
    with open_database(path) as database:
        return SeveralRanks.of_processes(
            {
                process: environment_allowlist.first_number(variables, environment_allowlist.RANKS)
                for process, variables in database.gpu_users().items()
            }
        )


def is_rocpd(path: Path) -> bool:
    """Return whether a file is an SQLite database with tables of rocpd."""
    try:
        with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master")
            return any(str(name).startswith("rocpd_") for (name,) in names)
    except sqlite3.Error:
        return False


class DatabasePart(msgspec.Struct, frozen=True, dict=True):
    """The tables of one set; ``suffix`` ends their names, and ``number`` is that of the set."""

    export: NsysExport
    suffix: str
    number: int

    def table(self, name: str) -> ExportTable | None:
        """Return a table of the set, None if it is absent or empty."""
        return self.export.table(f"rocpd_{name}{self.suffix}")

    def rows(self, name: str, *columns: str) -> Iterator[Sequence[Any]]:
        """Return columns of a small table; one that it does not have is NULL."""
        table = self.table(name)
        if table is None:
            return iter(())
        return table.rows([column if column in table.columns else "NULL" for column in columns])

    @cached_property
    def texts(self) -> dict[int, str]:
        """The texts of rocpd_string by their ids."""
        return {number: str(text) for number, text in self.rows("string", "id", "string") if text is not None}

    @cached_property
    def processes(self) -> dict[int, int]:
        """The numbers of the processes in the system by the ids that the other tables use."""
        return {
            number: pid
            for number, pid in self.rows("info_process", "id", "pid")
            if _all_integers(number, pid)
        }

    @cached_property
    def agents(self) -> dict[int, Agent]:
        """The processors by their ids."""
        wanted = ("id", "type", "type_index", "name", "product_name", "extdata")
        agents = {}
        for number, kind, index, name, product, extdata in self.rows("info_agent", *wanted):
            if isinstance(number, int):
                agents[number] = Agent(
                    number=number,
                    gpu=kind == "GPU",
                    device=index if isinstance(index, int) else number,
                    architecture=str(name or ""),
                    name=str(product or name or ""),
                    details=decode_value(extdata, Details) or Details(),
                )
        return agents

    @cached_property
    def environment(self) -> dict[int, dict[str, str]]:
        """The variables of each process that may be kept, by its number."""
        allowed = environment_allowlist.allowed
        return {
            self.process(pid): {name: value for name, value in variables.items() if allowed(name, value)}
            for pid, variables in self._environments()
        }

    @property
    def variables(self) -> dict[str, str]:
        """All variables of all processes; they may hold secrets."""
        return {name: value for _, variables in self._environments() for name, value in variables.items()}

    def _environments(self) -> Iterator[tuple[int, dict[str, str]]]:
        for pid, written in self.rows("info_process", "pid", "environment"):
            if isinstance(pid, int):
                environment = decode_value(written, dict[str, Any]) or {}
                yield pid, {name: value for name, value in environment.items() if isinstance(value, str)}

    def process(self, pid: int) -> int:
        """Return the number of a process in the timeline."""
        return self.number << _PROCESS_SHIFT | pid

    def records(self, strings: StringTable) -> Records:
        """Read the dispatches, copies and regions."""
        tables = {name: self.table(name) for name in _EVENT_TABLES}
        for name, columns in (("kernel_dispatch", _DISPATCH), ("memory_copy", _COPY), ("region", _REGION)):
            table = tables[name]
            if table is not None:
                table.begin_bulk({key: default for key, default in columns.items() if key in table.columns})
        records = Records()
        events = self._events() if any(tables.values()) else {}
        if (table := tables["kernel_dispatch"]) is not None:
            records.dispatches, passes = self._dispatches(table, events, strings, records.lost)
            records.counters = self._counters(records.dispatches, passes, strings)
        if (table := tables["memory_copy"]) is not None:
            records.copies = self._copies(table, events, strings, records.lost)
        if (table := tables["region"]) is not None:
            records.calls = self._calls(table, events, strings, records.lost)
        return records

    def _events(self) -> IntColumns:
        table = self.table("event")
        if table is None:
            return empty_columns(_EVENT)
        return table.read_bulk(_EVENT).integers

    def _read(
        self, table: ExportTable, wanted: Mapping[str, int | None], subject: Subject, lost: list[Loss]
    ) -> IntColumns:
        present = {name: default for name, default in wanted.items() if name in table.columns}
        table.require("start", "end")
        bulk = table.read_bulk(present)
        columns, count = bulk.integers, len(bulk.integers["start"])
        odd_counts = {name: number for name, number in bulk.odd.items() if name not in ("start", "end")}
        lost += losses(LossKind.FIELD, subject, odd_counts, count)
        tracks = self._tracks(table) if not {*wanted} & {*_TRACK} <= table.columns else {}
        for name, default in wanted.items():
            if name in tracks:
                columns[name] = tracks[name]
            elif name not in columns and default is not None:
                columns[name] = np.full(count, default)
        processes = self.processes
        columns["process"] = map_unique(columns.pop("pid"), lambda pid: self.process(processes.get(pid, pid)))
        return columns

    def _tracks(self, table: ExportTable) -> IntColumns:
        tracks = self.table("track")
        if tracks is None or "track_id" not in table.columns:
            return {}
        tables = tracks.integers({"id": REQUIRED, **dict.fromkeys(_TRACK, NO_ID)})
        track = table.read_bulk({"track_id": NO_ID}).integers["track_id"]
        return {name: look_up_values(track, tables["id"], tables[name], NO_ID) for name in _TRACK}

    def _column_of_events(self, ids: Ints, events: IntColumns, name: str) -> Ints:
        return look_up_values(ids, events["id"], events[name], NO_ID)

    def _operations(self, columns: IntColumns, events: IntColumns, agent: Ints, name: Ints) -> IntColumns:
        agents = self.agents
        return {
            "start": columns["start"],
            "end": columns["end"],
            "process": columns["process"],
            "device": map_unique(agent, lambda key: agents[key].device if key in agents else max(key, 0)),
            "queue": columns["queue_id"],
            "stream": columns["stream_id"],
            "name": name,
            "stack": self._column_of_events(columns["event_id"], events, "stack_id"),
        }

    def _dispatches(
        self, table: ExportTable, events: IntColumns, strings: StringTable, lost: list[Loss]
    ) -> tuple[IntColumns, tuple[Ints, Ints]]:
        """Return the dispatches, and the ids of the events of their passes with the row of each.

        Kernel replay repeats a dispatch for each group of counters, under the same number.
        """
        columns = self._read(table, _DISPATCH, Subject.KERNEL, lost)
        number = columns.pop("dispatch_id")
        alone = np.where(number < 0, -1 - np.arange(len(number)), number)
        _, first, row = np.unique(
            numbered_rows(columns["process"], alone)[1], return_index=True, return_inverse=True
        )
        passes = columns["event_id"], np.argsort(np.argsort(first))[row]
        columns = {name: values[np.sort(first)] for name, values in columns.items()}
        symbols = self.rows("info_kernel_symbol", "id", "display_name", "kernel_name")
        names = {number: str(label or name) for number, label, name in symbols if label or name}
        numbers = {
            key: strings.add(names[key]) for key in distinct(columns["kernel_id"]).tolist() if key in names
        }
        shared = self._operations(
            columns, events, columns["agent_id"], translate(columns["kernel_id"].copy(), numbers)
        )
        sizes = {name: columns[name] for name in (*WORKGROUP, *GRID)}
        return shared | sizes, passes

    def _counters(self, dispatches: IntColumns, passes: tuple[Ints, Ints], strings: StringTable) -> Columns:
        """Return the counters of dispatches; samples of counters over time belong to none."""
        table = self.table("pmc_event")
        if table is None or not {"event_id", "pmc_id", "value"} <= table.columns:
            return Records().counters
        sampled = " AND sample_id IS NULL" if "sample_id" in table.columns else ""
        numbers = "typeof(event_id) = 'integer' AND typeof(pmc_id) = 'integer'"
        rows = [*table.rows(["event_id", "pmc_id", "sum(value)"], f"WHERE {numbers}{sampled} GROUP BY 1, 2")]
        row, match = matches(np.array([event for event, _, _ in rows], np.int64), passes[0])
        # A counter that several passes have counts once.
        number = np.array([counter for _, counter, _ in rows], np.int64)
        _, first = np.unique(numbered_rows(passes[1][match], number[row])[1], return_index=True)
        row, place = row[first], passes[1][match[first]]
        names = {number: str(name) for number, name in self.rows("info_pmc", "id", "name") if name}
        counter = strings.add_all(names.get(number, str(number)) for _, number, _ in rows)
        fields = {key: dispatches[key][place] for key in ("start", "end", "process", "device", "name")}
        value = np.array([np.nan if value is None else float(value) for _, _, value in rows])
        return {**fields, "counter": counter[row], "value": value[row]}

    def _copies(
        self, table: ExportTable, events: IntColumns, strings: StringTable, lost: list[Loss]
    ) -> IntColumns:
        columns = self._read(table, _COPY, Subject.COPY, lost)
        used, row = numbered(columns["name_id"])
        names = copy_directions((self.texts.get(text_id, "") for text_id in used.tolist()), row, strings)
        destination, origin = columns["dst_agent_id"], columns["src_agent_id"]
        gpus = np.array([agent.number for agent in self.agents.values() if agent.gpu], np.int64)
        agent = gpu_of_copies(destination, origin, np.isin(destination, gpus), np.isin(origin, gpus))
        operations = self._operations(columns, events, agent, names["name"])
        return operations | {"bytes": columns["size"], "host_memory": names["host_memory"]}

    def _calls(
        self, table: ExportTable, events: IntColumns, strings: StringTable, lost: list[Loss]
    ) -> IntColumns:
        columns = self._read(table, _REGION, Subject.CALL, lost)
        used, row = numbered(self._column_of_events(columns["event_id"], events, "category_id"))
        names = {number: str(name) for number, name in self.rows("info_category", "id", "name")} or self.texts
        categories = [names.get(key) for key in used.tolist()]
        kinds = np.array([int(call_category(text)) for text in categories], np.int64)
        kind = kinds[row]
        numbers = {key: strings.add(self.texts.get(key)) for key in distinct(columns["name_id"]).tolist()}
        name = translate(columns["name_id"].copy(), numbers)
        marked = np.flatnonzero(kind == CallCategory.MARKER)
        messages = self._messages(used[kinds == CallCategory.MARKER], strings)
        texts = look_up_values(columns["event_id"][marked], *messages, NO_NAME)
        name[marked] = np.where(texts == NO_NAME, name[marked], texts)
        for number, text in enumerate(categories):
            if kinds[number] == CallCategory.UNKNOWN:
                count = int(np.count_nonzero(row == number))
                lost.append(Loss(LossKind.CATEGORY, Subject.EVENT, count, None, text or "unknown"))
        listed = self.rows("info_thread", "id", "tid")
        threads = {number: tid for number, tid in listed if _all_integers(number, tid)}
        return {
            **{key: columns[key] for key in ("start", "end", "process")},
            "thread": map_unique(columns["tid"], lambda tid: threads.get(tid, tid)),
            "name": name,
            "stack": self._column_of_events(columns["event_id"], events, "stack_id"),
            "kind": kind,
            "style": map_unique(columns["name_id"], lambda key: style_of(self.texts.get(key, ""))),
        }

    def _messages(self, categories: Ints, strings: StringTable) -> tuple[Ints, Ints]:
        table = self.table("event")
        if table is None or not len(categories) or "extdata" not in table.columns:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        listed = ", ".join(str(name) for name in categories.tolist())
        rows = table.rows(("id", "extdata"), f"WHERE category_id IN ({listed})")
        messages: dict[object, str | None] = {}
        ids, texts = [], []
        for number, written in rows:
            if written not in messages:
                message = decode_value(written, _Message)
                messages[written] = message.message if message and message.message else None
            if messages[written] is not None and _all_integers(number):
                ids.append(number)
                texts.append(messages[written])
        return np.array(ids, np.int64), strings.add_all(texts)


class RocpdDatabase(msgspec.Struct, frozen=True):
    """An open database and its sets of tables."""

    export: NsysExport
    parts: tuple[DatabasePart, ...]

    def gpu_users(self) -> dict[int, dict[str, str]]:
        """Return the processes that ran kernels, each with its variables that may be kept."""
        environments = {pid: variables for part in self.parts for pid, variables in part.environment.items()}
        if len(environments) < 2:
            return environments
        used = {process for part in self.parts for process in _gpu_processes(part)}
        return {process: variables for process, variables in environments.items() if process in used}

    def metadata(self, tag: str) -> str | None:
        """Return a value of the table of metadata."""
        rows = (row for part in self.parts for row in part.rows("metadata", "tag", "value"))
        return next((str(value) for name, value in rows if name == tag and value is not None), None)


def _gpu_processes(part: DatabasePart) -> set[int]:
    """Return the processes of a set that ran kernels."""
    table = part.table("kernel_dispatch")
    if table is None:
        return set()
    if "pid" in table.columns:
        owners = table.rows(["DISTINCT pid"])
    else:
        tracks = part.table("track")
        if tracks is None:
            return set()
        owners = table.rows([f"DISTINCT (SELECT pid FROM {quoted(tracks.name)} t WHERE t.id = track_id)"])
    return {part.process(part.processes.get(pid, pid)) for (pid,) in owners if isinstance(pid, int)}


@contextmanager
def open_database(path: Path, threads: int = 2) -> Iterator[RocpdDatabase]:
    """Open a database for reading only."""
    with open_export(path, threads, _DESCRIPTION) as export:
        suffixes_of_tables = {match[2] for name in export.tables if (match := _DATA_TABLE.fullmatch(name))}
        # Without an identifier they are of all sets.
        suffixes = sorted(suffixes_of_tables - {""}) or sorted(suffixes_of_tables)
        if not suffixes and export.tables & {"HIP", "KERN", "HSA"}:
            raise DamagedInput(
                f"{path} is a database of rocprof, which rocprofv3 has replaced: record it with rocprofv3 "
                "--sys-trace."
            )
        if not suffixes:
            raise DamagedInput(
                f"{path} is an SQLite file but not a rocpd database: it has no table rocpd_kernel_dispatch."
            )
        yield RocpdDatabase(
            export, tuple(DatabasePart(export, suffix, i) for i, suffix in enumerate(suffixes))
        )


def look_up_values(keys: Ints, ids: Ints, values: Ints, otherwise: int) -> Ints:
    """Return for each key the value of the row with this id, ``otherwise`` if there is none."""
    result = np.full(len(keys), otherwise)
    row, match = matches(keys, ids)
    result[row] = values[match]
    return result


def _all_integers(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)


def decode_value(written: Any, kind: type[_DecodedT]) -> _DecodedT | None:
    """Return a value that is stored as JSON, also one compressed as a frame of LZ4; None if it is neither."""
    try:
        if isinstance(written, bytes):
            with pa.input_stream(pa.py_buffer(written), compression="lz4") as unpacked:
                written = unpacked.read(min(_MAX_JSON_BYTES, _LZ4_RATIO * len(written)) + 1)
            if len(written) > _MAX_JSON_BYTES:
                return None
        return msgspec.json.decode(written, type=kind, strict=False) if written else None
    except (msgspec.MsgspecError, UnicodeError, pa.ArrowException, OSError, TypeError):
        return None


def _rank(database: RocpdDatabase) -> int | None:
    users = database.gpu_users().values()
    ranks = {
        environment_allowlist.first_number(variables, environment_allowlist.RANKS) for variables in users
    }
    rank = ranks.pop() if len(ranks) == 1 else None
    return rank_from_name(database.export.path) if rank is None else rank


def _origin(database: RocpdDatabase) -> Origin:
    agents = [agent for part in database.parts for agent in part.agents.values()]
    gpus = gpus_of(agents)
    environments = [variables.items() for variables in database.gpu_users().values()]
    variables = dict(set.intersection(*map(set, environments))) if environments else {}
    node = [
        row for part in database.parts for row in part.rows("info_node", "hostname", "system_name", "release")
    ]
    system = " ".join(str(part) for part in node[0][1:] if part) if node else ""
    schema = database.metadata("schema_version")
    return Origin(
        path=database.export.path,
        kind=ROCPD.name,
        rank=_rank(database),
        world_size=environment_allowlist.first_number(variables, environment_allowlist.SIZES),
        host=str(node[0][0]) if node and node[0][0] else None,
        gpus=gpus,
        facts=(
            *(Fact("environment", name, value) for name, value in sorted(variables.items())),
            *((Fact("version", "rocpd schema", schema),) if schema else ()),
            *((Fact("machine", "operating system", system),) if system else ()),
            *architectures(agents),
        ),
    )
