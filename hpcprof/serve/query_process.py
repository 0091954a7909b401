"""The process that executes one query of the application.

A query is a program of its reader. It runs with limits of its own on memory, CPU time and files, and can be
killed, without harm to the pages of others.
"""

import re
import resource
import signal
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError
from hpcprof.results.ask.query import query
from hpcprof.results.ask.tables import incomplete_tables
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run, has_manifest, open_run

MEMORY_BYTES = 4 << 30
_DUCKDB_MEMORY = "1GiB"
_FILE_BYTES = 4 << 30
_NO_TABLE = re.compile(r'(?:no such table: |relation ")(\w+)')  # SQLite's words, and PostgreSQL's


class AskedRun(msgspec.Struct, frozen=True):
    """A run whose events are asked; ``spare`` has those it lacks, and ``missing`` why it has not, by rank."""

    run: str
    path: str
    spare: str
    missing: dict[int, str]


class Question(msgspec.Struct, frozen=True):
    """A query and its limits. Without ``runs`` it asks the results database."""

    sql: str
    db: str | None
    runs_dir: str
    runs: list[AskedRun] | None
    seconds: int
    most_rows: int
    most_bytes: int


class Reply(msgspec.Struct, frozen=True):
    """The rows of a query, or one sentence on what is wrong with it."""

    columns: list[str] = []
    rows: list[Any] = []
    truncated: bool = False
    notes: list[str] = []
    error: str = ""


def answer(question: Question) -> Reply:
    """Return the answer to a query."""
    try:
        result = _results(question) if question.runs is None else _events(question, question.runs)
    except HpcprofError as error:
        return Reply(error=_of_events(str(error)) if question.runs is None else str(error))
    except UnicodeEncodeError:
        return Reply(error="the SQL is not valid UTF-8.")
    except MemoryError:
        return Reply(error="the query needs more memory than the server gives it.")
    rows = result.rows[: question.most_rows]
    while len(msgspec.json.encode(rows)) > question.most_bytes:
        rows = rows[: len(rows) // 2]
    return Reply(result.columns, rows, len(rows) < len(result.rows), result.notes)


def limit(seconds: int) -> None:
    """Limit what this process may take."""
    # The asking process ends this one after this time, unless it has ended itself.
    signal.alarm(seconds)
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _results(question: Question) -> Reply:
    store = open_store(question.db, Path(question.runs_dir), read_only=True)
    answer = query(store, question.sql, question.most_rows + 1, question.seconds)
    return Reply(answer.columns, answer.rows, notes=incomplete_tables(question.sql, store))


def _of_events(error: str) -> str:
    from hpcprof.results.collect.kept_events import event_schemas

    missing = _NO_TABLE.search(error)
    if missing is None or missing[1] not in event_schemas():
        return error
    return f"{missing[1]} is a table of events: name the runs to read them from."


def _events(question: Question, runs: list[AskedRun]) -> Reply:
    from hpcprof.results.ask.event_query import asking, find_kept_events

    store = open_store(question.db, Path(question.runs_dir), read_only=True)
    events = find_kept_events([(_open_run(run), Path(run.spare), run.missing) for run in runs], store)
    with asking(question.sql, events, _DUCKDB_MEMORY) as result:
        return Reply(result.columns, list(islice(result.rows, question.most_rows + 1)), notes=events.missing)


def _open_run(question: AskedRun) -> Run:
    path = Path(question.path)
    return open_run(path) if has_manifest(path) else Run(question.run, path)


def main() -> None:
    """Answer the question on standard input."""
    question = from_json(sys.stdin.buffer.read(), Question)
    limit(question.seconds)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))
