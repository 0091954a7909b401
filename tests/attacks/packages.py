"""Packages of an attacker: a valid one in a few bytes, and what it becomes by edits."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.results.across.listing import ListedRun
from hpcprof.results.across.package import PackageDescription

RUN = "pushed-1"
Members = Iterable[tuple[str, bytes]]


def described(**changes: Any) -> bytes:
    """Return ``run.json``, with other fields."""
    made = json.loads(msgspec.json.encode(PackageDescription(ListedRun(run=RUN, state="completed"))))
    return json.dumps(made | {"listed": made["listed"] | changes}).encode()


def results(**tables: Any) -> bytes:
    """Return ``results.json`` of a run without profiles, with more tables."""
    return json.dumps({"runs": {"id": [RUN], "path": [""]}} | tables).encode()


def profiles(ranks: Iterable[Any], **changes: Any) -> dict[str, Any]:
    """Return the rows of profiles of ranks."""
    numbers = list(ranks)
    columns: dict[str, Any] = {
        name: [value] * len(numbers)
        for name, value in {
            "run_id": RUN,
            "file": "rank.sqlite",
            "sha256": sha256(b"").hexdigest(),
            "bytes": 1,
            "kind": "nsys",
            "devices": "",
            "analysis_version": 1,
        }.items()
    }
    return columns | {"rank": numbers} | changes


def archive(members: Members) -> bytes:
    """Return a package of these files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as packed:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return made.getvalue()


def package(run: bytes | None = None, rows: bytes | None = None, more: Members = ()) -> bytes:
    """Return a package of a run with its rows and more files."""
    first = [("run.json", described() if run is None else run)]
    return archive([*first, ("results.json", results() if rows is None else rows), *more])


def write(folder: Path, content: bytes) -> Path:
    """Write a package into a folder."""
    path = folder / f"{sha256(content).hexdigest()}.tar.gz"
    path.write_bytes(content)
    return path
