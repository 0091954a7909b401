"""``hpcprof query``."""

import atexit
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import flag, store_options
from hpcprof.cli.tables import format_option, write_rows
from hpcprof.common.errors import UsageError

if TYPE_CHECKING:
    from hpcprof.results.store.store import Store


@command_with_examples(
    "query",
    "hpcprof query --schema",
    'hpcprof query "SELECT rank, idle_pct FROM analysis_breakdown ORDER BY idle_pct DESC"',
    'hpcprof query --events "SELECT name, count(*), sum(end_ns - start_ns) FROM kernels GROUP BY 1"',
)
@store_options
@format_option
@flag("--schema", help="List the tables and columns.")
@flag("--events", help="Query the events of RUN instead of the results database.")
@click.option(
    "--memory",
    metavar="SIZE",
    help="With --events: memory to use before writing to disk, as in 4G.  [default: half of the machine's]",
)
@click.argument("sql", required=False)
@click.argument("runs", nargs=-1, metavar="[RUN]…", shell_complete=complete_runs)
def command(
    runs_dir: Path,
    db: str | None,
    form: str,
    schema: bool,
    events: bool,
    memory: str | None,
    sql: str | None,
    runs: tuple[str, ...],
) -> None:
    """Query the results database, or the events of runs, with SQL.

    SQL is one read-only statement. Each analysis has a table analysis_NAME, whose column run_id is the run;
    the tables runs, profiles, gpus, facts, losses and reasons describe the origin of the rows.

    With --events, SQL is one SELECT of DuckDB over all ranks of each RUN, by default the last: the tables
    kernels, api, ranges, collectives, steps, memory_operations and others (hpcprof query --events --schema).
    Each has the columns run and rank; times are nanoseconds on the clock of the rank.
    """
    from hpcprof.results.store.store import open_store

    if schema == (sql is not None):
        raise UsageError("give either the SQL or --schema.")
    if events:
        if sql and runs and " " in runs[-1] and " " not in sql:
            sql, runs = runs[-1], (sql, *runs[:-1])
        _ask_events(open_store(db, runs_dir), runs_dir, form, sql, memory, runs)
        return
    if runs or memory:
        option = f"RUN {runs[0]}" if runs else "--memory"
        raise UsageError(f"{option} is for --events: SQL on the results database names runs by run_id.")
    from hpcprof.results.ask import query

    if sql is None:
        answer = query.schema()
    else:
        from hpcprof.results.ask.tables import complete_tables, incomplete_tables, on_all_cpus

        store = open_store(db, runs_dir)
        complete_tables(sql, store, runs_dir, on_all_cpus)
        answer = query.query(store, sql)
        for sentence in incomplete_tables(sql, store):
            echo(f"hpcprof: {sentence}", err=True)
    write_rows(form, answer.columns, answer.rows)


def _ask_events(
    store: "Store",
    runs_dir: Path,
    form: str,
    sql: str | None,
    memory: str | None,
    references: tuple[str, ...],
) -> None:
    from hpcprof.results.ask.event_query import MEMORY, asking, find_events, schema

    if sql is None:
        answer = schema()
        write_rows(form, answer.columns, answer.rows)
        return
    from hpcprof.cli.collect import ProgressBar
    from hpcprof.common.units import parse_memory
    from hpcprof.results.collect.executors.processes import Processes
    from hpcprof.results.collect.rank_task import PRELOAD
    from hpcprof.results.collect.run_names import find_known_runs

    # DuckDB's binding lists on standard error what is not freed at exit.
    atexit.unregister(gc.freeze)
    limit = f"{parse_memory(memory, '--memory')}iB" if memory else MEMORY
    runs = find_known_runs(references or ("last",), runs_dir, store)
    with ProgressBar() as progress:
        events = find_events(runs, store, Processes(len(os.sched_getaffinity(0)), PRELOAD), progress)
    for sentence in events.missing:
        echo(f"hpcprof: {sentence}", err=True)
    with asking(sql, events, limit) as reply:
        write_rows(form, reply.columns, reply.rows)
