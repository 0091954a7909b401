"""The analyses that a collect leaves to whoever asks first (`Analysis.when_asked`): computed and stored then.

A collect leaves them out of a rank whose timeline it keeps, unless the profile is so small that reading the
timeline again would take longer than the analyses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import HpcprofError, StoreError
from hpcprof.common.units import named_ranks
from hpcprof.results.collect.executors.interface import Executor, Lost, ResultT, TaskT, serially
from hpcprof.results.collect.run_names import find_known_run
from hpcprof.results.collect.step_choice import stored_step_ranges
from hpcprof.results.store.analysis_table import WHOLE_RUN, AnalysisTable
from hpcprof.results.store.store import RunNotes, Store
from hpcprof.runs.directory import Run

if TYPE_CHECKING:  # a report from the store does without
    from hpcprof.profiles.timeline import StepRange, Timeline
    from hpcprof.profiles.timeline_parquet import RankEvents
    from hpcprof.results.collect.executors.processes import Processes
    from hpcprof.results.collect.timelines import Timelines

_PER_ROW = 3e-7
"""The time for a kept event, as a share of the time in which a worker starts."""

Computed = Mapping[int, Mapping[str, AnalysisTable]]
"""Analyses by rank, or `WHOLE_RUN`, and name."""


@dataclass(frozen=True)
class KeptRank:
    """Analyses of a rank to compute from its kept timeline, whose step is ``step_range``."""

    events: RankEvents
    step_range: StepRange
    analyses: tuple[str, ...]


def analyze_kept(task: KeptRank) -> dict[str, AnalysisTable] | None:
    """Return the analyses of a rank by name; None if its timeline is not kept."""
    from hpcprof.results.collect.kept_events import kept_timeline

    timeline = kept_timeline(task.events, task.step_range)
    return None if timeline is None else _analyzed(task, timeline)


def _analyzed(task: KeptRank, timeline: Timeline) -> dict[str, AnalysisTable]:
    from hpcprof.analysis.framework.outcome import analyze_rank

    rank = task.events.rank
    return {
        name: AnalysisTable.from_outcome(analyze_rank(ANALYSES[name], timeline, rank), rank)
        for name in task.analyses
    }


def complete(run: Run, store: Store, names: Iterable[str], executor: Executor = serially) -> Computed:
    """Compute and store those of some analyses that nobody has asked for yet.

    A store that was opened to be read only stays as it is. What was computed is returned. Where the database
    cannot be written, it is not stored; nor is the reason of a rank whose timeline is gone.
    """
    missing = {} if store.read_only else store.unasked(run.id, names)
    if not missing:
        return {}
    events, steps = store.rank_events(run.id), stored_step_ranges(store, run.id)
    of_run = missing.pop(WHOLE_RUN, [])
    tasks = [
        KeptRank(events[rank], steps.step_range(rank), tuple(wanted))
        for rank, wanted in sorted(missing.items())
    ]
    found: dict[int, Mapping[str, AnalysisTable]] = {}
    # To find out the ranks of thousands of files takes seconds.
    profiled = cache(partial(_timelines, run))
    for task, result in executor(analyze_kept, tasks):
        rank = task.events.rank
        tables: Mapping[str, AnalysisTable]
        try:
            tables = result if isinstance(result, dict) else _from_profile(profiled, task, result)
        except HpcprofError as error:
            tables = _unanalyzed(task.analyses, rank, f"rank {rank} was not analyzed", error)
        else:
            # Whoever may only read the database gets the rows too.
            with suppress(StoreError):
                store.put_analyses(run.id, rank, tables, {rank: task.events.sha256})
        found[rank] = tables
    if of_run:
        found[WHOLE_RUN] = _over_ranks(run, store, of_run)
    return found


def _over_ranks(run: Run, store: Store, names: Sequence[str]) -> Mapping[str, AnalysisTable]:
    """Compute and store analyses that span the ranks."""
    from hpcprof.results.collect.over_ranks import analyze_matched

    sha256 = {rank: profile.sha256 for rank, profile in store.profiles(run.id).items()}
    try:
        outcomes = analyze_matched(run.id, store, names)
    except StoreError as error:
        return _unanalyzed(names, WHOLE_RUN, "not computed", error)
    tables = {name: AnalysisTable.from_outcome(outcome) for name, outcome in outcomes.items()}
    with suppress(StoreError):
        store.put_analyses(run.id, WHOLE_RUN, tables, sha256)
    return tables


def _unanalyzed(
    names: Iterable[str], rank: int, what: str, error: HpcprofError
) -> Mapping[str, AnalysisTable]:
    reason = f"{what}: {str(error).rstrip('.')}"
    return {name: AnalysisTable(_no_columns(name), {rank: reason}) for name in names}


def _timelines(run: Run) -> Timelines:
    from hpcprof.results.collect.timelines import find_timelines

    return find_timelines(run)


def _from_profile(
    profiled: Callable[[], Timelines], task: KeptRank, result: Lost | None
) -> dict[str, AnalysisTable]:
    """Return the analyses of a rank whose timeline is not kept from its profile.

    Raises HpcprofError if the profile cannot be read, or the process that should have read the timeline was
    lost.
    """
    if isinstance(result, Lost):
        raise HpcprofError(result.reason)
    timelines = profiled()
    if task.events.rank not in timelines.paths:
        raise HpcprofError("its timeline is not kept, and its profile is gone")
    return _analyzed(task, replace(timelines.read(task.events.rank), step_range=task.step_range))


def _no_columns(name: str) -> dict[str, list[Any]]:
    return {column.name: [] for column in ANALYSES[name].columns}


def stored_analysis(
    name: str, run: Run, store: Store, notes: RunNotes | None = None, executor: Executor = serially
) -> AnalysisTable:
    """Return an analysis of a collected run, of which what nobody has asked for yet is computed.

    ``notes`` is as for `Store.read`.
    """
    computed = complete(run, store, [name], executor)
    table = store.read(run.id, name, None if computed else notes)
    for rank, tables in computed.items():
        new = tables[name]
        if not (table.count if rank == WHOLE_RUN else table.rows_by_rank[rank]):
            columns = {key: [*values, *new.columns[key]] for key, values in table.columns.items()}
            reasons = {other: why for other, why in table.reasons.items() if other != rank}
            table = replace(table, columns=columns, reasons=reasons | new.reasons)
    return table


def _named_in(sql: str) -> set[str]:
    """Return the analyses left to whoever asks first whose tables an SQL names."""
    names = {name.lower() for name in re.findall(r"analysis_(\w+)", sql, re.IGNORECASE)}
    return {name for name in names & ANALYSES.keys() if ANALYSES[name].when_asked}


def complete_tables(sql: str, store: Store, runs_dir: Path, executor: Executor = serially) -> None:
    """Complete the tables that an SQL on the results database names, in all runs."""
    names = _named_in(sql)
    for row in store.runs() if names and store.exists() else ():
        if store.unasked(row.id, names):
            complete(find_known_run(row.id, runs_dir, store), store, names, executor)


def incomplete_tables(sql: str, store: Store) -> list[str]:
    """Return a sentence for each run that lacks rows of a table that an SQL on the results database names."""
    found = []
    names = _named_in(sql)
    for row in store.runs() if names and store.exists() else ():
        lacking = store.unasked(row.id, names)
        if lacking:
            tables = sorted({f"analysis_{name}" for of_rank in lacking.values() for name in of_rank})
            found.append(
                f"{', '.join(tables)} of {row.id} lacks {_lacking(lacking)}: hpcprof query "
                "computes them where the timelines are kept"
            )
    return found


def _lacking(names: Mapping[int, Sequence[str]]) -> str:
    ranks = sorted(names.keys() - {WHOLE_RUN})
    return f"rows of {named_ranks(ranks)}" if ranks else "its rows"


def asked_on_all_cpus(
    function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
) -> Iterator[tuple[TaskT, ResultT | Lost]]:
    """Run the tasks of `complete` in processes of this machine, or in this one where that is as quick."""
    yield from _processes(work=_work_of_kept, if_quicker=True)(function, tasks)


def _work_of_kept(task: KeptRank) -> float:
    """Estimate the work of `analyze_kept`, in starts of a worker."""
    return sum(task.events.written_rows().values()) * _PER_ROW


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
