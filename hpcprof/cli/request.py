"""From a user's request to the report that answers it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.analysis.collectives.declarations import COST_PCT
from hpcprof.analysis.framework.declaration import Analysis, Policy, Scope
from hpcprof.analysis.framework.registry import find_analysis, find_analysis_across_runs
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import HpcprofError, UsageError, writing
from hpcprof.report.contents import VERDICTS, Contents, gather, sample_sizes
from hpcprof.results.ask.explanation import explain_for_report
from hpcprof.results.ask.tables import RunTables
from hpcprof.results.collect.executors.interface import Executor, serially
from hpcprof.results.collect.missing import find_collected_run, find_collected_sides
from hpcprof.results.store.analysis_table import AnalysisTable
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll


@dataclass(frozen=True)
class ReportRequest:
    """A user's request for a report."""

    runs: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """The runs and those that they are compared with, as users refer to them."""
    analysis: str | None = None
    """The only analysis to show."""
    one_table: bool = False
    """True if the output format holds one table only, so that an analysis must be named."""
    html: Path | None = None
    """The HTML file to write."""
    scrub: bool = False
    """True if the HTML file leaves out hosts, users, paths, command lines and logs."""
    threshold: float | None = None
    """From which cost on a late rank is a straggler, in percent of a step, if not the usual one."""


@dataclass(frozen=True)
class AnalysisReport:
    """One analysis.

    ``samples`` is the line on its sample sizes, and ``skipped`` has a sentence for each run left out.
    """

    analysis: Analysis
    table: AnalysisTable
    samples: str = ""
    skipped: list[str] = field(default_factory=list)


def make_report(
    request: ReportRequest,
    store: Store,
    runs_dir: Path,
    collect: Callable[[Run], None] = lambda _: None,
    explain: Callable[[Run, Store], str] = explain_for_report,
    executor: Executor = serially,
) -> Contents | AnalysisReport:
    """Return the report that a user asks for: of a whole run, or of one analysis.

    The HTML file is written where the request names one. ``collect`` is called with each run of the request
    that has profiles of which none has been collected, and ``explain`` with the run of a whole report or a
    page; it returns why the run could not be explained, and shows progress. ``executor`` computes the
    analyses that nobody has asked for yet.
    """
    if request.threshold is not None and request.analysis not in (None, *VERDICTS):
        raise UsageError(
            f"--threshold belongs to the full report and to the analyses {' and '.join(VERDICTS)}, not to "
            f"{request.analysis}."
        )
    if request.scrub and request.html is None:
        raise UsageError("--scrub needs --html FILE.")
    across = find_analysis_across_runs(request.analysis, bool(request.against))
    if across is not None:
        if request.html is not None:
            raise UsageError(f"--html shows one run; {across.name} is an analysis over several runs.")
        return _across_runs(across, request, store, runs_dir, collect)
    if len(request.runs) > 1:
        raise UsageError(
            f"a report shows one run, but {len(request.runs)} are given: use hpcprof compare for several."
        )
    analysis = find_analysis(request.analysis) if request.analysis else None
    if request.one_table and analysis is None:
        raise UsageError("--format csv writes one table: choose it with --analysis NAME.")
    run = find_collected_run(request.runs[0] if request.runs else "last", store, runs_dir, collect)
    whole = analysis is None or request.html is not None
    unexplained = explain(run, store) if whole else ""
    threshold = COST_PCT if request.threshold is None else request.threshold
    contents = gather(run, store, poll([run], LISTING_SECONDS).get(run.id), threshold, unexplained, executor)
    if request.html is not None:
        # Only this format needs the libraries of pages.
        from hpcprof.report.page.page import html_report

        with writing(request.html):
            write_atomically(request.html, html_report(contents, store, scrub=request.scrub))
    if analysis is None:
        return contents
    if not contents.analyses:
        raise HpcprofError("; ".join(contents.warnings) + ".")
    samples = sample_sizes(analysis.name, contents.analyses)
    in_contents = analysis.policy is not Policy.EACH_TIME
    tables = contents if in_contents else RunTables(run, store, executor)
    return AnalysisReport(analysis, tables.table(analysis.name), samples)


def _across_runs(
    analysis: Analysis, request: ReportRequest, store: Store, runs_dir: Path, collect: Callable[[Run], None]
) -> AnalysisReport:
    # These load pandas, which a report of one run does without.
    from hpcprof.results.across.across_runs import every_run, over_pair, over_store

    references = request.runs or (() if analysis.scope is Scope.STORE else ("last",))
    runs, against = find_collected_sides((references, request.against), store, runs_dir, collect)
    if analysis.scope is Scope.STORE:
        skipped: list[str] = []
        table = over_store(analysis, runs or every_run(store, runs_dir, skipped), store)
        return AnalysisReport(analysis, table, skipped=skipped)
    return AnalysisReport(analysis, over_pair(analysis, runs, against, store))
