"""``hpcprof query``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.cli.conventions import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.cli.tables import format_option, write_rows
from hpcprof.common.errors import UsageError


@click.command(
    "query",
    epilog=examples(
        "hpcprof query --schema",
        'hpcprof query "SELECT rank, idle_pct FROM analysis_breakdown ORDER BY idle_pct DESC"',
    ),
)
@runs_dir_option
@db_option
@format_option
@click.option("--schema", is_flag=True, help="List the tables and columns.")
@click.argument("sql", required=False)
def command(runs_dir: Path, db: str | None, form: str, schema: bool, sql: str | None) -> None:
    """Ask the results database in SQL.

    SQL is one read-only statement. Each analysis has a table analysis_NAME, whose column run_id is the run;
    the tables runs, profiles, gpus, facts, losses and reasons describe the origin of the rows.
    """
    from hpcprof.results import query
    from hpcprof.results.store.store import open_store

    if schema == (sql is not None):
        raise UsageError("give either the SQL or --schema.")
    answer = query.schema() if sql is None else query.query(open_store(db, runs_dir), sql)
    write_rows(form, answer.columns, answer.rows)
