"""``hpcprof history``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_metrics, complete_programs
from hpcprof.cli.conventions import GATE_EXIT, command_with_examples, echo, exit_naming, write_page
from hpcprof.cli.options import flag, html_option, repeatable, store_options, with_default
from hpcprof.cli.tables import console, format_option, show_what_fits, write_rows
from hpcprof.common.errors import UsageError
from hpcprof.common.units import counted

if TYPE_CHECKING:
    from hpcprof.results.across.history import History

_BY_IMPORTANCE = ("run", "value", "change", "time", "commit", "tags")


@command_with_examples(
    "history",
    "hpcprof history --program train",
    "hpcprof history --program train --metric exposed_comm_per_step_ns --format csv",
    "hpcprof history --program train --html history.html",
    "hpcprof history --program train --gate energy --fail-on-regression",
)
@store_options
@click.option(
    "--program",
    metavar="NAME",
    shell_complete=complete_programs,
    help="The script or built-in workload.  [default: that of all runs]",
)
@with_default(
    "--metric",
    metavar="NAME",
    shell_complete=complete_metrics,
    default="step_ns",
    help="The elapsed time per step, or a metric of hpcprof compare.",
)
@repeatable(
    "--gate",
    "gates",
    type=click.Choice(["energy", "memory", "io"]),
    help="Also judge the energy of a step, the peaks of memory, or reads and writes. Repeatable.",
)
@flag(
    "--fail-on-regression",
    help="Exit with status 3 if, in the series of the newest run, the last change of the metric, or of what "
    "--gate names, is a rise by 1 % or more.",
)
@repeatable("--tag", "tags", help="Only runs with this tag (hpcprof tag). Repeatable.")
@html_option("history")
@format_option
def command(
    runs_dir: Path,
    db: str | None,
    program: str | None,
    metric: str,
    gates: tuple[str, ...],
    fail_on_regression: bool,
    tags: tuple[str, ...],
    html: Path | None,
    form: str,
) -> None:
    """Show a metric of all runs of a program over time, and where it changed.

    Runs with other arguments, numbers of ranks, sites, GPUs or profilers have histories of their own;
    arguments that do not change a step, such as a seed or a folder for output, do not count. A run is marked
    if the level of the metric changes there with a probability of 70 % or more, and the runs before and after
    differ in their ranks too; it takes five runs, and three of them on the new level. Tags and commits are
    beside the runs.
    """
    from hpcprof.report.history import COLUMNS, left_out, plain_rows, regression_sentence
    from hpcprof.results.across.history import gated_histories, histories, may_be_gated, regressions
    from hpcprof.results.store.store import open_store

    if fail_on_regression and not may_be_gated(metric):
        sentence = f"--fail-on-regression: more of {metric} is not worse; name a metric of time or --gate."
        raise UsageError(sentence)
    skipped: list[str] = []
    without: list[str] = []
    store = open_store(db, runs_dir)
    series_of_runs = histories(store, runs_dir, program, metric, tags, skipped, without)
    gated, unjudged = gated_histories(gates, store, runs_dir, program, tags)
    series_of_runs += [history for history in gated if history.metric != metric]
    if form == "table":
        _show(series_of_runs)
    else:
        write_rows(form, COLUMNS, plain_rows(series_of_runs))
    if html is not None:
        from hpcprof.report.page.history_page import html_history

        write_page(html, html_history(series_of_runs, skipped), form)
    if alone := sum(not series.program_known for series in series_of_runs):
        echo(
            f"The program of {counted(alone, 'run')} is not known, so that each is alone: name it with "
            "hpcprof collect RUN --program NAME.",
            err=True,
        )
    for sentence in filter(None, [left_out(without, metric), *unjudged]):
        echo(sentence, err=True)
    worse = regressions(series_of_runs) if fail_on_regression or gates else []
    if worse:
        echo(regression_sentence(worse), err=True)
    exit_naming(skipped)
    if fail_on_regression and worse:
        sys.exit(GATE_EXIT)


def _show(histories: "Sequence[History]") -> None:
    from hpcprof.report.history import in_words, sparkline, told_apart

    out = console()
    whole = False
    if apart := told_apart(histories):
        out.print(apart, end="\n\n")
    for history in histories:
        if whole:
            echo()
        # One run is no course.
        whole = len(history.points) > 1 or len(histories) == 1
        for sentence in in_words(history):
            out.print(sentence)
        if whole:
            echo(sparkline([point.value for point in history.points], out.width))
            _show_runs(history)


def _show_runs(history: "History") -> None:
    from hpcprof.report.history import table

    columns = table(history)
    if not any(columns["change"]):
        del columns["change"]
    show_what_fits(columns, [name for name in _BY_IMPORTANCE if name in columns], "tags")
