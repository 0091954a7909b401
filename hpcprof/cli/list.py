"""``hpcprof list``."""

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import click

from hpcprof.cli.completion import complete_sites
from hpcprof.cli.conventions import command_with_examples, echo, exit_naming
from hpcprof.cli.options import repeatable, store_options
from hpcprof.cli.tables import format_option, show_what_fits, write_rows
from hpcprof.common.units import format_ns, shortened, visible
from hpcprof.results.across.listing import STATES, ListedRun, Selection, list_runs, parse_since
from hpcprof.runs.directory import no_runs
from hpcprof.submit.jobs.walltime import format_walltime

_MAX_COMMAND = 300
"""Maximum characters of a command in a table; JSON and CSV have it whole."""

_BY_IMPORTANCE = (
    *("run", "state", "step", "started", "duration", "command"),
    *("reason", "collected", "tags", "site", "ranks", "profiler"),
)


@command_with_examples(
    "list",
    "hpcprof list --since 7d --state failed --state timeout",
    "hpcprof list --tag baseline --format json",
)
@store_options
@repeatable(
    "--state",
    "states",
    type=click.Choice(STATES),
    metavar="STATE",
    help=f"Only runs in this state: {', '.join(STATES)}. Repeatable.",
)
@repeatable("--site", "sites", shell_complete=complete_sites, help="Only runs on this site. Repeatable.")
@repeatable("--tag", "tags", help="Only runs with this tag (hpcprof tag). Repeatable.")
@click.option("--since", help="Only runs submitted since this date (2026-11-21) or age (7d, 12h).")
@format_option
def command(
    runs_dir: Path,
    db: str | None,
    states: tuple[str, ...],
    sites: tuple[str, ...],
    tags: tuple[str, ...],
    since: str | None,
    form: str,
) -> None:
    """List the runs, oldest first.

    Profiles that were collected from other folders follow: they are imported, or missing if the folder is
    gone. The step is the elapsed time per step of the profiles, else of those that the program noted (noted).
    Columns that do not fit the terminal are left out; --format csv and json have all, the median step too,
    with times in seconds and nanoseconds (_s, _ns).
    """
    began = parse_since(since, datetime.now(timezone.utc)) if since else None
    skipped: list[str] = []
    rows = list_runs(runs_dir, db, Selection(states, sites, tags, began), skipped)
    if form != "table":
        plain = [row.plain() for row in rows]
        for row in plain if form == "csv" else ():
            row["tags"] = " ".join(row["tags"])
        write_rows(form, ListedRun.__struct_fields__, [[*row.values()] for row in plain])
    elif rows:
        _show(rows)
    elif not skipped:
        echo("no run matches" if states or sites or tags or since else no_runs(runs_dir))
    exit_naming(skipped)


def _show(rows: Sequence[ListedRun]) -> None:
    columns: dict[str, Sequence[object]] = {
        "run": [row.run for row in rows],
        "state": [row.state for row in rows],
        "site": [row.site for row in rows],
        "ranks": [f"{row.nodes} x {row.ranks_per_node}" if row.nodes else row.ranks for row in rows],
        "profiler": [row.profiler for row in rows],
        "command": [shortened(row.command or "", _MAX_COMMAND) for row in rows],
        "started": [f"{row.started.astimezone():%Y-%m-%d %H:%M}" if row.started else None for row in rows],
        "duration": [
            None if row.duration_s is None else format_walltime(round(row.duration_s)) for row in rows
        ],
        "step": [
            None
            if row.step_ns is None
            else format_ns(row.step_ns) + " noted" * (row.step_source == "program")
            for row in rows
        ],
        "collected": [row.collected.value for row in rows],
        "tags": [" ".join(row.tags) for row in rows],
        **({"reason": [row.reason for row in rows]} if any(row.reason for row in rows) else {}),
    }
    texts = {name: [visible(str(value or "–")) for value in values] for name, values in columns.items()}
    show_what_fits(texts, [name for name in _BY_IMPORTANCE if name in texts], shortened="command")
