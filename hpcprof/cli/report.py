"""``hpcprof report``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_analyses, complete_runs
from hpcprof.cli.conventions import command_with_examples, echo, exit_naming, write_page
from hpcprof.cli.options import FiniteFloat, flag, format_among, html_option, repeatable, store_options
from hpcprof.cli.progress import ExplainingLine
from hpcprof.cli.tables import show, show_report, write_analysis, write_rows
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import HpcprofError, UsageError, writing

if TYPE_CHECKING:
    from hpcprof.analysis.framework.declaration import Analysis
    from hpcprof.analysis.framework.outcome import AnalysisTable
    from hpcprof.report.contents import Contents
    from hpcprof.results.store.store import Store
    from hpcprof.runs.directory import Run


@command_with_examples(
    "report",
    "hpcprof report last --html report.html",
    "hpcprof report last --html report.html --scrub",
    "hpcprof report --analysis kernels --format csv",
    "hpcprof report RUN --analysis slowdown_pairs --against RUN2",
)
@store_options
@click.option(
    "--analysis",
    metavar="NAME",
    shell_complete=complete_analyses,
    help="Show only this analysis, with all its rows.",
)
@format_among(
    "table", "csv", "json", help="csv and json give times in whole nanoseconds; csv needs --analysis."
)
@flag("--all", "everything", help="Show all tables on a terminal too; without one they always are.")
@html_option("report")
@flag("--scrub", help="Leave hosts, users, paths, command lines and logs out of the HTML file, to share it.")
@repeatable(
    "--against",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Compare with this run, in the analyses slowdown_pairs, slowdown_by_overlap, roofline and compare. "
    "Repeatable.",
)
@click.option(
    "--threshold",
    type=FiniteFloat(0, 100, min_open=True),
    metavar="PERCENT",
    help="A late rank is a straggler from this cost on, in percent of the step time.  [default: 5]",
)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs)
def command(
    runs_dir: Path,
    db: str | None,
    analysis: str | None,
    form: str,
    everything: bool,
    html: Path | None,
    scrub: bool,
    against: tuple[str, ...],
    threshold: float | None,
    runs: tuple[str, ...],
) -> None:
    """Report where the time of a run went.

    If nothing of a run has been collected yet, its profiles are collected first. A report of a whole run also
    explains it, as hpcprof explain does. On a terminal it is the account of the step, the findings and what
    else there is; --all adds the tables.

    RUN is a run id, a name that means one run, a path, or last (the default). Several are accepted by an
    analysis with --against, as repeats, and by scaling, which covers all runs where none is named. A
    sweep is shown as the step time of each run by parameter.
    """
    from hpcprof.analysis.framework.registry import find_analysis, find_analysis_across_runs
    from hpcprof.results.ask.tables import EXPLAINED, VERDICTS
    from hpcprof.results.collect.missing import find_collected_run
    from hpcprof.results.store.store import open_store
    from hpcprof.runs.directory import find_sweep

    store = open_store(db, runs_dir)
    plain = (len(runs), analysis, against, threshold, scrub) == (1, None, (), None, False)
    if plain and len(members := find_sweep(runs[0], runs_dir)) > 1:
        _show_sweep(form, members, store, html)
        return
    _check(analysis, html, scrub, threshold)
    across = find_analysis_across_runs(analysis, bool(against))
    if across is not None:
        if html is not None:
            raise UsageError(f"--html shows one run; {across.name} is an analysis over several runs.")
        table, skipped = _over_runs(across, runs, against, store, runs_dir)
        write_analysis(form, across, table)
        exit_naming(skipped)
        return
    if len(runs) > 1:
        sentence = f"a report shows one run, but {len(runs)} are given: use hpcprof compare for several."
        raise UsageError(sentence)
    chosen = find_analysis(analysis) if analysis else None
    if form == "csv" and chosen is None:
        raise UsageError("--format csv writes one table: choose it with --analysis NAME.")
    run = find_collected_run(runs[0] if runs else "last", store, runs_dir, collect_first)
    # A verdict on late ranks takes in what the explanation finds, which has tables of its own.
    explains = chosen is None or chosen.name in (*VERDICTS, *EXPLAINED) or html is not None
    unexplained = explain_first(run, store) if explains else ""
    contents = report_of_run(run, store, unexplained, threshold=threshold, html=html, scrub=scrub)
    if chosen is not None:
        if not contents.analyses:
            raise HpcprofError("; ".join(contents.warnings) + ".")
        basis = contents.basis(chosen.name, alone=True)
        write_analysis(form, chosen, contents.analyses[chosen.name], basis)
    else:
        _show(contents, form, everything)
    if html is not None:
        echo(f"wrote {html}", err=form != "table")


def _check(analysis: str | None, html: Path | None, scrub: bool, threshold: float | None) -> None:
    from hpcprof.results.ask.tables import VERDICTS

    if threshold is not None and analysis not in (None, *VERDICTS):
        raise UsageError(
            f"--threshold belongs to the full report and to the analyses {' and '.join(VERDICTS)}, not to "
            f"{analysis}."
        )
    if scrub and html is None:
        raise UsageError("--scrub needs --html FILE.")


def report_of_run(
    run: Run,
    store: Store,
    unexplained: str = "",
    *,
    threshold: float | None = None,
    html: Path | None = None,
    scrub: bool = False,
) -> Contents:
    """Return the report of a run, and write its page to ``html`` if that is given.

    ``unexplained`` says why the run could not be explained. A late rank is a straggler from ``threshold``
    percent of a step on. ``scrub`` leaves hosts, users, paths, command lines and logs out of the page.
    """
    from hpcprof.analysis.collectives.declarations import COST_PCT
    from hpcprof.report.contents import gather
    from hpcprof.results.ask.tables import lazy_on_all_cpus
    from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll

    least = COST_PCT if threshold is None else threshold
    status = poll([run], LISTING_SECONDS).get(run.id)
    contents = gather(run, store, status, least, unexplained, lazy_on_all_cpus)
    if html is not None:
        # Only this format needs the libraries of pages.
        from hpcprof.report.page.page import html_report

        with writing(html):
            write_atomically(html, html_report(contents, store, scrub=scrub))
    return contents


def _over_runs(
    analysis: Analysis, runs: Sequence[str], against: Sequence[str], store: Store, runs_dir: Path
) -> tuple[AnalysisTable, list[str]]:
    """Return the table of an analysis over the runs that a user named, and why others are left out."""
    # These load pandas, which a report of one run does without.
    from hpcprof.analysis.framework.declaration import Scope
    from hpcprof.results.across.across_runs import every_run, over_pair, over_store
    from hpcprof.results.collect.missing import find_collected_sides

    references = runs or (() if analysis.scope is Scope.STORE else ("last",))
    candidates, baseline = find_collected_sides((references, against), store, runs_dir, collect_first)
    if analysis.scope is not Scope.STORE:
        return over_pair(analysis, candidates, baseline, store), []
    skipped: list[str] = []
    all_runs = candidates or every_run(store, runs_dir, skipped)
    return over_store(analysis, all_runs, store), skipped


def _show(contents: Contents, form: str, everything: bool) -> None:
    if form == "json":
        tables = {name: contents.table(name) for name in contents.analyses}
        rows = {name: table.rows for name, table in tables.items()}
        losses = {name: list(table.losses) for name, table in tables.items() if table.losses}
        explained = contents.explanation.in_short().as_json() if contents.explanation else None
        steps = {name: str(table.steps) for name, table in tables.items() if table.steps}
        values = {"run": contents.run.id, "explanation": explained, "analyses": rows, "losses": losses}
        echo(json.dumps(values | {"steps": steps}, indent=1))
    else:
        show_report(contents, everything)


def _show_sweep(form: str, members: Sequence[Run], store: Store, html: Path | None) -> None:
    from hpcprof.results.across.sweeps import HEADERS, sweep_points, sweep_sentence
    from hpcprof.results.collect.missing import collect_missing
    from hpcprof.runs.directory import number_in_sweep, sweep_of

    collect_missing(members, store, collect_first)
    points, sweep = sweep_points(members, store), sweep_of(members[0].id) or ""
    if form != "table":
        rows = [(p.run, p.parameters, p.elapsed_ns, p.duration_s, p.is_best) for p in points]
        write_rows(form, ("run", "parameters", "elapsed_per_step_ns", "duration_s", "best"), rows)
    else:
        echo(f"sweep {sweep}")
        lines = [(str(number_in_sweep(point.run)), *point.cells[1:], point.parameters) for point in points]
        show(lines, ("run", *HEADERS[1:], HEADERS[0]))
        if sentence := sweep_sentence(points):
            echo(sentence)
    if html is not None:
        from hpcprof.report.page.sweep_page import html_sweep

        write_page(html, html_sweep(sweep, points), form)


def collect_first(run: Run, store: Store) -> None:
    """Collect a run that this version of hpcprof has not collected, and say so on standard error."""
    # Imported here: a report from the store is quick.
    from hpcprof.cli.collect import collect_and_report
    from hpcprof.results.store.analysis_version import earlier_version

    earlier = earlier_version(store.profiles(run.id).values()) if store.exists() else ""
    reason = f"{run.id} was collected by {earlier}" if earlier else f"nothing of {run.id} has been collected"
    echo(f"hpcprof: {reason}: collecting it first", err=True)
    store.prepare()
    collect_and_report(run, store, aside=True)


def explain_first(run: Run, store: Store) -> str:
    """Explain a run before its report is shown; return why that failed, empty if it did not."""
    from hpcprof.results.ask.explanation import explain_for_report
    from hpcprof.results.ask.tables import on_all_cpus

    with ExplainingLine() as progress:
        return explain_for_report(run, store, progress, on_all_cpus)
