"""From a user's request to the report that answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.analysis.collectives.declarations import COST_PCT
from hpcprof.analysis.framework.declaration import Analysis, Policy, Scope
from hpcprof.analysis.framework.registry import find_analysis, find_analysis_across_runs
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import HpcprofError, StoreError, UsageError, writing
from hpcprof.report.contents import VERDICTS, Contents, gather, sample_sizes
from hpcprof.results.ask.explanation import explain_for_report
from hpcprof.results.ask.tables import RunTables
from hpcprof.results.collect.darshan_logs import logs_of
from hpcprof.results.collect.executors.interface import Executor, serially
from hpcprof.results.collect.run_memory import snapshots_of
from hpcprof.results.collect.run_names import find_known_run, find_known_runs
from hpcprof.results.collect.run_profiles import profiles_of, sampled_so_far
from hpcprof.results.collect.stalls import is_unprofiled, tells_while_it_runs
from hpcprof.results.store.analysis_table import AnalysisTable, earlier_version
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run, typed_name
from hpcprof.submit.remote.mirror import connect, host_of
from hpcprof.submit.schedulers.base import JobState
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


def find_collected_run(
    reference: str, store: Store, runs_dir: Path, collect: Callable[[Run], None] = lambda _: None
) -> Run:
    """Return the run that a user named, after it has been collected if nothing of it was."""
    run = find_known_run(reference, runs_dir, store)
    collect_missing([run], store, collect)
    return run


def _across_runs(
    analysis: Analysis, request: ReportRequest, store: Store, runs_dir: Path, collect: Callable[[Run], None]
) -> AnalysisReport:
    # These load pandas, which a report of one run does without.
    from hpcprof.results.across.across_runs import every_run, over_pair, over_store

    references = request.runs or (() if analysis.scope is Scope.STORE else ("last",))
    runs = find_known_runs(references, runs_dir, store)
    against = find_known_runs(request.against, runs_dir, store)
    collect_missing([*runs, *against], store, collect)
    if analysis.scope is Scope.STORE:
        skipped: list[str] = []
        table = over_store(analysis, runs or every_run(store, runs_dir, skipped), store)
        return AnalysisReport(analysis, table, skipped=skipped)
    return AnalysisReport(analysis, over_pair(analysis, runs, against, store))


def collect_missing(runs: Sequence[Run], store: Store, collect: Callable[[Run], None]) -> None:
    """Have each run collected whose profiles are not in the store, or by an earlier version of hpcprof.

    A run that has stalled has nothing to collect as long as its job lasts. Of one without a profiler, what is
    beside profiles is stored quietly, and again whenever there is more. It is an error if the job of one has
    not ended: its profiles are incomplete.
    """
    exists = store.exists()
    stored = {run.id: store.profiles(run.id) if exists else {} for run in runs}
    missing = [run for run in runs if not stored[run.id]]
    connect(missing)
    statuses = poll(missing, LISTING_SECONDS)
    unfinished = set()
    for run in missing:
        status = statuses.get(run.id)
        if status is not None and status.state is JobState.RUNNING and tells_while_it_runs(run):
            unfinished.add(run.id)
        elif status is not None and status.state in (JobState.QUEUED, JobState.RUNNING):
            raise HpcprofError(
                f"{run.id} is {status.state.value}: wait with hpcprof status {typed_name(run.path)} --watch, "
                "then report."
            )
    for run in runs:
        profiles = stored[run.id].values()
        if not profiles and run.manifest is not None and not host_of(run) and is_unprofiled(run, store):
            _store_what_was_sampled(run, store)
            continue
        uncollected = (snapshots_of(run) or logs_of(run)) and not (exists and store.has_run(run.id))
        if (
            run.id not in unfinished
            and (not profiles or earlier_version(profiles))
            and (profiles_of(run) or host_of(run) or uncollected)
        ):
            collect(run)


def _store_what_was_sampled(run: Run, store: Store) -> None:
    """Store what the nodes of a run without profiles did, its memory and its logs, if there is more of it."""
    # Whoever may only read the database is told what it has, and what the folder of the run has.
    with suppress(StoreError, OSError):
        known = store.run(run.id) if store.exists() else None
        if (known.sampled if known else None) == sampled_so_far(run):
            return
        from hpcprof.results.collect.collection import collect  # imports pandas

        store.prepare()
        collect(run, store)
