"""The analyses that span the ranks of a run, computed from what the store has of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.results.analysis_table import Batches
from hpcprof.results.executors.interface import Executor, serially
from hpcprof.results.store.store import Store

if TYPE_CHECKING:  # pandas is not needed unless a profile has changed
    from hpcprof.analysis.framework.outcome import Outcome


def update_run(run_id: str, store: Store, executor: Executor = serially) -> None:
    """Compute the analyses that span the ranks of a run unless they are stored.

    Should another collect replace a profile in the meantime, they are computed again.
    """
    if store.has_run(run_id):
        return
    while True:
        sha256 = {rank: profile.sha256 for rank, profile in store.profiles(run_id).items()}
        if store.put_run(run_id, analyze_over_ranks(run_id, store, executor), sha256):
            return


def analyze_over_ranks(run_id: str, store: Store, executor: Executor = serially) -> dict[str, Batches]:
    """Compute the analyses that span the ranks of a run.

    Those that match collectives are computed communicator by communicator, by the executor if the store is a
    file: no credentials of a server go to other processes.
    """
    from hpcprof.analysis.framework.outcome import analyze_run
    from hpcprof.results.communicators import match_by_communicator

    analyses = [analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RUN]
    names = [analysis.name for analysis in analyses]
    times = _over_all_ranks(run_id, "step_times", store)
    is_file = store.url.get_backend_name() == "sqlite"
    matched = match_by_communicator(run_id, store, executor if is_file else serially, times.rows)
    found: dict[str, Batches] = {**(matched or {})}
    outcomes = {"step_times": times}
    for analysis in (one for one in analyses if one.name not in found):
        for need in analysis.needs:
            if need not in (*outcomes, *names):
                outcomes[need] = _over_all_ranks(run_id, need, store)
        found[analysis.name] = outcomes[analysis.name] = analyze_run(analysis, outcomes)
    return {name: found[name] for name in names}


def _over_all_ranks(run_id: str, name: str, store: Store) -> Outcome:
    """Return the rows of an analysis on all ranks.

    The store's values become numbers rank by rank: as Python's objects, those of all ranks would take four
    times the memory.
    """
    from hpcprof.analysis.framework.outcome import outcome_from_parts

    return outcome_from_parts(ANALYSES[name], store.read_parts(run_id, name))
