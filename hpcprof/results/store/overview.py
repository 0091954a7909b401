"""An overview of the runs of a store in one query; for SQLite it does not load SQLAlchemy."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from hpcprof.common.errors import StoreError
from hpcprof.common.paths import read_only_uri
from hpcprof.runs.config import default_database

_TIMEOUT_SECONDS = 4.0
"""Maximum time in seconds that a list waits for a locked database or a server that does not answer."""

_RUNS_SQL = """\
SELECT runs.id, runs.path, runs.site, runs.workload, runs.ranks,
    (SELECT count(*) FROM profiles WHERE profiles.run_id = runs.id),
    (SELECT min(kind) FROM profiles WHERE profiles.run_id = runs.id),
    (SELECT min(start_utc_ns) FROM profiles WHERE profiles.run_id = runs.id AND kind <> 'torch'),
    {elapsed},
    (SELECT min(p50_ns) FROM analysis_steps_summary WHERE analysis_steps_summary.run_id = runs.id)
FROM runs ORDER BY runs.id"""

_KINDS = "analysis_step_kinds"
_ELAPSED_SQL = f"(SELECT min(elapsed_ns) FROM {_KINDS} WHERE {_KINDS}.run_id = runs.id AND kind = 0)"

_PUSHED_SQL = "SELECT run_id, listed, tags FROM pushed"

_BASELINES_SQL = "SELECT run_id, name FROM baselines ORDER BY run_id, name"


class StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """A collected run: its place, the number of its profiles, their kind and start, and its step."""

    id: str
    path: str
    site: str | None
    workload: str | None
    ranks: int | None
    profiles: int
    kind: str | None
    start_utc_ns: int | None
    step_ns: float | None
    """The elapsed time per step."""
    step_p50_ns: float | None


def stored_runs(db: str | None, runs_dir: Path) -> list[StoredRun]:
    """Return the collected runs, by id; none if there is no database. Nothing is created.

    Raises UsageError if ``db`` cannot be used here, and StoreError if the database cannot be read, or does
    not have these columns.
    """
    return [msgspec.convert(tuple(row), StoredRun) for row in _query_rows(_RUNS_SQL, "runs", db, runs_dir)]


def pushed_runs(db: str | None, runs_dir: Path) -> dict[str, tuple[str, str]]:
    """Return, for each run that was pushed to a database, its line of the list in JSON and its tags.

    Parameters and errors are those of `stored_runs`. A database of an earlier version has none.
    """
    return {
        str(row[0]): (str(row[1]), str(row[2])) for row in _query_rows(_PUSHED_SQL, "pushed", db, runs_dir)
    }


def baselined_runs(db: str | None, runs_dir: Path) -> dict[str, list[str]]:
    """Return the runs that are in a baseline, by id, with the names of the baselines.

    Parameters and errors are those of `stored_runs`. A database of an earlier version has no baselines.
    """
    names: dict[str, list[str]] = {}
    for run_id, name in _query_rows(_BASELINES_SQL, "baselines", db, runs_dir):
        names.setdefault(str(run_id), []).append(str(name))
    return names


def _query_rows(query: str, table: str, db: str | None, runs_dir: Path) -> Sequence[Sequence[object]]:
    db = db or default_database()
    if db and "://" in db:
        return _from_server(db, query.format(elapsed=_ELAPSED_SQL))
    return _from_file(Path(db) if db else runs_dir / "hpcprof.db", query, table)


def _from_file(path: Path, query: str, table: str) -> Sequence[Sequence[object]]:
    if not path.is_file():
        return []
    try:
        with closing(sqlite3.connect(read_only_uri(path), uri=True, timeout=_TIMEOUT_SECONDS)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if not {"hpcprof_schema", table} <= tables:
                return []
            # hpcprof 0.2 had no kinds of steps.
            filled = query.format(elapsed=_ELAPSED_SQL if _KINDS in tables else "NULL")
            return connection.execute(filled).fetchall()
    except sqlite3.Error as error:
        # A missing table or column: it is of another version of hpcprof.
        remedy = "; give another --db, or move it away and collect again" if "no such" in str(error) else ""
        raise StoreError(f"cannot read the results database {path}: {error}{remedy}.") from None


def _from_server(url: str, query: str) -> Sequence[Sequence[object]]:
    # Imported here: loading SQLAlchemy takes longer than the rest of a list.
    from sqlalchemy import text

    from hpcprof.results.store.database import Database, store_url

    place = store_url(url, Path())
    if place.get_backend_name() == "postgresql":
        place = place.update_query_dict({"connect_timeout": f"{_TIMEOUT_SECONDS:.0f}", **place.query})
    database = Database(place)
    if not database.exists():
        return []
    with database.reading() as connection:
        return connection.execute(text(query)).all()
