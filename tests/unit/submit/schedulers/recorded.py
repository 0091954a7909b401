"""The recorded outputs of schedulers: as (exit code, stdout, stderr), or as text."""

from __future__ import annotations

import re
from pathlib import Path

DATA = Path(__file__).parents[3] / "data" / "schedulers"
MACHINES = DATA.with_name("sites")


def recorded_machine(name: str) -> str:
    """Read what a command printed of a machine's queues or nodes."""
    return (MACHINES / name).read_text(encoding="utf-8")


def recorded(name: str) -> tuple[int, str, str]:
    """Read a text file with its command, what it printed, and its exit code."""
    text = (DATA / name).read_text()
    body = text.partition("\n")[2] if text.startswith("$ ") else text
    out, _, rest = body.partition("--- stderr\n")
    error, _, code = rest.partition("--- rc=")
    return int(code), out, error


def recorded_json(name: str) -> tuple[int, str, str]:
    """Read a file of JSON, with its error output and exit code where they were recorded."""
    path = DATA / name
    beside = path.with_name(f"{path.name}.err")
    error = beside.read_text() if beside.exists() else ""
    code = re.search(r"rc[= ](\d+)", error)
    return int(code[1]) if code else 0, path.read_text(), error
