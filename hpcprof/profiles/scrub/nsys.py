"""Copies an nsys SQLite export, with only the tables and columns that are listed here.

The copy is a new database, so it contains nothing of the original's free pages. From listed tables, all
numbers are copied, and texts only of the columns named here; from StringIds, only the names of kernels, API
functions and ranges. Numbers that refer to other texts refer to nothing in the copy.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from hpcprof.common.errors import DamagedInput
from hpcprof.common.paths import read_only_uri
from hpcprof.profiles.readers import environment_allowlist
from hpcprof.profiles.readers.nsys.export import PROCESS_SHIFT, NsysExport, open_export
from hpcprof.profiles.readers.nsys.nccl_calls import COMMUNICATOR, MESSAGE, NCCL_DOMAIN, RANKS
from hpcprof.profiles.readers.nsys.nvtx_ranges import (
    DOMAIN_CREATE,
    NAMED_EVENTS,
    PAYLOAD_HEADER,
    PayloadLayout,
    SchemaId,
    layouts,
)
from hpcprof.profiles.readers.nsys.origin import is_option
from hpcprof.profiles.scrub.names import Names, hosts_and_users, names_in_environment

Pairs = list[tuple[str, str]]

_VERSION = re.compile(r"_V\d+$")
_TABLES = re.compile(
    r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|NVTX_PAYLOAD_\w+|MPI_\w+|OSRT_API|ENUM_\w+|ANALYSIS_DETAILS"
    r"|PROFILER_OVERHEAD|GPU_METRICS|CUDA_GPU_MEMORY_USAGE_EVENTS|CUDA_UM_\w+"
    r"|TARGET_INFO_(?:GPU|GPU_METRICS|SESSION_START_TIME|CUDA_\w+)",
    re.ASCII,
)
# Columns of ids of names.
_NAME_IDS = ("demangledName", "shortName", "mangledName", "nameId", "textId")
# Columns of text that are copied, with paths and hosts replaced.
_TEXTS = {"TARGET_INFO_GPU": ("name", "chipName", "busLocation"), "TARGET_INFO_GPU_METRICS": ("metricName",)}
_ENUM_TEXTS = ("name", "label")
_PAYLOAD_COLUMNS = {"domainId", "globalTid", "eventType", "text"}

_PLAIN_TEXT = re.compile(r"[\w .,:()@+-]{0,80}", re.ASCII)
_EXPORT_ROWS = re.compile(r"EXPORT_(?:PRODUCT_\w+|SCHEMA_VERSION\w*|PLATFORM|ARCH)", re.ASCII)
_SYSTEM_ROWS = (
    *("NvDriverVersion", "CudaDriverVersion", "OsDescription", "HardwarePlatform"),
    *("CpuArchitecture", "CpuDescription", "CpuCores"),
)

_PAIR_TABLES = ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV")
_TYPES = ("INTEGER", "REAL", "TEXT")


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy an export to ``target``, which does not exist yet, and return the tables that are left out."""
    with open_export(path) as export:
        pairs = {table: _pairs(export, table) for table in _PAIR_TABLES}
        payloads = NcclPayloads(layouts(export))
    names.know(_hosts_and_users(pairs))
    with database_copy(path, target, names) as copy:
        copy.create_function("nccl_payload", 2, payloads.cleaned, deterministic=True)
        copy.create_function("nccl_entry", 1, entry_name, deterministic=True)
        left_out = _copy_tables(copy)
        for table, rows in pairs.items():
            copy.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            copy.executemany(f"INSERT INTO {table} VALUES (?, ?)", _safe_pairs(table, rows))
    return left_out


@contextmanager
def database_copy(path: Path, target: Path, names: Names) -> Iterator[sqlite3.Connection]:
    """Open a new database that is filled in the block, with ``path`` as its schema ``source``.

    The function ``cleaned`` of SQL replaces paths and hosts in a text. It takes bytes, since text of profiles
    may not be UTF-8.
    """
    try:
        with closing(sqlite3.connect(target)) as copy:
            # An incomplete copy is deleted, so no journal is needed.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            copy.execute("ATTACH ? AS source", (read_only_uri(path),))
            copy.create_function("cleaned", 1, lambda text: _clean_value(text, names), deterministic=True)
            yield copy
            copy.commit()
    except sqlite3.Error as error:
        raise DamagedInput(f"{path} cannot be copied: {error}.") from None


def _clean_value(text: bytes | None, names: Names) -> str | None:
    return None if text is None else names.cleaned(text.decode("utf-8", "replace"))


def _copy_tables(copy: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM source.sqlite_master WHERE type = 'table' ORDER BY name"
    left_out, strings = [], []
    copy.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for (table,) in copy.execute(query).fetchall():
        base = _VERSION.sub("", table)
        if base == "StringIds":
            strings.append(table)
        elif _TABLES.fullmatch(base):
            columns = _create_table(copy, table)
            cells = ", ".join(_column_expression(base, column, columns) for column in columns)
            copy.execute(f'INSERT INTO main."{table}" SELECT {cells} FROM source."{table}"')
            for column in columns.keys() & _NAME_IDS:
                copy.execute(
                    f'INSERT OR IGNORE INTO used SELECT "{column}" FROM main."{table}" '
                    f"WHERE typeof(\"{column}\") = 'integer'"
                )
        elif table not in _PAIR_TABLES:
            left_out.append(table)
    for table in strings:
        if {"id", "value"} <= _create_table(copy, table).keys():
            copy.execute(
                f'INSERT INTO main."{table}" (id, value) SELECT id, cleaned(CAST(value AS BLOB)) '
                f'FROM source."{table}" WHERE id IN (SELECT id FROM used)'
            )
    return left_out


def _create_table(copy: sqlite3.Connection, table: str) -> dict[str, str]:
    """Create a table with the columns of the original, and return their types by name.

    ``table`` and the columns are words, which need no quoting beyond the quotation marks.
    """
    rows = copy.execute("SELECT name, type, pk FROM pragma_table_info(?, 'source')", (table,)).fetchall()
    columns = {name: kind if kind in _TYPES else "" for name, kind, _ in rows if re.fullmatch(r"\w+", name)}
    # The readers look strings up by their ids.
    keys = [name for name, kind, place in rows if place and kind == "INTEGER"]
    one_key = keys[0] if sum(bool(place) for _, _, place in rows) == len(keys) == 1 else None
    definitions = (f'"{n}" {kind}{" PRIMARY KEY" if n == one_key else ""}' for n, kind in columns.items())
    copy.execute(f'CREATE TABLE main."{table}" ({", ".join(definitions)})')
    return columns


def _column_expression(table: str, column: str, columns: Mapping[str, str]) -> str:
    """Return the SQL expression that copies a column; NULL where its text or blob is left out."""
    text, number = cleaned_text(column), number_only(column)
    if table == "NVTX_EVENTS" and column in ("text", "textId"):
        is_named = (
            f"eventType IN ({', '.join(map(str, NAMED_EVENTS))})" if "eventType" in columns else "FALSE"
        )
        return f"CASE WHEN {is_named} THEN {text if column == 'text' else number} END"
    if table == "NVTX_EVENTS" and column == "binaryData" and columns.keys() >= _PAYLOAD_COLUMNS:
        # A domain's id is unique within a process.
        domain = f"domainId, globalTid >> {PROCESS_SHIFT}"
        created = f"eventType = {DOMAIN_CREATE} AND text = '{NCCL_DOMAIN}'"
        nccl = f"SELECT {domain} FROM source.NVTX_EVENTS WHERE {created}"
        return (
            f"CASE WHEN ({domain}) IN ({nccl}) AND typeof(\"{column}\") = 'blob' "
            f'THEN nccl_payload(CAST(domainId AS INTEGER), "{column}") END'
        )
    if table == "NVTX_PAYLOAD_SCHEMA_ENTRIES" and column == "name":
        return "nccl_entry(CAST(name AS BLOB))"
    if table == "MPI_COMMUNICATORS" and column == "members":
        return f'CASE WHEN "{column}" NOT GLOB \'*[^0-9, ]*\' THEN "{column}" END'
    copied_columns = _ENUM_TEXTS if table.startswith("ENUM_") else _TEXTS.get(table, ())
    return text_or_number(column) if column in copied_columns else number


def cleaned_text(column: str) -> str:
    """Return the SQL expression of a column's text without paths and hosts, in a `database_copy`."""
    return f'cleaned(CAST("{column}" AS BLOB))'


def number_only(column: str) -> str:
    """Return the SQL expression of a column's numbers, and NULL for all else."""
    return f"CASE WHEN typeof(\"{column}\") IN ('integer', 'real') THEN \"{column}\" END"


def text_or_number(column: str) -> str:
    """Return the SQL expression of a column's numbers and cleaned texts, and NULL for all else."""
    return (
        f"CASE WHEN typeof(\"{column}\") = 'text' THEN {cleaned_text(column)} ELSE {number_only(column)} END"
    )


def _pairs(export: NsysExport, table: str) -> Pairs:
    events = export.table(table)
    if events is None or not {"name", "value"} <= events.columns:
        return []
    rows = events.rows(("name", "value"))
    return [(str(name), str(value)) for name, value in rows if value is not None]


def _safe_pairs(table: str, pairs: Pairs) -> Pairs:
    safe_pairs: Pairs = []
    for name, value in pairs:
        if table == "META_DATA_CAPTURE" and name.endswith("ENVIRONMENT_VARIABLE"):
            safe_pairs += [("PROCESS_0:ENVIRONMENT_VARIABLE", item) for item in _variables([value])]
        elif name == "DeviceEnvironment":
            safe_pairs.append((name, ";".join(_variables(value.split(";")))))
        elif (
            is_option(name, value)
            if table == "META_DATA_CAPTURE"
            else (name in _SYSTEM_ROWS or _EXPORT_ROWS.fullmatch(name)) and _PLAIN_TEXT.fullmatch(value)
        ):
            safe_pairs.append((name, value))
    return safe_pairs


def _variables(items: Iterable[str]) -> list[str]:
    variables = (environment_allowlist.split(item) for item in items)
    return [f"{name}={value}" for name, value in variables if environment_allowlist.allowed(name, value)]


def _hosts_and_users(pairs: Mapping[str, Pairs]) -> dict[str, str]:
    named = {name: value for rows in pairs.values() for name, value in rows}
    variables = [value for name, value in pairs["META_DATA_CAPTURE"] if name.endswith("ENVIRONMENT_VARIABLE")]
    variables += named.get("DeviceEnvironment", "").split(";")
    parts = dict(environment_allowlist.split(item) for item in variables)
    hosts = [named.get(n, "") for n in ("Hostname", "EXPORT_HOST", "DEVICE_DISPLAY_NAME")]
    users = [value for name, value in named.items() if name.endswith(("USER_NAME", "EXPORT_USER"))]
    more_hosts, more_users = names_in_environment(parts)
    return hosts_and_users(hosts + more_hosts, users + more_users)


_COUNTS = (
    *MESSAGE,
    *RANKS,
    "Rank",
    "Peer",
    "Peer rank",
    "Root",
    "Root rank",
    "CUDA device",
    "Reduction operation",
)
_MAX_COUNT = 1 << 48
"""No message, and no number of ranks, is larger; a text of seven letters is."""

_MAX_PAYLOAD_BYTES = 256


def entry_name(name: object) -> str | None:
    """Return the name of an entry of a schema, or its bytes in UTF-8, if NCCL uses it, else None."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return text if isinstance(text, str) and text in (*COMMUNICATOR, *_COUNTS) else None


class NcclPayloads:
    """The payloads of NCCL's ranges in an export, reduced to the numbers that hpcprof reads.

    A payload may hold any bytes, whatever its schema says. So only fields of known names are copied, into
    zeros, and only from a blob that holds one payload.
    """

    def __init__(self, layouts: Mapping[SchemaId, PayloadLayout]) -> None:
        self._layouts = layouts

    def cleaned(self, domain: int, blob: object) -> bytes | None:
        """Return a payload with nothing but known numbers; None for a payload that NCCL does not write."""
        if not isinstance(blob, bytes) or len(blob) < PAYLOAD_HEADER.itemsize:
            return None
        header = np.frombuffer(blob, PAYLOAD_HEADER, 1)[0]
        count, schema, size, offset = (int(value) for value in header.tolist())
        layout = self._layouts.get((domain, schema))
        fits = offset >= PAYLOAD_HEADER.itemsize and offset + size == len(blob) and size <= _MAX_PAYLOAD_BYTES
        if count != 1 or layout is None or not fits:
            return None
        copy = bytearray(blob[: PAYLOAD_HEADER.itemsize]).ljust(len(blob), b"\0")
        for name, field in layout.items():
            begin = offset + field.offset
            end = begin + field.kind.itemsize
            value = blob[begin:end]
            if not entry_name(name) or end > len(blob):
                continue
            if name in COMMUNICATOR or abs(int(np.frombuffer(value, field.kind)[0])) < _MAX_COUNT:
                copy[begin:end] = value
        return bytes(copy)
