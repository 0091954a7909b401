"""Calls of MPI of programs with work on GPUs are replayed: hosts wait for each other, and GPUs for hosts."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.changes import parse_changes
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.explain.whatif import predict
from hpcprof.profiles.timeline import Category
from tests.unit.analysis.explain.programs import (
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Mpi,
    Place,
    Wait,
    inputs_of,
    simulate,
)

STEPS, RANKS = 12, 4

Programs = list[list[Instruction]]


def solver(
    late: int = -1,
    by: int = 0,
    transfer: int = 20 * US,
    slower: int = 0,
    copies: bool = False,
    independent: bool = False,
) -> Programs:
    """Return a solver: kernels, then a reduction by MPI, by way of the host's memory if it ``copies``.

    One rank may be ``late`` by time on its host, or by kernels that are ``slower``. If ``independent``, a
    kernel that does not need the result runs beside the reduction.
    """
    copy = Launch(50 * US, name="copy", category=Category.MEM, blocks=True)
    found: Programs = []
    for rank in range(RANKS):
        mine = rank == late
        kernels = tuple(Launch((1000 + 7 * rank + slower * mine) * US) for _ in range(6))
        host = (Host((by if mine else 0) + 300 * US),)
        hides = (Launch(5 * MS),) if independent else ()
        reduce = (*((copy,) if copies else (Wait(),)), *hides, Mpi(transfer), *((copy,) if copies else ()))
        found.append([Place("assemble", host), Place("solve", kernels), Place("reduce", reduce)])
    return found


def elapsed(programs: Programs) -> float:
    """Return the time per step in ns."""
    moments = []
    for timeline in simulate(programs, STEPS).values():
        starts = np.sort(timeline.kernels.start[timeline.strings[timeline.kernels.name] == "gemm"])
        moments.append(starts[:: len(starts) // STEPS])
    fronts = np.max(moments, axis=0)
    return float(fronts[-1] - fronts[0]) / (STEPS - 1)


def explained(programs: Programs) -> Explanation:
    return explain_run(inputs_of(simulate(programs, STEPS)))[0]


@pytest.mark.parametrize(
    ("planted", "clean", "cause", "ranks", "where"),
    [
        (solver(2, 4 * MS), solver(), Cause.LATE_RANK_HOST, (2,), "assemble"),
        (solver(1, slower=700), solver(), Cause.LATE_RANK_GPU, (1,), "solve"),
        (solver(transfer=3 * MS), solver(), Cause.EXPOSED_COMMUNICATION, (0, 1, 2, 3), "MPI_Allreduce"),
        (
            solver(transfer=3 * MS, copies=True),
            solver(copies=True),
            *(Cause.EXPOSED_COMMUNICATION, (0, 1, 2, 3), "MPI_Allreduce"),
        ),
        (solver(2, 4 * MS, copies=True), solver(copies=True), Cause.LATE_RANK_HOST, (2,), "assemble"),
    ],
    ids=["late host", "late GPU", "exposed", "exposed through the host", "late host, copies"],
)
def test_the_first_finding_is_what_was_planted_at_its_price(
    planted: Programs, clean: Programs, cause: Cause, ranks: tuple[int, ...], where: str
) -> None:
    first = explained(planted).shown()[0]
    assert (first.cause, first.ranks, first.where) == (cause, ranks, where)
    assert first.saving_ns == pytest.approx(elapsed(planted) - elapsed(clean), rel=0.1)
    assert first.evidence


@pytest.mark.parametrize("copies", [False, True])
def test_a_balanced_program_claims_no_late_rank_and_no_exposed_communication(copies: bool) -> None:
    found = explained(solver(copies=copies))
    blamed = {one.cause for one in found.shown()}
    assert not blamed & {Cause.LATE_RANK_HOST, Cause.LATE_RANK_GPU, Cause.EXPOSED_COMMUNICATION}
    assert found.step.replay_error_pct is not None
    assert found.step.replay_error_pct < 0.5


def test_communication_beside_kernels_costs_nothing() -> None:
    found = explained(solver(transfer=3 * MS, independent=True))
    assert Cause.EXPOSED_COMMUNICATION not in {one.cause for one in found.shown()}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("rank:2=median", solver()),
        ("mpi:MPI_Allreduce*100", solver(2, 4 * MS, transfer=2 * MS)),
        ("range:assemble*0.5@2", solver(2, 1850 * US)),
    ],
)
def test_a_what_if_predicts_the_program_with_these_times(change: str, changed: Programs) -> None:
    found = predict(inputs_of(simulate(solver(2, 4 * MS), STEPS)), parse_changes([change]))
    assert found.elapsed_ns == pytest.approx(elapsed(changed), rel=0.02)
