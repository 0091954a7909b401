"""Analyses that span the ranks of a run, from the rows that the store has of all ranks together."""

from __future__ import annotations

from collections.abc import Sequence

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import Outcome, analyze_run, outcome_from_parts
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.results.store.store import Store


def analyze_at_once(run_id: str, store: Store, names: Sequence[str]) -> dict[str, Outcome]:
    """Compute some analyses that span the ranks of a run.

    Parameters
    ----------
    run_id : str
    store : Store
    names : sequence of str
        In the order of their needs: each may need rows of ranks, and those before it.

    Returns
    -------
    dict of str to Outcome
        By name.
    """
    outcomes: dict[str, Outcome] = {}
    for analysis in (ANALYSES[name] for name in names):
        for need in analysis.needs:
            if need not in outcomes and ANALYSES[need].scope is Scope.RANK:
                outcomes[need] = _over_all_ranks(run_id, need, store)
        outcomes[analysis.name] = analyze_run(analysis, outcomes)
    return {name: outcomes[name] for name in names}


def _over_all_ranks(run_id: str, name: str, store: Store) -> Outcome:
    """Return the rows of an analysis on all ranks.

    The store's values become numbers rank by rank: as Python's objects, those of all ranks would take four
    times the memory.
    """
    return outcome_from_parts(ANALYSES[name], store.read_parts(run_id, name))
