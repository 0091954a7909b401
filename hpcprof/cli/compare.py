"""``hpcprof compare``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.cli.tables import format_option
from hpcprof.common.errors import UsageError

_REGRESSION_EXIT = 3


@click.command(
    "compare",
    epilog=examples(
        "hpcprof compare 20261120 20261121",
        "hpcprof compare --a RUN1 --a RUN2 --b RUN3 --b RUN4 --fail-on-regression",
    ),
)
@runs_dir_option
@db_option
@format_option
@click.option("--a", "a", multiple=True, metavar="RUN", help="A run of side A; once for each repeat.")
@click.option("--b", "b", multiple=True, metavar="RUN", help="A run of side B; once for each repeat.")
@click.option(
    "--fail-on-regression",
    is_flag=True,
    help="Exit with 3 if a step of B is slower: by 1 % or more, with an interval above 1.",
)
@click.argument("words", nargs=-1, metavar="[A B]")
def command(
    runs_dir: Path,
    db: str | None,
    form: str,
    a: tuple[str, ...],
    b: tuple[str, ...],
    fail_on_regression: bool,
    words: tuple[str, ...],
) -> None:
    """Compare runs B with runs A: is a step slower, and what explains it.

    Runs are named as for report; a sweep stands for its members. Repeats matter: intervals come from the
    differences between runs and take two on each side. One run each gives the figures and no verdict.
    """
    if (bool(a), bool(b), len(words)) not in ((False, False, 2), (True, True, 0)):
        raise UsageError("name both sides: hpcprof compare A B, or --a RUN … --b RUN … with repeats.")
    from hpcprof.analysis.comparison.compare import NO_STATISTICS, REGRESSION
    from hpcprof.analysis.framework.registry import ACROSS_RUNS
    from hpcprof.cli.report import show_rows
    from hpcprof.results.across_runs import over_pair
    from hpcprof.results.store.store import open_store
    from hpcprof.submit.runs.directory import find_runs

    sides = (a, b) if a else ((words[0],), (words[1],))
    of_a, of_b = ([run for name in side for run in find_runs(name, runs_dir)] for side in sides)
    analysis = ACROSS_RUNS["compare"]
    compared = over_pair(analysis, of_b, of_a, open_store(db, runs_dir))
    if form == "table":
        for label, runs in (("a", of_a), ("b", of_b)):
            click.echo(f"{label}  {', '.join(run.id for run in runs)}")
    show_rows(form, analysis, compared)
    found = [row["metric"] for row in compared.rows if row["verdict"] == REGRESSION]
    if found:
        click.echo(f"regression: {', '.join(found)}", err=True)
    elif any(row["verdict"].endswith(NO_STATISTICS) for row in compared.rows):
        click.echo("whether this is a regression cannot be told: it takes two runs on each side", err=True)
    if found and fail_on_regression:
        sys.exit(_REGRESSION_EXIT)
