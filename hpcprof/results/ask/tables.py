"""The tables of a run, read from the store or computed on request (`Policy`).

A collect that keeps the timeline of a rank postpones its lazy analyses, unless the profile is so small that
reading the timeline again would take longer than the analyses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpcprof.analysis.collectives.declarations import COST_PCT
from hpcprof.analysis.collectives.verdicts import verdicts_from
from hpcprof.analysis.framework.declaration import Analysis, Policy, Scope
from hpcprof.analysis.framework.losses import losses_of
from hpcprof.analysis.framework.outcome import (
    WHOLE_RUN,
    AnalysisTable,
    analyze_rank,
    analyze_run,
    empty_table,
    joined_tables,
)
from hpcprof.analysis.framework.registry import ANALYSES, find_analysis
from hpcprof.analysis.steps.step_set import StepRule, StepSet, step_set
from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.common.units import named_ranks
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of, read_profile
from hpcprof.results.collect.executors.interface import Executor, Lost, ResultT, TaskT, serially
from hpcprof.results.collect.run_names import command_line, find_known_run, typed_run
from hpcprof.results.collect.run_profiles import profiles_of
from hpcprof.results.collect.step_choice import stored_step_ranges
from hpcprof.results.store.store import RunNotes, Store
from hpcprof.runs.directory import Run

if TYPE_CHECKING:  # a report from the store does without
    import pandas as pd

    from hpcprof.profiles.timeline import StepRange, Timeline
    from hpcprof.profiles.timeline_parquet import RankEvents
    from hpcprof.results.collect.executors.processes import Processes
    from hpcprof.results.collect.timelines import Timelines

_WORK_PER_EVENT = 3e-7
"""Work of the lazy analyses for each kept event, in starts of a worker."""

VERDICTS = ("skew", "skew_summary")
"""Analyses that judge the lateness of ranks."""

EXPLAINED = CRITICAL_PATH, PROFILER_COSTS, SLOWDOWNS = "critical_path", "profiler_cost", "operation_slowdowns"
"""Analyses that are computed with an explanation."""


class RunTables(Mapping[str, AnalysisTable]):
    """The tables of a run by the names of their analyses, each read or computed at its first use.

    The policy of an analysis says where its table is: in the database, in Parquet beside the events, or
    nowhere. ``executor`` computes the lazy ones. A store that was opened read-only is not changed. The tables
    call a late rank a straggler if it costs at least ``threshold`` percent of a step.
    """

    def __init__(
        self, run: Run, store: Store, executor: Executor = serially, threshold: float = COST_PCT
    ) -> None:
        self._run, self._store, self._executor, self._threshold = run, store, executor, threshold
        self._tables: dict[str, AnalysisTable] = {}

    def table(self, name: str) -> AnalysisTable:
        """Return the table of an analysis.

        Raises UsageError if there is no analysis of that name, and HpcprofError if the analysis of a
        plug-in reads a profile that is gone.
        """
        if name not in self._tables:
            analysis = find_analysis(name)
            make = self._compute if analysis.policy is Policy.EACH_TIME else self._stored_table
            table = make(analysis)
            if analysis.steps is not None and table.count and self._step_set is not None:
                table = replace(table, steps=self._step_set(analysis.steps))
            if name in VERDICTS and self._threshold != COST_PCT and table.count:
                costs = table.columns.get("cost_pct") or self["skew_summary"].columns["cost_pct"]
                verdicts = verdicts_from(self._threshold, table.columns["verdict"], costs)
                table = replace(table, values={**table.values, "verdict": verdicts})
            self._tables[name] = table
        return self._tables[name]

    @cached_property
    def _notes(self) -> RunNotes:
        """The gaps of the run. Reading them for all analyses takes no longer than for one."""
        return self._store.notes(self._run.id)

    @cached_property
    def _step_set(self) -> Callable[[frozenset[StepRule]], StepSet] | None:
        """Function that selects the steps of the run by some rules; None for a run without steps."""
        times = self._store.table(self._run.id, "step_times", ("rank", "step")).columns
        by_rank: dict[int, set[int]] = {}
        for rank, step in zip(times["rank"], times["step"], strict=True):
            by_rank.setdefault(rank, set()).add(step)
        numbers = [*by_rank.values()]
        shared = bool(numbers) and set.intersection(*numbers)
        # Ranks without a number in common count their steps from 0.
        step_count = len(set().union(*numbers)) if shared else max(map(len, numbers), default=0)
        rows = self._store.table(self._run.id, "step_kinds").rows
        matched = max(self._store.table(self._run.id, "skew_summary", ("steps",)).columns["steps"], default=0)
        counts = {StepRule.KNOWN_LATENESS: matched, StepRule.REPLAYED: self._replayed_steps()}
        return partial(step_set, rows[0], total=step_count, counts=counts) if rows else None

    def _replayed_steps(self) -> int:
        row = self._store.explanation(self._run.id)
        with suppress(msgspec.MsgspecError, KeyError):
            return int(from_json(row.explanation)["step"]["explained_steps"]) if row else 0
        return 0  # the stored explanation is damaged

    @cached_property
    def frames(self) -> Mapping[str, pd.DataFrame]:
        """The tables as other analyses read them; empty if the run has not been collected."""
        return _Frames(cache(self._frame))

    def complete(self, names: Iterable[str] = ANALYSES) -> Mapping[int, Mapping[str, AnalysisTable]]:
        """Compute and store the lazy analyses that are missing, and return them by rank and name.

        They are not stored if the database is read-only; failures of a rank are never stored.
        """
        missing = {} if self._store.read_only else self._store.uncomputed(self._run.id, names)
        if not missing:
            return {}
        # A report without lazy analyses needs no numpy.
        from hpcprof.results.collect.timelines import find_timelines

        run, store = self._run, self._store
        events, steps = store.rank_events(run.id), stored_step_ranges(store, run.id)
        run_tables = missing.pop(WHOLE_RUN, [])
        tasks = [
            KeptRank(events[rank], steps.step_range(rank), tuple(wanted))
            for rank, wanted in sorted(missing.items())
        ]
        computed: dict[int, Mapping[str, AnalysisTable]] = {}
        # Finding the ranks of thousands of files takes seconds: done once, and only if needed.
        find = cache(partial(find_timelines, run))
        for task, result in self._executor(analyze_kept, tasks):
            rank = task.events.rank
            try:
                tables = result if isinstance(result, dict) else _analyze_profile(find, task, result)
            except HpcprofError as error:
                tables = _not_computed(task.analyses, rank, f"rank {rank} was not analyzed: {error}")
            else:
                # A user who cannot write the database gets the rows too.
                with suppress(StoreError):
                    store.put_analyses(run.id, rank, tables, {rank: task.events.sha256})
            computed[rank] = tables
        if run_tables:
            computed[WHOLE_RUN] = _analyze_over_ranks(run, store, run_tables)
        self.__dict__.pop("_notes", None)
        return computed

    def __getitem__(self, name: str) -> AnalysisTable:
        try:
            return self.table(name)
        except UsageError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        # Compute all lazy analyses at once, so that each timeline is read once.
        self.complete()
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)

    def _stored_table(self, analysis: Analysis) -> AnalysisTable:
        name = analysis.name
        computed = self.complete([name])
        table = self._store.table(self._run.id, name, notes=self._notes)
        for rank, tables in computed.items():
            # Rows that could not be stored are added here.
            if not (table.count if rank == WHOLE_RUN else table.rows_by_rank[rank]):
                reasons = {other: reason for other, reason in table.reasons.items() if other != rank}
                table = joined_tables([replace(table, reasons=reasons), tables[name]])
        # Stored reasons name a command without the run and the database.
        collect = command_line(self._store, "collect", typed_run(self._run)) if table.reasons else ""
        reasons = {rank: _with_command(text, self._run, collect) for rank, text in table.reasons.items()}
        return replace(table, reasons=reasons)

    def _frame(self, name: str) -> pd.DataFrame:
        return (self.table(name) if self._store.exists() else empty_table(ANALYSES[name])).frame

    def _compute(self, analysis: Analysis) -> AnalysisTable:
        over_ranks = analysis.scope is Scope.RUN
        table = analyze_run(analysis, self) if over_ranks else self._rank_by_rank(analysis)
        return replace(table, losses=losses_of(analysis, self._store.losses(self._run.id)))

    def _rank_by_rank(self, analysis: Analysis) -> AnalysisTable:
        from hpcprof.results.collect.profile_ranks import profiles_by_rank
        from hpcprof.results.collect.timelines import profile_is_gone, timeline_reader

        timelines = analysis.reads is ProfileContent.TIMELINE
        profiles = self._store.profiles(self._run.id)
        ranks = [rank for rank, profile in profiles.items() if content_of(profile.kind) is analysis.reads]
        if not ranks:
            reason = f"{analysis.name} needs {analysis.reads.value}, and no rank has one"
            return empty_table(analysis, {WHOLE_RUN: reason})
        read_timeline = timeline_reader(self._run, self._store)
        paths = {} if timelines else profiles_by_rank(profiles_of(self._run)).paths
        tables = []
        for rank in sorted(ranks):
            if not timelines and rank not in paths:
                raise profile_is_gone(self._run, rank, profiles[rank].file)
            profile = read_timeline(rank) if timelines else read_profile(paths[rank])
            tables.append(analyze_rank(analysis, profile, rank))
        return joined_tables(tables)


class _Frames(Mapping[str, "pd.DataFrame"]):
    def __init__(self, read: Callable[[str], pd.DataFrame]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


def _with_command(reason: str, run: Run, collect: str) -> str:
    for command in (f"hpcprof collect {run.path}", "hpcprof collect"):
        if command in reason:
            return reason.replace(command, collect)
    return reason


class KeptRank(msgspec.Struct, frozen=True):
    """Analyses of a rank to compute from its kept timeline, whose step is ``step_range``."""

    events: RankEvents
    step_range: StepRange
    analyses: tuple[str, ...]


def analyze_kept(task: KeptRank) -> dict[str, AnalysisTable] | None:
    """Return the analyses of a rank by name; None if its timeline is not kept."""
    from hpcprof.results.collect.kept_events import kept_timeline

    timeline = kept_timeline(task.events, task.step_range)
    return None if timeline is None else _analyze(task, timeline)


def _analyze(task: KeptRank, timeline: Timeline) -> dict[str, AnalysisTable]:
    return {name: analyze_rank(ANALYSES[name], timeline, task.events.rank) for name in task.analyses}


def _analyze_over_ranks(run: Run, store: Store, names: Sequence[str]) -> Mapping[str, AnalysisTable]:
    from hpcprof.results.collect.over_ranks import analyze_lazy_over_ranks

    sha256 = {rank: profile.sha256 for rank, profile in store.profiles(run.id).items()}
    try:
        tables = analyze_lazy_over_ranks(run.id, store, names)
    except StoreError as error:
        return _not_computed(names, WHOLE_RUN, f"not computed: {error}")
    with suppress(StoreError):
        store.put_analyses(run.id, WHOLE_RUN, tables, sha256)
    return tables


def _not_computed(names: Iterable[str], rank: int, reason: str) -> dict[str, AnalysisTable]:
    return {name: empty_table(ANALYSES[name], {rank: reason.rstrip(".")}) for name in names}


def _analyze_profile(
    find: Callable[[], Timelines], task: KeptRank, result: Lost | None
) -> dict[str, AnalysisTable]:
    """Analyze a rank from its profile, because its timeline is not kept.

    Raises HpcprofError if the profile cannot be read, or the process that read the timeline was
    lost.
    """
    if isinstance(result, Lost):
        raise HpcprofError(result.reason)
    timelines = find()
    if task.events.rank not in timelines.paths:
        raise HpcprofError("its timeline is not kept, and its profile is gone")
    return _analyze(task, replace(timelines.read(task.events.rank), step_range=task.step_range))


def _lazy_tables_in(sql: str, store: Store) -> Iterator[tuple[str, Mapping[int, Sequence[str]]]]:
    """Yield each run that lacks lazy tables which an SQL query names, with these tables by rank."""
    named = {name.lower() for name in re.findall(r"analysis_(\w+)", sql, re.IGNORECASE)}
    names = [name for name in named & ANALYSES.keys() if ANALYSES[name].policy is Policy.LAZY]
    for row in store.runs() if names and store.exists() else ():
        if lacking := store.uncomputed(row.id, names):
            yield row.id, lacking


def complete_tables(sql: str, store: Store, runs_dir: Path, executor: Executor = serially) -> None:
    """Complete the tables that an SQL query on the results database names, in all runs."""
    for run_id, lacking in _lazy_tables_in(sql, store):
        names = {name for rank_names in lacking.values() for name in rank_names}
        RunTables(find_known_run(run_id, runs_dir, store), store, executor).complete(names)


def incomplete_tables(sql: str, store: Store) -> list[str]:
    """Return a sentence for each run that lacks rows of the tables that an SQL query names."""
    listed = []
    for run_id, lacking in _lazy_tables_in(sql, store):
        tables = sorted({f"analysis_{name}" for rank_names in lacking.values() for name in rank_names})
        ranks = sorted(lacking.keys() - {WHOLE_RUN})
        rows = f"rows of {named_ranks(ranks)}" if ranks else "its rows"
        listed.append(
            f"{', '.join(tables)} of {run_id} lacks {rows}: hpcprof query computes them where the timelines "
            "are kept"
        )
    return listed


def lazy_on_all_cpus(
    function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
) -> Iterator[tuple[TaskT, ResultT | Lost]]:
    """Compute lazy analyses in processes of this machine, or in this process if that is no slower."""

    def work(task: KeptRank) -> float:
        return sum(task.events.written_rows().values()) * _WORK_PER_EVENT

    yield from _processes(work=work, if_quicker=True)(function, tasks)


def on_all_cpus(
    function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
) -> Iterator[tuple[TaskT, ResultT | Lost]]:
    """Run tasks in processes of this machine, an executor for commands; a single one runs in this process."""
    yield from _processes()(function, tasks)


def _processes(**settings: Any) -> Processes:
    from hpcprof.results.collect.executors.planning import usable_cpus
    from hpcprof.results.collect.executors.processes import Processes
    from hpcprof.results.collect.rank_task import PRELOAD

    return Processes(usable_cpus(), PRELOAD, **settings)
