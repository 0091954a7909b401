"""Serial sections: one rank works while all others wait for it, in work that they do not have."""

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.account.places import NONE, WHOLE_STEP
from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the places in which one rank works alone, and the rank that serves all others."""
    mpi = scene.mpi
    if mpi is None or not scene.graph.is_of_host:
        return
    total, steps = mpi.host_times, scene.graph.steps
    for place, rank in np.argwhere(mpi.serial).tolist():
        where = scene.graph.places[place]
        yield _serial_candidate(scene, where, where, rank, total[place, rank] / steps)
    server = mpi.part.server
    if server != NONE:
        times = total[:, server]
        yield _serial_candidate(
            scene, WHOLE_STEP, scene.mostly_outside_mpi(times), server, times.sum() / steps
        )


def _serial_candidate(scene: Scene, place: str, where: str, rank: int, time: float) -> Candidate:
    return scene.on_its_ranks(
        Candidate(SERIAL_SECTION, where, (rank,), lambda times: scene.removals.host_time(times, place), time)
    )


SERIAL_SECTION = CauseDeclaration(
    name="serial_section",
    title="serial work",
    meaning="one rank works while all others wait for it",
    about="one rank works while all others wait for it, in work that they do not have: reading input, "
    "writing output, a master that serves",
    remedy="Share the work of {where} among the ranks, or let {ranks} do it while the others compute: "
    "parallel input and output (MPI-IO), fewer and larger requests, a second server.",
    candidates=candidates,
    figures=(Figures("mpi_waits", "wait_ns"), Figures("os_calls", "ns_per_step")),
    traits=frozenset({Trait.ALL_RANKS, Trait.LIKE_WAITING, Trait.MAY_BE_WAITING}),
)
