"""The analyses that span the ranks of a run, computed from what the store has of each rank."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.results.analysis_table import Batches
from hpcprof.results.executors.interface import Executor, serially
from hpcprof.results.store.store import Store


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

    Those that match collectives are computed communicator by communicator. It is the executor that computes
    if the store is a file: no credentials of a server go to other processes.
    """
    from hpcprof.results.at_once import analyze_at_once
    from hpcprof.results.communicators import match_by_communicator

    names = [analysis.name for analysis in ANALYSES.values() if analysis.scope is Scope.RUN]
    is_file = store.url.get_backend_name() == "sqlite"
    found = match_by_communicator(run_id, store, executor if is_file else serially)
    if found is None:
        return {**analyze_at_once(run_id, store, names)}
    return {name: found[name] for name in names}
