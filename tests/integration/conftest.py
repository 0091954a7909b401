"""Fixtures of the tests that drive several parts together."""

from __future__ import annotations

import contextlib
import functools
import lzma
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from tests.integration.chromium import browser as browser
from tests.integration.chromium import chromium as chromium
from tests.integration.chromium import web_packages as web_packages
from tests.integration.postgresql import Unavailable, server
from tests.submitted_run import make_run as make_run

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Database:
    """An empty results database."""

    url: str

    def dump(self) -> list[str]:
        """Return everything that it holds, in an order that does not depend on when it was written."""
        engine = create_engine(self.url if "://" in self.url else f"sqlite:///{self.url}")
        with engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            rows = [(t, *row) for t in tables for row in connection.execute(text(f'SELECT * FROM "{t}"'))]
        engine.dispose()
        return sorted(map(repr, rows))

    def execute(self, statement: str) -> None:
        """Change it behind hpcprof's back."""
        engine = create_engine(self.url if "://" in self.url else f"sqlite:///{self.url}")
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Path]:
    """A PostgreSQL server; without it the tests are skipped, but not in CI."""
    try:
        with server() as folder:
            yield folder
    except Unavailable as missing:
        assert not os.environ.get("CI"), f"CI installs PostgreSQL: {missing}"
        pytest.skip(str(missing))


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Database]:
    """Make empty databases: the same test runs on both kinds."""
    if request.param == "SQLite":
        return lambda: Database(str(tmp_path / f"{secrets.token_hex(4)}.db"))
    folder: Path = request.getfixturevalue("postgresql")

    def make() -> Database:
        name = f"t{secrets.token_hex(4)}"
        url = "postgresql+psycopg://hpcprof@/{}?host={}"
        engine = create_engine(url.format("postgres", folder), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return Database(url.format(name, folder))

    return make


on_sqlite = pytest.mark.parametrize("new_database", ["SQLite"], indirect=True)
"""For a test of what is the same on both, as the tests of the store prove."""


@pytest.fixture
def database(new_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch) -> Database:
    """An empty database, which every hpcprof of the test uses."""
    made = new_database()
    monkeypatch.setenv("HPCPROF_DB", made.url)
    return made


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Two ranks' real exports of Nsight Systems, in a folder that hpcprof did not make."""
    return unpack(tmp_path / "profiles of another tool")


def unpack(folder: Path) -> Path:
    """Put the exports of two ranks into a new folder."""
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.sqlite").write_bytes(_unpacked(rank))
    return folder


def unpack_mpi(folder: Path) -> None:
    """Put the exports of four ranks that call MPI into a new folder; a step ends with a collective."""
    folder.mkdir()
    for rank in range(4):
        path = folder / f"rank{rank}.sqlite"
        path.write_bytes(lzma.decompress((DATA / f"mpi_stencil_slow_rank{rank}.sqlite.xz").read_bytes()))
        with contextlib.closing(sqlite3.connect(path)) as export, export:
            export.execute(
                """INSERT INTO NVTX_EVENTS (start, "end", eventType, text, globalTid, domainId)
                SELECT * FROM (SELECT lag("end") OVER (ORDER BY start) AS begin, "end", 59, 'iteration',
                globalTid, 0 FROM MPI_COLLECTIVES_EVENTS) WHERE begin"""
            )


@functools.cache
def _unpacked(rank: int) -> bytes:
    return lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes())
