"""The report of a run, and an analysis of one run or over several, as commands show them.

Commands import it when they run: it loads what gathers a report.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from hpcprof.analysis.collectives.declarations import COST_PCT
from hpcprof.analysis.framework.declaration import Analysis, Policy, Scope
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import HpcprofError, writing
from hpcprof.report.contents import Contents, gather, sample_sizes
from hpcprof.results.ask.tables import RunTables, asked_on_all_cpus
from hpcprof.results.collect.missing import find_collected_sides
from hpcprof.results.store.analysis_table import AnalysisTable
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll


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
    least = COST_PCT if threshold is None else threshold
    status = poll([run], LISTING_SECONDS).get(run.id)
    contents = gather(run, store, status, least, unexplained, asked_on_all_cpus)
    if html is not None:
        # Only this format needs the libraries of pages.
        from hpcprof.report.page.page import html_report

        with writing(html):
            write_atomically(html, html_report(contents, store, scrub=scrub))
    return contents


def analysis_of_run(analysis: Analysis, contents: Contents, store: Store) -> tuple[AnalysisTable, str]:
    """Return the table of an analysis of a run, and the lines on its sample sizes and its steps."""
    if not contents.analyses:
        raise HpcprofError("; ".join(contents.warnings) + ".")
    if analysis.policy is Policy.EACH_TIME:
        return RunTables(contents.run, store, asked_on_all_cpus).table(analysis.name), ""
    name = analysis.name
    samples = (sample_sizes(name, contents.analyses), contents.counted_steps(name, alone=True))
    return contents.table(name), "\n".join(filter(None, samples))


def analysis_over_runs(
    analysis: Analysis,
    runs: Sequence[str],
    against: Sequence[str],
    store: Store,
    runs_dir: Path,
    collect: Callable[[Run], None],
) -> tuple[AnalysisTable, list[str]]:
    """Return the table of an analysis over the runs that a user named, and why others are left out."""
    # These load pandas, which a report of one run does without.
    from hpcprof.results.across.across_runs import every_run, over_pair, over_store

    references = runs or (() if analysis.scope is Scope.STORE else ("last",))
    candidates, baseline = find_collected_sides((references, against), store, runs_dir, collect)
    if analysis.scope is not Scope.STORE:
        return over_pair(analysis, candidates, baseline, store), []
    skipped: list[str] = []
    all_runs = candidates or every_run(store, runs_dir, skipped)
    return over_store(analysis, all_runs, store), skipped
