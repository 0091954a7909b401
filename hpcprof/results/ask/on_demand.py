"""Reads an analysis of one run: from the store, or computed on demand if another package adds it."""

from __future__ import annotations

from dataclasses import replace

from hpcprof.analysis.framework.declaration import Analysis, Scope
from hpcprof.analysis.framework.losses import losses_of
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of, read_profile
from hpcprof.results.ask.when_asked import stored_analysis
from hpcprof.results.collect.executors.interface import Executor, serially
from hpcprof.results.collect.run_names import with_commands
from hpcprof.results.collect.run_profiles import profiles_of
from hpcprof.results.collect.timelines import profile_is_gone
from hpcprof.results.store.analysis_table import WHOLE_RUN, AnalysisTable
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run


def read_or_compute(
    analysis: Analysis, run: Run, store: Store, executor: Executor = serially
) -> AnalysisTable:
    """Return an analysis of a collected run; ``executor`` computes what nobody has asked for yet.

    The store has the built-in analyses, or keeps them from the first time on. An analysis of another package
    is computed from the tables in the store, the timelines that the collect kept, or the profiles, and is not
    stored.
    """
    if analysis.name in ANALYSES:
        return with_commands(stored_analysis(analysis.name, run, store, executor=executor), run, store)
    compute = _over_ranks if analysis.scope is Scope.RUN else _rank_by_rank
    return replace(compute(analysis, run, store), losses=losses_of(analysis, store.losses(run.id)))


def _over_ranks(analysis: Analysis, run: Run, store: Store) -> AnalysisTable:
    from hpcprof.analysis.framework.outcome import Outcome, analyze_run, outcome_from_columns

    needed = {}
    for name in analysis.needs:
        table = stored_analysis(name, run, store)
        rows = outcome_from_columns(ANALYSES[name], table.columns).rows
        needed[name] = Outcome(rows, table.reasons.get(WHOLE_RUN, ""))
    return AnalysisTable.from_outcome(analyze_run(analysis, needed))


def _rank_by_rank(analysis: Analysis, run: Run, store: Store) -> AnalysisTable:
    from hpcprof.analysis.framework.outcome import analyze_rank
    from hpcprof.results.ask.run_inputs import run_data
    from hpcprof.results.collect.profile_ranks import profiles_by_rank

    timelines = analysis.reads is ProfileContent.TIMELINE
    data = run_data(run, store, ())
    columns: dict[str, list[object]] = {column.name: [] for column in analysis.columns}
    reasons: dict[int, str] = {}
    profiles = store.profiles(run.id)
    ranks = [rank for rank, profile in profiles.items() if content_of(profile.kind) is analysis.reads]
    if not ranks:
        reasons[WHOLE_RUN] = f"{analysis.name} needs {analysis.reads.value}, and no rank has one"
    paths = {} if timelines else profiles_by_rank(profiles_of(run)).paths
    for rank in sorted(ranks):
        if not timelines and rank not in paths:
            raise profile_is_gone(run, rank, profiles[rank].file)
        profile = data.read(rank) if timelines else read_profile(paths[rank])
        outcome = analyze_rank(analysis, profile, rank)
        for name, values in outcome.columns().items():
            columns[name] += values
        if outcome.reason:
            reasons[rank] = outcome.reason
    return AnalysisTable(columns, reasons)
