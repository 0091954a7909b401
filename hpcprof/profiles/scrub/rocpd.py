"""Copies a rocpd database, with only the tables and columns that are listed here.

The copy is a new database without views. From listed tables, all numbers are copied, and texts only of the
columns named here; command lines are left out, and of the environment all but the listed variables. The names
of a set's tables end with its number, since the identifier that they have tells the machine.
"""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from hpcprof.profiles.readers import environment_allowlist
from hpcprof.profiles.readers.rocprof.database import decode_value, open_database
from hpcprof.profiles.readers.rocprof.records import KEPT_DETAILS
from hpcprof.profiles.scrub.names import Names, hosts_and_users, names_in_environment
from hpcprof.profiles.scrub.nsys import database_copy, number_only, text_or_number

_TEXTS: dict[str, tuple[str, ...]] = {
    "metadata": (),
    "string": (),
    "info_node": ("system_name", "release"),
    "info_process": (),
    "info_thread": (),
    "info_agent": ("type", "name", "product_name", "model_name", "vendor_name", "generic_name"),
    "info_queue": ("name",),
    "info_stream": ("name",),
    "info_category": ("name",),
    "info_kernel_symbol": ("kernel_name", "display_name"),
    "info_pmc": ("name", "symbol", "units", "target_arch", "value_type", "component"),
    "track": (),
    "event": (),
    "region": (),
    "kernel_dispatch": (),
    "memory_copy": (),
    "memory_allocate": ("type", "level"),
    "pmc_event": (),
    "graph_launch": (),
    "hip_event": ("type",),
}
"""The tables that are copied, each with its columns of text that are."""

_METADATA = ("schema_version",)
_NUMBERS_OF_TEXTS = (("region", "name_id"), ("memory_copy", "name_id"), ("event", "category_id"))
_COLUMN = re.compile(r"\w+", re.ASCII)


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy a database to ``target``, which does not exist yet, and return the tables that are left out."""
    with open_database(path) as database:
        for part in database.parts:
            hosts, users = names_in_environment(part.variables)
            hosts += [str(name) for (name,) in part.rows("info_node", "hostname") if name]
            names.know(hosts_and_users(hosts, users))
        with database_copy(path, target, names) as copy:
            copy.create_function("kept", 2, lambda kind, text: _safe_text(kind, text, names))
            left_out: list[str] = []
            for part in database.parts:
                left_out += _copy_set(copy, part.suffix, f"_{part.number}")
        return left_out


def _safe_text(kind: str, written: bytes | str | None, names: Names) -> str:
    fields = decode_value(written, dict[str, Any]) or {}
    if kind == "environment":
        allowed = environment_allowlist.allowed
        fields = {name: value for name, value in fields.items() if allowed(name, str(value))}
    elif kind == "event":
        message = fields.get("message")
        fields = {"message": names.cleaned(message)} if isinstance(message, str) else {}
    else:
        fields = {name: value for name, value in fields.items() if name in KEPT_DETAILS}
    return json.dumps(fields)


def _copy_set(copy: sqlite3.Connection, suffix: str, renamed: str) -> list[str]:
    query = "SELECT name FROM source.sqlite_master WHERE type = 'table' AND name LIKE 'rocpd/_%' ESCAPE '/'"
    left_out = []
    for (table,) in copy.execute(f"{query} ORDER BY name").fetchall():
        if not table.endswith(suffix):
            continue
        base = table[len("rocpd_") : len(table) - len(suffix)]
        if base not in _TEXTS:
            left_out.append(f"rocpd_{base}")
            continue
        rows = copy.execute("SELECT name, type, pk FROM pragma_table_info(?, 'source')", (table,)).fetchall()
        columns = [(name, key) for name, _, key in rows if _COLUMN.fullmatch(name)]
        definitions = ", ".join(f'"{name}"{" INTEGER PRIMARY KEY" if key else ""}' for name, key in columns)
        copy.execute(f'CREATE TABLE main."rocpd_{base}{renamed}" ({definitions})')
        cells = ", ".join(_cell(base, name) for name, _ in columns)
        source = f'source."{table}" {_rows(base, suffix)}'
        copy.execute(f'INSERT INTO main."rocpd_{base}{renamed}" SELECT {cells} FROM {source}')
    return left_out


def _cell(table: str, column: str) -> str:
    if (table, column) in (("info_process", "environment"), ("info_agent", "extdata"), ("event", "extdata")):
        kind = "environment" if column == "environment" else table.removeprefix("info_")
        return f"kept('{kind}', \"{column}\")"
    if column in _TEXTS[table] or (table in ("string", "metadata") and column != "guid"):
        return text_or_number(column)
    return number_only(column)


def _rows(table: str, suffix: str) -> str:
    if table == "metadata":
        return f"WHERE tag IN ({', '.join(map(repr, _METADATA))})"
    if table == "string":
        used = (f'SELECT "{column}" FROM source."rocpd_{name}{suffix}"' for name, column in _NUMBERS_OF_TEXTS)
        return f"WHERE id IN ({' UNION '.join(used)})"
    return ""
