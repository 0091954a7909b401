"""Serial sections: one rank works while all others wait for it, in work that they do not have."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcprof.analysis.account.places import NONE, WHOLE_STEP
from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, delays


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the places in which one rank works alone, and the rank that serves all others."""
    mpi, graph = scene.mpi, scene.graph
    if mpi is None or not graph.is_of_host:
        return
    total = mpi.host_times
    alone = [
        (graph.places[place], graph.places[place], rank, total[place, rank])
        for place, rank in np.argwhere(mpi.serial).tolist()
    ]
    if (server := mpi.part.server) != NONE:
        times = total[:, server]
        alone.append((WHOLE_STEP, scene.mostly_outside_mpi(times), server, times.sum()))
    for place, where, rank, time in alone:
        remove = partial(scene.removals.host_time, place=place)
        yield scene.on_its_ranks(Candidate(SERIAL_SECTION, where, (rank,), remove, time / graph.steps))


SERIAL_SECTION = CauseDeclaration(
    name="serial_section",
    title="serial work",
    meaning="one rank works while all others wait for it",
    about="one rank works while all others wait for it, in work that they do not have: reading input, "
    "writing output, a master that serves",
    remedy="Share the work of {where} among the ranks, or let {ranks} do it while the others compute: "
    "parallel input and output (MPI-IO), fewer and larger requests, a second server.",
    candidates=candidates,
    figures=(Figures("mpi_waits", "wait_ns", delays), Figures("os_calls", "ns_per_step")),
    traits=frozenset({Trait.ALL_RANKS, Trait.LIKE_WAITING, Trait.MAY_BE_WAITING}),
)
