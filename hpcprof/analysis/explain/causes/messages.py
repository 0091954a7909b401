"""Causes in the messages of MPI: small ones, receivers that come late, and receives in the wrong order."""

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Remove, Trait, call_rows
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.profiles.timeline import Floats

MIN_SHARE_OF_MOST = 0.5
"""Minimum ratio of a rank's time to that of the rank with most, for a rank that has the cause too."""


def _small_messages(scene: Scene) -> Iterator[Candidate]:
    mpi, calls = scene.mpi, scene.graph.calls
    if mpi is None or not mpi.follows_small.any():
        return
    where = scene.call_with_most(np.where(mpi.follows_small, mpi.transfer, 0))
    time = np.where(mpi.follows_small, mpi.transfer + calls.gap, 0)
    yield scene.candidate(SMALL_MESSAGES, where, mpi.joined_messages, scene.graph.call_rank, time)


def _reordered_messages(scene: Scene) -> Iterator[Candidate]:
    """Yield the ranks that wait for a message while a later one has come."""
    mpi, graph = scene.mpi, scene.graph
    if mpi is None:
        return
    calls, _, _ = mpi.part.reordered
    waits = np.zeros(len(graph.calls))
    waits[calls] = mpi.part.wait[calls]
    if waits.any():
        ranks = scene.ranks_of_most(graph.call_rank, waits, MIN_SHARE_OF_MOST)
        yield _wait_candidate(scene, WRONG_ORDER, waits, ranks, mpi.in_order_of_sending)


def _late_receivers(scene: Scene) -> Iterator[Candidate]:
    mpi, graph = scene.mpi, scene.graph
    rendezvous = graph.edges.of(EdgeKind.RENDEZVOUS)
    if mpi is None or not len(rendezvous):
        return
    call = graph.edges.row[rendezvous]
    receiver = (graph.edges.source[rendezvous] - 1) // 2
    lateness = np.maximum(graph.calls.start[receiver] - graph.calls.start[call], 0)
    waits = np.zeros(len(graph.calls))
    np.maximum.at(waits, call, lateness)
    ranks = scene.ranks_of_most(graph.call_rank[receiver], lateness, MIN_SHARE_OF_MOST)
    yield _wait_candidate(scene, LATE_RECEIVER, waits, ranks, lambda times: times.without(rendezvous))


def _wait_candidate(
    scene: Scene, cause: CauseDeclaration, waits: Floats, ranks: tuple[int, ...], remove: Remove
) -> Candidate:
    where = scene.call_with_most(waits)
    return scene.candidate(cause, where, remove, scene.graph.call_rank, waits, ranks=ranks)


LATE_RECEIVER = CauseDeclaration(
    name="late_receiver",
    title="late receivers",
    meaning="sends wait for receivers that come late",
    about="sends wait until their receivers come (rendezvous); `ranks` are the receivers",
    remedy="Post the receives of {where} earlier (MPI_Irecv before the work), or send without waiting for "
    "the receiver (MPI_Isend, a larger eager limit).",
    candidates=_late_receivers,
    figures=(Figures("mpi_waits", "wait_ns", lambda table, _: table["pattern"] == "late receiver"),),
    traits=frozenset({Trait.ALL_RANKS, Trait.LIKE_WAITING}),
)

WRONG_ORDER = CauseDeclaration(
    name="wrong_order",
    title="wrong order of messages",
    meaning="receives wait for a message although another one has come",
    about="receives wait for a message although another one has come; the saving is that of receiving in the "
    "order of sending, where nothing is sent in between; `ranks` are the receivers",
    remedy="Receive in {where} what comes first (MPI_Waitany, MPI_ANY_TAG or MPI_ANY_SOURCE), or send the "
    "messages in the order in which they are needed.",
    candidates=_reordered_messages,
    figures=(
        Figures("mpi_waits", "wait_ns", lambda table, _: table["pattern"] == "wrong order of messages"),
    ),
    traits=frozenset({Trait.ALL_RANKS, Trait.LIKE_WAITING}),
    spread=0.3,
)

SMALL_MESSAGES = CauseDeclaration(
    name="small_messages",
    title="small messages",
    meaning="many messages take the time of the latency, not of their bytes",
    about="messages that follow each other to one rank, or collectives, take the time of the latency, not of "
    "their bytes; the saving is that of one message instead",
    remedy="Send less often and more at once: pack what {where} sends to one rank into one message, reduce "
    "several values in one call, or use a neighborhood collective.",
    candidates=_small_messages,
    figures=(Figures("mpi_calls", "calls", call_rows),),
    traits=frozenset({Trait.ALL_RANKS}),
    spread=0.3,
)
