"""Execute SQL over the events of runs: DuckDB on their Parquet files, read-only, in limited memory."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import named_ranks
from hpcprof.profiles.event_folders import communication_folder, table_path
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.ask.query import QueryResult, Value, distinct_names, plain_value
from hpcprof.results.collect.executors.interface import Executor, Progress, serially
from hpcprof.results.collect.kept_events import MATCHES, KeepTask, event_schemas, keep_events
from hpcprof.results.collect.run_names import not_collected_error
from hpcprof.results.collect.step_choice import stored_step_ranges
from hpcprof.results.collect.timelines import Timelines, find_timelines
from hpcprof.results.store.run_communication import load_communication
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run

_KeepEvents = Callable[[Sequence[RankEvents]], dict[int, str]]

MEMORY = "50%"
"""Default share of the machine's or the job's memory that a query uses before it writes to disk."""

_MIN_DUCKDB_VERSION = 2
_INTERRUPT_SECONDS = 0.05

# Starting a process costs more than keeping the events of a small rank, so a task has several ranks.
_MAX_RANKS_PER_TASK = 16
_MIN_TASKS = 8
_FETCHED_ROWS = 10_000
_SQL_TYPES = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.string(): "VARCHAR", pa.bool_(): "BOOLEAN"}


class EventFiles(msgspec.Struct, frozen=True):
    """The events of ranks, and the reasons why some are missing."""

    files: list[tuple[RankEvents, dict[str, int]]] = msgspec.field(default_factory=list)
    """The files of each rank, with the number of rows of each table."""
    missing: list[str] = msgspec.field(default_factory=list)
    """A sentence for each reason why ranks are not among them."""


def schema() -> QueryResult:
    """Return the tables of events with their columns."""
    rows: list[tuple[Value, ...]] = [
        (table, column.name, _SQL_TYPES[column.type].lower())
        for table, columns in event_schemas().items()
        for column in columns
    ]
    return QueryResult(["table", "column", "type"], rows)


def find_events(
    runs: Sequence[Run], store: Store, executor: Executor = serially, progress: Progress | None = None
) -> EventFiles:
    """Find the events of runs; profiles without kept events are read, and their events are kept.

    Raises HpcprofError if a run has not been collected, or no rank has events.
    """
    files = EventFiles()
    for run in runs:
        _find_events(run, store, partial(_keep_lacking, run, store, executor, progress), None, files)
    return _require_events(files)


def find_kept_events(runs: Sequence[tuple[Run, Path, Mapping[int, str]]], store: Store) -> EventFiles:
    """Find the kept events of runs; nothing is written.

    ``runs`` has for each run a spare folder, with events of ranks that the run itself has not kept, and the
    reasons by rank why these are missing too. Raises HpcprofError if a run has not been collected, or no rank
    has events.
    """
    files = EventFiles()
    for run, spare_folder, reasons in runs:
        _find_events(run, store, partial(_missing_events, reasons), spare_folder, files)
    return _require_events(files)


def _require_events(files: EventFiles) -> EventFiles:
    if not files.files:
        raise HpcprofError(files.missing[0])
    return files


class EventAnswer(msgspec.Struct, frozen=True):
    """The result of a query over events; its rows are fetched during iteration."""

    columns: list[str]
    rows: Iterator[tuple[Value, ...]]


@contextmanager
def asking(sql: str, files: EventFiles, memory: str = MEMORY) -> Iterator[EventAnswer]:
    """Execute one SELECT over events.

    The SQL can read the files of these events and nothing else. Data beyond ``memory`` go to a folder
    that is removed afterwards. ``memory`` is a size such as ``4G``, or a percentage of the machine's
    memory. Raises UsageError if DuckDB is not installed, or the SQL is wrong or more than one SELECT; the
    rows raise it too.
    """
    duckdb = _duckdb()
    with tempfile.TemporaryDirectory(prefix="hpcprof-query-") as folder, ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # start the thread, so that Ctrl-C cannot come between start and query
        connection = duckdb.connect(":memory:")
        run_in_thread = partial(_run_in_thread, pool, duckdb.Error)
        try:
            run_in_thread(_restrict_connection, connection, _views(Path(folder), files), Path(folder), memory)
            kinds = [statement.type for statement in run_in_thread(connection.extract_statements, sql)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise UsageError("hpcprof query --events takes one SELECT: it only reads.")
            run_in_thread(connection.execute, sql)
            names = distinct_names([column[0] for column in connection.description or ()])
            yield EventAnswer(names, _plain_rows(partial(run_in_thread, connection.fetchmany, _FETCHED_ROWS)))
        finally:
            _interrupt_query(pool, connection)
            connection.close()


def _duckdb() -> Any:
    """Import DuckDB; refuse versions whose SELECT can start logging to files."""
    try:
        import duckdb
    except ImportError:
        state = "it is not installed"
    else:
        if int(duckdb.__version__.partition(".")[0]) >= _MIN_DUCKDB_VERSION:
            return duckdb
        state = f"{duckdb.__version__} is installed"
    raise UsageError(
        f"hpcprof query --events needs DuckDB {_MIN_DUCKDB_VERSION}.0 or later, and {state}: "
        "pip install 'hpcprof[events]' (Python 3.11 or later)."
    )


def _plain_rows(fetch: Callable[[], list[tuple[Any, ...]]]) -> Iterator[tuple[Value, ...]]:
    while rows := fetch():
        yield from (tuple(map(plain_value, row)) for row in rows)


def _run_in_thread(
    pool: ThreadPoolExecutor, error: type[Exception], function: Callable[..., Any], *values: Any
) -> Any:
    try:
        return pool.submit(function, *values).result()
    except error as problem:
        reason = _error_sentence(str(problem))
        raise UsageError(f"{reason}. Tables and columns: hpcprof query --events --schema.") from None


def _interrupt_query(pool: ThreadPoolExecutor, connection: Any) -> None:
    """Interrupt the query of the pool's thread: a busy connection cannot be closed."""
    idle = pool.submit(int)
    while not wait([idle], timeout=_INTERRUPT_SECONDS).done:
        # Only a query that has begun can be interrupted.
        connection.interrupt()


def _error_sentence(message: str) -> str:
    """Return DuckDB's message without the repeated SQL and without advice on its settings."""
    if re.search("(disabled|locked)", message) and "onfiguration" in message:
        return "hpcprof query --events reads nothing but the events of its runs"
    text = " ".join(message.partition("\n\n")[0].partition("Traceback")[0].split())
    text = re.sub(r"^[\w ]+ Error: ", "", text).replace("! Did", "; did")
    text = text.replace("! ", ". ").rstrip(".!?:")
    return f"{text}: give the query more with --memory" if "failed to allocate" in text else text


def _restrict_connection(
    connection: Any, views: Mapping[str, tuple[list[str], str]], folder: Path, memory: str
) -> None:
    """Create views on files, and restrict the connection to reading these files."""
    spill = folder / "spill"
    spill.mkdir()
    files = [file for paths, _ in views.values() for file in paths]
    settings = {
        "temp_directory": _quote_name(str(spill)),
        "secret_directory": _quote_name(str(folder)),  # the setting would show the home of the server
        "memory_limit": _quote_name(memory),
        "threads": str(len(os.sched_getaffinity(0))),
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allowed_paths": f"[{', '.join(map(_quote_name, files))}]",
        "enable_external_access": "false",
    }
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}")
    for paths_and_view in views.values():
        connection.execute(paths_and_view[1])
    connection.execute("SET lock_configuration = true")


def _views(folder: Path, files: EventFiles) -> dict[str, tuple[list[str], str]]:
    """Return, for each table, its files and the SQL of the view on them.

    The SQL names files by links, since DuckDB reads brackets in a path as a pattern and an equals sign as a
    partition.
    """
    links: dict[Path, Path] = {}
    for events, _ in files.files:
        if events.folder not in links:
            links[events.folder] = folder / str(len(links))
            links[events.folder].symlink_to(events.folder.absolute())
    views = {}
    for table, columns in event_schemas().items():
        if table == MATCHES:
            paths = _match_files(files, links)
        else:
            paths = [
                str(table_path(links[events.folder], table, events.run_id, events.rank))
                for events, rows in files.files
                if rows.get(table)
            ]
        # A file of matches has the ranks in a column, and no folder for each.
        partitions = columns.names[: 1 if table == MATCHES else 2]
        views[table] = paths, f"CREATE VIEW {table} AS {_select_statement(columns, paths, partitions)}"
    return views


def _match_files(files: EventFiles, links: Mapping[Path, Path]) -> list[str]:
    events_of_runs: dict[tuple[Path, str], dict[int, RankEvents]] = {}
    for events, _ in files.files:
        events_of_runs.setdefault((events.folder, events.run_id), {})[events.rank] = events
    paths = []
    for (folder, run_id), ranks in events_of_runs.items():
        stored = load_communication(communication_folder(folder, run_id), ranks)
        place = communication_folder(links[folder], run_id)
        paths += [str(place / part.name) for part in stored.parts] if stored else []
    return paths


def _select_statement(columns: pa.Schema, paths: Sequence[str], partitions: Sequence[str]) -> str:
    if not paths:
        nulls = ", ".join(f'CAST(NULL AS {_SQL_TYPES[c.type]}) AS "{c.name}"' for c in columns)
        return f"SELECT {nulls} WHERE false"
    names = ", ".join(f'"{column.name}"' for column in columns)
    kinds = ", ".join(f"'{name}': {_SQL_TYPES[columns.field(name).type]}" for name in partitions)
    types = f"hive_partitioning = true, hive_types = {{{kinds}}}"
    return f"SELECT {names} FROM read_parquet([{', '.join(map(_quote_name, paths))}], {types})"


def _quote_name(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _find_events(
    run: Run, store: Store, keep_events_of: _KeepEvents, spare_folder: Path | None, files: EventFiles
) -> None:
    """Add the events of a run to ``files``.

    ``keep_events_of`` keeps the events of ranks without any, and returns why it could not, by rank.
    ``spare_folder`` has events of ranks that the run itself has not kept.
    """
    profiles = store.profiles(run.id) if store.exists() else {}
    if not profiles:
        raise not_collected_error(run, store)
    all_events = [*store.rank_events(run.id).values()]
    if not all_events:
        files.missing.append(f"{run.id} has no events: no profile of it holds a timeline.")
    rows = {events: events.rows() for events in all_events}
    reasons = keep_events_of([events for events in all_events if rows[events] is None])
    for events in all_events:
        counts = rows[events] or events.rows()
        if counts is None and spare_folder is not None:
            spare_events = replace(events, folder=spare_folder)
            counts, spare_counts = events.written_rows(), spare_events.rows()
            if spare_counts is None:
                continue
            spare_tables = {table: count for table, count in spare_counts.items() if table not in counts}
            files.files.append((spare_events, spare_tables))
        if counts is not None:
            files.files.append((events, counts))
            # A process that was killed may have kept some of its ranks before.
            reasons.pop(events.rank, None)
    for reason in dict.fromkeys(reasons.values()):
        ranks = [rank for rank, other in reasons.items() if other == reason]
        files.missing.append(f"the events of {named_ranks(ranks)} of {run.id} are missing: {reason}.")


def _missing_events(reasons: Mapping[int, str], rank_events: Sequence[RankEvents]) -> dict[int, str]:
    return {events.rank: reasons.get(events.rank, "they were not kept") for events in rank_events}


def _keep_lacking(
    run: Run, store: Store, executor: Executor, progress: Progress | None, rank_events: Sequence[RankEvents]
) -> dict[int, str]:
    """Read the profiles of ranks without kept events and keep these; return by rank why that failed."""
    if not rank_events:
        return {}
    steps = stored_step_ranges(store, run.id)
    try:
        timelines = find_timelines(run)
    except HpcprofError:
        timelines = Timelines({}, [])
    tasks = [
        KeepTask(
            timelines.paths.get(events.rank),
            events,
            timelines.parts.get(events.rank),
            steps.step_range(events.rank),
            timelines.captured,
        )
        for events in rank_events
    ]
    size = max(1, min(_MAX_RANKS_PER_TASK, len(tasks) // _MIN_TASKS))
    chunks = [tuple(tasks[first : first + size]) for first in range(0, len(tasks), size)]
    reasons, finished = {}, 0
    for chunk, result in executor(keep_events, chunks):
        for task, reason in zip(
            chunk, result if isinstance(result, list) else repeat(result.reason), strict=False
        ):
            if reason:
                reasons[task.events.rank] = reason
        finished += len(chunk)
        if progress is not None:
            progress(finished, len(tasks), chunk[-1].path or chunk[-1].events.folder)
    return reasons
