"""Verdicts on MPI programs from native stacks and the calls that profilers recorded."""

from __future__ import annotations

import pytest

from hpcprof.analysis.stalls.evidence import ProcessState, RankEvidence, StallKind, describe
from hpcprof.analysis.stalls.mpi_calls import with_recorded_calls
from hpcprof.analysis.stalls.verdict import judge
from hpcprof.profiles.readers.flight_recorder import CodeLine
from hpcprof.profiles.readers.native_stacks import NativeStack
from tests.unit.analysis.mpi.programs import Program

STALL_NS = 1000
HALVES = {0: "ranks 0,1", 1: "ranks 0,1", 2: "ranks 2,3", 3: "ranks 2,3"}
SOLVE, LOAD = CodeLine("main", "solve.c", 20), CodeLine("load", "solve.c", 6)
BARRIER, REDUCE = ("MPI_Barrier", "Barrier"), ("MPI_Allreduce", "AllReduce")


def program(steps: int = 3) -> tuple[Program, dict[int, int]]:
    """Return a program of which each step has a barrier of all ranks and a reduction of each half."""
    found, clock = Program(4), dict.fromkeys(range(4), 0)
    for rank in range(4):
        ended(found, clock, rank, "MPI_Init")
        for _ in range(steps):
            ended(found, clock, rank, *BARRIER)
            ended(found, clock, rank, *REDUCE)
    return found, clock


def ended(found: Program, clock: dict[int, int], rank: int, name: str, op: str = "", takes: int = 10) -> None:
    """Add the next call of a rank."""
    half = {"comm": HALVES[rank], "ranks": 2} if op == "AllReduce" else {}
    clock[rank] += 20
    found.call(rank, name, clock[rank], clock[rank] + takes, *([{"op": op, **half}] if op else []))


def in_call(call: str) -> RankEvidence:
    return RankEvidence(native=NativeStack(call, SOLVE), state=ProcessState.RUNNING)


LOADS = RankEvidence(native=NativeStack("", LOAD))


def judged(found: Program, ranks: dict[int, RankEvidence]) -> str:
    """Return the verdict in words."""
    stall = judge(with_recorded_calls(ranks, {rank: found.timeline(rank) for rank in ranks}, STALL_NS))
    assert stall is not None
    return f"{stall.kind.value} {list(stall.ranks)}: {describe(stall)}"


def test_blame_follows_the_waits_of_a_communicator_to_the_rank_that_does_not_come() -> None:
    found, clock = program()
    for rank in (0, 1):
        ended(found, clock, rank, *REDUCE)
    barrier, reduction = in_call("MPI_Barrier"), in_call("MPI_Allreduce")
    ranks = {0: barrier, 1: barrier, 2: LOADS, 3: reduction}
    told = judged(found, ranks)
    assert told.startswith(
        "never_came [2]: Rank 2 holds the others up in load (solve.c:6). Ranks 0, 1, 3 wait"
    )
    assert told.endswith(
        "in MPI_Barrier, number 4 of group world. "
        "Rank 2 last ended MPI_Allreduce of ranks 2,3, MPI_Barrier of world, MPI_Allreduce of ranks 2,3."
    )


@pytest.mark.parametrize("recorded", [True, False])
def test_ranks_in_collectives_of_two_communicators_wait_for_each_other(*, recorded: bool) -> None:
    found, clock = program()
    for rank in (0, 1):
        ended(found, clock, rank, *REDUCE)
    if recorded:  # the profiler was stopped before the program
        for rank in range(4):
            ended(found, clock, rank, *(REDUCE if rank == 2 else BARRIER), takes=STALL_NS)
    calls = {rank: in_call("MPI_Allreduce" if rank == 2 else "MPI_Barrier") for rank in range(4)}
    told = judged(found, calls)
    assert told.startswith("cycle [2, 3]: Ranks 2, 3 wait for each other in a cycle of groups")
    assert "Ranks 0, 1 wait for them." in told
    assert "Rank 2 last ended MPI_Allreduce of ranks 2,3, MPI_Barrier of world, MPI_Allreduce" in told


def test_a_recorded_call_that_hangs_has_its_own_communicator() -> None:
    found, clock = program()
    for rank in (0, 1, 3):  # reductions of all ranks, of which there was none before
        clock[rank] += 20
        whole = {"op": "AllReduce", "ranks": 4}
        found.call(rank, "MPI_Allreduce", clock[rank], clock[rank] + STALL_NS, whole)
    told = judged(found, {rank: in_call("MPI_Allreduce") if rank != 2 else LOADS for rank in range(4)})
    assert told.startswith("never_came [2]: ")
    assert "Ranks 0, 1, 3 wait in MPI_Allreduce, number 4 of group world." in told


def test_the_last_calls_may_be_missing_in_the_profile_of_a_rank() -> None:
    found, clock = program()
    ended(found, clock, 2, *BARRIER)
    ended(found, clock, 2, *REDUCE)
    barrier = in_call("MPI_Barrier")
    # Rank 2 has ended collectives that no rank ends alone: the others have too.
    told = judged(found, {0: barrier, 1: barrier, 2: LOADS, 3: in_call("MPI_Allreduce")})
    assert told.startswith("never_came [2]: ")
    assert "number 5 of group world" in told


def test_two_operations_under_one_number_are_both_named() -> None:
    found, _ = program()
    calls = {rank: in_call("MPI_Barrier") for rank in range(4)}
    # Only reductions of halves came before, so these have the communicator of a half.
    calls[3] = in_call("MPI_Allreduce")
    calls[2] = LOADS
    assert judged(found, calls).startswith("never_came [2]: ")
    world = Program(4)
    for rank in range(4):
        world.call(rank, "MPI_Init", 0, 1)
        world.call(rank, "MPI_Barrier", 10, 20, {"op": "Barrier"})
        world.call(rank, "MPI_Allreduce", 30, 40, {"op": "AllReduce"})
    told = judged(
        world, {0: in_call("MPI_Barrier"), **{rank: in_call("MPI_Allreduce") for rank in (1, 2, 3)}}
    )
    assert told.startswith("desynchronized [0]: The ranks entered different operations as ")
    assert (
        "number 3 of group world: rank 0 MPI_Barrier in main (solve.c:20); ranks 1, 2, 3 MPI_Allreduce"
        in told
    )


@pytest.mark.parametrize("lost", ["start", "profile", "communicator"])
def test_without_all_calls_native_stacks_alone_tell(lost: str) -> None:
    found, _ = program()
    ranks = {rank: in_call("MPI_Barrier") for rank in range(4)}
    ranks[1] = in_call("MPI_Bcast" if lost == "communicator" else "MPI_Allreduce")
    if lost == "start":
        found.calls = [one for one in found.calls if one[:2] != (2, "MPI_Init")]
    profiles = {rank: found.timeline(rank) for rank in ranks if lost != "profile" or rank != 3}
    stall = judge(with_recorded_calls(ranks, profiles, STALL_NS))
    assert stall is not None
    assert (stall.kind, stall.ranks) == (StallKind.DESYNCHRONIZED, (1,))
    assert stall.collective is not None
    assert (stall.collective.group, stall.last_calls[0].name) == ("", "MPI_Allreduce")
    assert "The ranks are in different calls: " in describe(stall)
