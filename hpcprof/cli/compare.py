"""``hpcprof compare``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.cli.tables import console, format_option, write_analysis
from hpcprof.common.errors import UsageError

if TYPE_CHECKING:
    from hpcprof.report.comparison import Comparison
    from hpcprof.results.store.store import Store

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
@click.option(
    "--a", "a", multiple=True, metavar="RUN", shell_complete=complete_runs, help="A baseline run. Repeatable."
)
@click.option(
    "--b",
    "b",
    multiple=True,
    metavar="RUN",
    shell_complete=complete_runs,
    help="A candidate run. Repeatable.",
)
@click.option(
    "--fail-on-regression",
    is_flag=True,
    help="Exit with status 3 if steps are slower in B: by at least 1 %, with a confidence interval above 1.",
)
@click.option(
    "--margin",
    type=click.FloatRange(0, 100, min_open=True),
    default=1,
    show_default=True,
    metavar="PERCENT",
    help="Steps are equivalent if the confidence interval of their ratio is within this margin around 1.",
)
@click.option("--force", is_flag=True, help="Also compare different programs, or numbers of ranks.")
@click.argument("words", nargs=-1, metavar="[A B]", shell_complete=complete_runs)
def command(
    runs_dir: Path,
    db: str | None,
    form: str,
    a: tuple[str, ...],
    b: tuple[str, ...],
    fail_on_regression: bool,
    margin: float,
    force: bool,
    words: tuple[str, ...],
) -> None:
    """Compare runs B with runs A: whether steps are slower, and what explains it.

    A is the baseline and B the candidate. Each is a run id, a unique prefix of one, or a path; a sweep
    means all of its runs. Confidence intervals come from the variation between runs, so they need at least
    two runs per side. With one run per side there are figures but no verdict. Earlier runs of the same job
    in the folder of runs count as further runs of A if they are like those of A.
    """
    if (bool(a), bool(b), len(words)) not in ((False, False, 2), (True, True, 0)):
        raise UsageError("name both sides: hpcprof compare A B, or --a RUN … --b RUN … with repeats.")
    from hpcprof.report.comparison import compare_runs
    from hpcprof.results.store.store import open_store

    sides = (a, b) if a else (words[:1], words[1:])
    store = open_store(db, runs_dir)
    compared = compare_runs(*sides, store, runs_dir, margin, force)
    if form == "json":
        click.echo(json.dumps(compared.as_json(), indent=1))
    else:
        if form == "table":
            _show(compared, store)
        write_analysis(form, compared.analysis, compared.table)
    if conclusion := compared.conclusion():
        click.echo(conclusion, err=True)
    if fail_on_regression and compared.regressed:
        sys.exit(_REGRESSION_EXIT)


def _show(compared: Comparison, store: Store) -> None:
    """Print the sides, and what explains the difference of the step."""
    for label, runs in (("A (baseline): ", compared.baseline), ("B (candidate):", compared.candidate)):
        click.echo(f"{label} {', '.join(run.id for run in runs)}")
    out = console()
    out.print(compared.explanation(store, out.width), crop=False)
    out.print(f"\n{compared.analysis.title}", style="bold")
