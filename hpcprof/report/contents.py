"""The contents of a run's report, gathered once for the terminal and for HTML."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from hpcprof.analysis.collectives.declarations import COST_PCT
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.framework.declaration import Activity, Analysis, SampleBasis
from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.framework.registry import ANALYSES, FULL_REPORT
from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import counted, named_ranks
from hpcprof.profiles.losses import LossKind, short_sentences
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.profiles.readers.results import read_results
from hpcprof.results.ask.explanation import explain, kept_explanation, with_live_findings
from hpcprof.results.ask.tables import RunTables
from hpcprof.results.collect.executors.interface import Executor, serially
from hpcprof.results.collect.run_names import command_line, typed_run
from hpcprof.results.collect.run_profiles import eztrace_notes, untraced_notes, why_unprofiled
from hpcprof.results.collect.stalls import is_unprofiled
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import GpuRow, ProfileRow
from hpcprof.runs.directory import Run
from hpcprof.submit.runs.failures import RankFailure, failed_ranks, launch_failure, preparation_failures
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.workloads.schema import RankResult

_GPU_WORDS = frozenset({"gpu", "mem", "device", "host", "offload"})
"""Words in the names of columns about GPUs, what is copied to them, and what a host does for them."""

_COUNTS = (("kernels", "instances", "kernel"), ("memops", "count", "memory operation"))


@dataclass(frozen=True)
class Contents:
    """Everything that a report shows of one run. ``status`` is None for an adopted folder.

    ``reporting`` returns the command that reports the run with some options, ``explaining`` is the one that
    explains it, and ``collect`` the one that collects it again. ``explanation`` is what the store keeps
    of the run's, and ``unexplained`` says why it could not be computed. A rank whose lateness costs at least
    ``threshold`` percent of a step is a straggler. ``losses`` says once what the profiles of the run lack;
    ``hides_waits`` is True if waits in MPI are among it, which count as the ranks' own work.
    """

    run: Run
    status: JobStatus | None
    failures: list[RankFailure]
    profiles: dict[int, ProfileRow]
    analyses: Mapping[str, AnalysisTable]
    results: list[RankResult]
    warnings: list[str]
    reporting: Callable[..., str]
    threshold: float = COST_PCT
    explaining: str = ""
    explanation: Explanation | None = None
    unexplained: str = ""
    collect: str = "hpcprof collect"
    losses: Sequence[str] = ()
    hides_waits: bool = False
    gpus: Sequence[GpuRow] = ()

    def table(self, name: str) -> AnalysisTable:
        """Return an analysis; without rows where nothing was collected."""
        return self.analyses.get(name, AnalysisTable({}))

    def basis(self, name: str, *, alone: bool = False) -> list[str]:
        """Return lines on the samples and the steps of an analysis; ``alone`` as for `counted_steps`."""
        return [*filter(None, (sample_sizes(name, self.analyses), self.counted_steps(name, alone=alone)))]

    def in_full(self, name: str) -> str:
        """Return the command that shows an analysis with all its rows."""
        return self.reporting("--analysis", name)

    def counted_steps(self, name: str, noun: str = "table", *, alone: bool = False) -> str:
        """Return the steps that an analysis, or ``noun`` shows it, counts, with the account's if they differ.

        Empty where they do not, unless the table is ``alone``, and where no figure is of steps.
        """
        steps, account = self.table(name).steps, self.table("step_kinds").steps
        if steps is None or not steps.count:
            return ""
        if account is None or steps.left_out == account.left_out:
            return f"This {noun} counts {steps}." if alone else ""
        return f"This {noun} counts {steps}; the time of a step counts {account}."

    def shown(self) -> dict[str, AnalysisTable]:
        """Return the analyses of the full report that read a kind of profile that the run has.

        An analysis by device is left out if every rank uses one device, and one without rows about an
        activity that the run does not have, such as work on GPUs. Calls of the OS are shown without steps.
        """
        kinds = {content_of(profile.kind) for profile in self.profiles.values()}
        names = FULL_REPORT if self.analyses else ()
        if names and not self.table("steps_summary").count and self.table("os_calls").count:
            names = (*names, "os_calls")
        analyses = ((name, ANALYSES[name]) for name in names)
        candidates = (
            name
            for name, item in analyses
            if item.reads in kinds or (item.map and not item.map_over.reads_profiles)
        )
        return {name: self.table(name) for name in candidates if self._tells(name)}

    def _tells(self, name: str) -> bool:
        """Return whether an analysis is about something that the run has.

        Some are shown only if a rank has several values of a column.
        """
        topics = ANALYSES[name].about
        if topics is not None and not self._has(topics) and not self.table(name).count:
            return False
        column = ANALYSES[name].only_with_several
        if not column:
            return True
        columns = self.table(name).columns
        pairs = set(zip(columns.get("rank", ()), columns.get(column, ()), strict=True))
        return len(pairs) > len({rank for rank, _ in pairs})

    def _has(self, activity: Activity) -> bool:
        if activity is Activity.MPI:
            return self.table("mpi_calls").count > 0
        if activity in (Activity.COINCIDENCE, Activity.MEMORY, Activity.FILES, Activity.COPIES):
            return False
        if activity is Activity.TELEMETRY:
            return self.table("job_resources").count > 0
        return any(profile.devices for profile in self.profiles.values())

    def declared(self, name: str) -> Analysis:
        """Return an analysis; of a run without GPUs, without the empty columns about GPUs."""
        analysis = ANALYSES[name]
        if self._has(Activity.GPU):
            return analysis
        values = self.table(name).columns
        unused = {
            column.name
            for column in analysis.columns
            if _GPU_WORDS.intersection(column.name.split("_")) and not any(values.get(column.name, ()))
        }
        return replace(
            analysis,
            columns=tuple(column for column in analysis.columns if column.name not in unused),
            main_columns=tuple(column for column in analysis.main_columns if column not in unused),
        )


def gather(
    run: Run,
    store: Store,
    status: JobStatus | None,
    threshold: float = COST_PCT,
    unexplained: str = "",
    executor: Executor = serially,
) -> Contents:
    """Gather the contents of a run's report from the store and the run directory.

    A rank whose lateness costs at least ``threshold`` percent of a step is called a straggler.
    ``unexplained`` says why the explanation could not be computed if the store has none. ``executor``
    computes the analyses that nobody has asked for yet.
    """
    profiles = store.profiles(run.id) if store.exists() else {}
    results = read_results(run.outputs())
    ended_badly = status is not None and status.state.ended and status.state is not JobState.COMPLETED
    unprofiled = is_unprofiled(run, store)
    sampled = unprofiled and store.exists() and store.has_run(run.id)
    if not profiles and not results.ranks and not ended_badly and not unprofiled:
        raise HpcprofError(
            f"there is nothing to report on {run.id}: no profile of it has been collected, and there are no "
            f"results in {run.path}."
        )
    unstarted = launch_failure(run) if status is not None and status.state is JobState.FAILED else ""
    warnings = [*preparation_failures(run), *filter(None, [unstarted]), *results.damaged]
    # The explanation of a run that ended without a profile says why.
    is_explained = unprofiled and (run.manifest is None or bool(why_unprofiled(run)))
    if not profiles and not is_explained:
        warnings = [*warnings, _missing_profile_reason(run, store)]
    if run.manifest is not None and profiles:
        missing = [r for r in run.profiled_ranks if r not in profiles]
        if missing:
            warnings = [*warnings, f"no profile collected of {named_ranks(missing)}"]
    unseen_calls = untraced_notes(run) + eztrace_notes(run, profiles.values()) if profiles else []
    losses = store.losses(run.id) if profiles else []
    contents = (content_of(profile.kind) for profile in profiles.values())
    explainable = unprofiled or ProfileContent.TIMELINE in contents
    return Contents(
        run=run,
        status=status,
        failures=failed_ranks(run) if ended_badly else [],
        profiles=profiles,
        analyses=RunTables(run, store, executor, threshold) if profiles or sampled else {},
        results=results.ranks,
        warnings=warnings,
        reporting=partial(command_line, store, "report", run.id),
        threshold=threshold,
        explaining=command_line(store, "explain", run.id) if explainable else "",
        explanation=_explanation(run, store, bool(profiles), unprofiled),
        unexplained=unexplained,
        collect=command_line(store, "collect", typed_run(run)),
        losses=[*unseen_calls, *short_sentences(losses)],
        hides_waits=bool(unseen_calls) or any(loss.kind is LossKind.PAUSE for _, loss in losses),
        gpus=store.gpus(run.id) if profiles else (),
    )


def _explanation(run: Run, store: Store, profiled: bool, unprofiled: bool) -> Explanation | None:
    if unprofiled:
        return explain(run, store)
    stored = kept_explanation(run, store) if profiled else None
    return None if stored is None else with_live_findings(stored, run, store)


def _missing_profile_reason(run: Run, store: Store) -> str:
    """Return the reason why a run has no profile."""
    if run.manifest is not None and not run.manifest.job.profiled_ranks:
        return "the run used no profiler"
    if reason := why_unprofiled(run):
        return reason
    return f"no profile of this run has been collected: run {command_line(store, 'collect', run.id)}"


def sample_sizes(name: str, analyses: Mapping[str, AnalysisTable]) -> str:
    """Return the numbers of operations, steps and ranks behind an analysis.

    Empty where its rows have a column of their own for the number of samples.
    """
    basis = ANALYSES[name].sample_basis if name in ANALYSES else SampleBasis.COLUMNS
    if basis is SampleBasis.RANKS:
        timed_ranks = analyses["step_times"].rows_by_rank
        return f"n: {counted(len(timed_ranks), 'rank')}" if timed_ranks else ""
    ranks: Set[int] = analyses[name].rows_by_rank.keys() if basis is SampleBasis.OPERATIONS else set()
    if not ranks:
        return ""
    counts = [counted(_sum(analyses[table], column, ranks), noun) for table, column, noun in _COUNTS]
    steps = analyses["step_times"].rows_by_rank
    steps = Counter({rank: steps[rank] for rank in ranks if rank in steps})
    return f"n: {' and '.join(counts)} on {counted(len(ranks), 'rank')}, {_steps_per_rank(steps, len(ranks))}"


def _sum(table: AnalysisTable, column: str, ranks: Set[int]) -> int:
    values = table.columns.get(column, ())
    if table.rows_by_rank.keys() <= ranks:
        return sum(values)
    return sum(value for rank, value in zip(table.columns["rank"], values, strict=True) if rank in ranks)


def _steps_per_rank(steps: Counter[int], ranks: int) -> str:
    """Return the number of steps of each rank in words; the same step of several ranks counts once."""
    low, high = (min(steps.values()) if len(steps) == ranks else 0), max(steps.values(), default=0)
    if low < high:
        return f"{low:,} to {counted(high, 'step')} each"
    return counted(high, "step") + (" each" if ranks > 1 else "")
