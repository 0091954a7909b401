"""Verdicts on runs that stand still."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpcprof.analysis.stalls.evidence import (
    Place,
    ProcessState,
    RankEvidence,
    Side,
    Stall,
    StallKind,
    WaitedFor,
    describe,
)
from hpcprof.analysis.stalls.verdict import judge
from hpcprof.profiles.readers.flight_recorder import CodeLine, Entered, FlightRecord
from hpcprof.profiles.readers.native_stacks import NativeStack

WORLD = (0, 1, 2, 3)
GROUPS = {"world": WORLD, "a": (0, 1), "b": (1, 2), "c": (0, 2)}


def op(
    number: int, *, group: str = "world", name: str = "all_reduce", done: bool = False, **more: Any
) -> Entered:
    """Return an operation of a group."""
    given = {"input_sizes": [[8]], "record_id": number, "time_created_ns": number, **more}
    return Entered((group, ""), f"nccl:{name}", collective_seq_id=number, retired=done, **given)


def record(*operations: Entered, groups: Iterable[str] = GROUPS) -> FlightRecord:
    """Return the record of a rank that has entered some operations."""
    entered: dict[str, int] = {}
    for one in operations:
        if not one.is_p2p:
            entered[one.group] = max(entered.get(one.group, 0), one.collective_seq_id)
    return FlightRecord("2.10", {name: GROUPS[name] for name in groups}, {}, operations, entered)


def verdict(ranks: dict[int, RankEvidence]) -> Stall:
    """Return the verdict, which there is."""
    found = judge(ranks)
    assert found is not None
    assert describe(found)
    return found


def entered(*numbers: int, **more: Any) -> RankEvidence:
    """Return a rank that waits in the last of some operations, and has ended those before."""
    *before, last = numbers
    return RankEvidence(record(*(op(one, done=True) for one in before), op(last)), **more)


LOADER = (
    CodeLine("wait", "/usr/lib/python3.11/threading.py", 320),
    CodeLine("next_batch", "/home/me/train.py", 41),
    CodeLine("main", "/home/me/train.py", 90),
)


def test_a_rank_that_did_not_come_holds_the_others_up() -> None:
    late = RankEvidence(record(op(1, done=True)), LOADER, last_step=7)
    found = verdict({0: entered(1, 2), 1: entered(1, 2), 2: late, 3: entered(1, 2)})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0, 1, 3))
    assert found.collective is not None
    assert (found.collective.name, found.collective.number, found.collective.group) == (
        "all_reduce",
        2,
        "world",
    )
    assert [(one.rank, one.function, one.line) for one in found.where] == [(2, "next_batch", 41)]
    assert found.last_step == 7
    assert "Rank 2 holds the others up in next_batch (train.py:41)." in describe(found)


def test_a_rank_whose_gpu_is_stuck_in_what_others_have_ended_holds_them_up() -> None:
    """It has entered all that the others wait in, but its GPU does not begin it."""
    hangs = RankEvidence(record(op(1), op(2), op(3)))
    absent = RankEvidence(record(op(1, done=True), op(2, done=True)))
    found = verdict({0: entered(1, 2, 3), 1: hangs, 2: absent, 3: entered(1, 2, 3)})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (1, 2), (0, 3))
    # The root of a broadcast ends before the others.
    root = RankEvidence(record(op(1, name="broadcast", done=True), op(2)))
    later = {rank: RankEvidence(record(op(1, name="broadcast"), op(2))) for rank in (1, 2)}
    found = verdict({0: root, **later, 3: RankEvidence(record(op(1, name="broadcast")))})
    assert (found.ranks, found.waiting) == ((3,), (0, 1, 2))


def test_the_kernel_tells_a_stopped_rank_from_a_dead_one() -> None:
    for state, kind in (
        (ProcessState.STOPPED, StallKind.STOPPED),
        (ProcessState.DEAD, StallKind.DEAD),
        (ProcessState.UNREACHABLE, StallKind.DEAD),
    ):
        found = verdict({**{rank: entered(1) for rank in (0, 2, 3)}, 1: RankEvidence(state=state)})
        assert (found.kind, found.ranks, found.waiting) == (kind, (1,), (0, 2, 3))


def test_a_rank_that_ended_well_entered_fewer_operations() -> None:
    ended = RankEvidence(record(op(1, done=True)), state=ProcessState.ENDED)
    found = verdict({**{rank: entered(1, 2) for rank in (0, 1, 2)}, 3: ended})
    assert (found.kind, found.ranks) == (StallKind.DESYNCHRONIZED, (3,))


def test_a_rank_at_the_end_of_the_group_entered_fewer_operations() -> None:
    call = Entered(
        ("world", ""),
        "nccl:all_reduce",
        collective_seq_id=2,
        record_id=2,
        frames=[CodeLine("step", "/home/me/t.py", 4)],
    )
    waiting = {rank: RankEvidence(record(op(1, done=True), call)) for rank in (0, 1, 2)}
    end = meeting("destroy_process_group", 41)
    found = verdict({**waiting, 3: RankEvidence(record(op(1, done=True)), end.stack)})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.DESYNCHRONIZED, (3,), (0, 1, 2))
    assert describe(found) == (
        "The ranks entered different operations as all_reduce, number 2 of group world: ranks 0, 1, 2 "
        "all_reduce in step (t.py:4); rank 3 destroy_process_group in main (t.py:41)."
    )


def test_the_minority_entered_another_operation_under_one_number() -> None:
    other = RankEvidence(record(op(1, done=True), op(2, name="broadcast")))
    found = verdict({**{rank: entered(1, 2) for rank in (0, 1, 2)}, 3: other})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.DESYNCHRONIZED, (3,), (0, 1, 2))
    assert found.collective is not None
    assert [(side.ranks, side.name) for side in found.collective.sides] == [
        ((0, 1, 2), "all_reduce"),
        ((3,), "broadcast"),
    ]


def test_the_minority_entered_another_size_under_one_number() -> None:
    other = RankEvidence(record(op(1, done=True), op(2, input_sizes=[[9]])))
    found = verdict({**{rank: entered(1, 2) for rank in (0, 1, 2)}, 3: other})
    assert (found.kind, found.ranks) == (StallKind.DESYNCHRONIZED, (3,))


def test_other_shapes_of_one_volume_and_uneven_gathers_are_no_mismatch() -> None:
    shapes = [[[2, 4]], [[8]], [[4, 2]], [[8, 1]]]
    same = {rank: RankEvidence(record(op(1, input_sizes=shape))) for rank, shape in enumerate(shapes)}
    assert verdict(same).kind is StallKind.INSIDE
    uneven = {
        rank: RankEvidence(record(op(1, name="all_gather", input_sizes=[[rank + 1]]))) for rank in WORLD
    }
    assert verdict(uneven).kind is StallKind.INSIDE


def test_groups_that_wait_for_each_other_are_a_cycle() -> None:
    found = verdict(
        {
            0: RankEvidence(record(op(1, group="a"))),
            1: RankEvidence(record(op(1, group="b"))),
            2: RankEvidence(record(op(1, group="c"))),
            3: entered(1),
        }
    )
    assert (found.kind, found.ranks, found.waiting) == (StallKind.CYCLE, (0, 1, 2), (3,))


def test_blame_goes_through_groups_to_the_rank_that_waits_for_nobody() -> None:
    # Rank 0 waits for rank 1, which waits for rank 2 in another group.
    found = verdict(
        {
            0: RankEvidence(record(op(1, group="a"))),
            1: RankEvidence(record(op(1, group="b"))),
            2: RankEvidence(record(op(1, done=True)), LOADER),
            3: RankEvidence(record(op(1, done=True), op(2))),
        }
    )
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0, 1, 3))


def test_all_ranks_inside_point_at_the_gpu_that_has_not_begun() -> None:
    begun = {rank: RankEvidence(record(op(1, state="started"))) for rank in (0, 1, 3)}
    found = verdict({**begun, 2: RankEvidence(record(op(1)))})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.INSIDE, (2,), (0, 1, 3))


def test_a_message_waits_for_its_other_end() -> None:
    receive = op(0, name="recv 0<-1", is_p2p=True, p2p_seq_id=3)
    idle = RankEvidence(record(), LOADER)
    found = verdict({0: RankEvidence(record(receive)), 1: idle, 2: idle, 3: idle})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (1,), (0,))
    send = op(0, name="send 1->0", is_p2p=True, p2p_seq_id=5)
    both = {0: RankEvidence(record(receive)), 1: RankEvidence(record(send)), 2: idle, 3: idle}
    assert verdict(both).kind is StallKind.INSIDE


def test_nothing_is_said_of_ranks_that_wait_for_nobody() -> None:
    assert judge({rank: RankEvidence(record(op(1, done=True))) for rank in WORLD}) is None
    assert judge({rank: RankEvidence() for rank in WORLD}) is None


def native(call: str, function: str = "main", **more: Any) -> RankEvidence:
    """Return a rank of which only the native stack is known."""
    return RankEvidence(native=NativeStack(call, CodeLine(function, "/home/me/solver.c", 7)), **more)


def test_without_collectives_of_pytorch_the_calls_of_mpi_tell_who_waits() -> None:
    ranks = {rank: native("MPI_Barrier") for rank in (0, 1, 3)} | {2: native("", "load_batch")}
    found = verdict(ranks)
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0, 1, 3))
    assert describe(found) == (
        "Rank 2 holds the others up in load_batch (solver.c:7). Ranks 0, 1, 3 wait in MPI_Barrier."
    )


def test_a_stopped_rank_of_an_mpi_program_is_told() -> None:
    found = verdict({0: native("MPI_Wait"), 1: native("MPI_Wait", state=ProcessState.STOPPED)})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.STOPPED, (1,), (0,))


def test_ranks_in_different_calls_of_mpi_are_told_with_both_lines() -> None:
    ranks = {0: native("MPI_Recv", "gather")} | {rank: native("MPI_Barrier") for rank in (1, 2, 3)}
    found = verdict(ranks)
    assert (found.kind, found.ranks, found.waiting) == (StallKind.DESYNCHRONIZED, (0,), (1, 2, 3))
    assert describe(found) == (
        "The ranks are in different calls: rank 0 MPI_Recv in gather (solver.c:7); "
        "ranks 1, 2, 3 MPI_Barrier in main (solver.c:7)."
    )


def test_all_ranks_inside_one_call_of_mpi_point_at_the_network() -> None:
    found = verdict(dict.fromkeys(range(2), native("MPI_Alltoall")))
    assert (found.kind, found.ranks, found.waiting) == (StallKind.INSIDE, (0, 1), ())


def test_ranks_that_all_receive_wait_for_each_other() -> None:
    found = verdict(dict.fromkeys(range(2), native("MPI_Recv")))
    assert (found.kind, found.ranks, found.waiting) == (StallKind.CYCLE, (0, 1), ())
    assert describe(found) == "Ranks 0, 1 all wait in MPI_Recv in main (solver.c:7), and none of them sends."
    found = verdict(dict.fromkeys(range(2), native("MPI_Ssend")))
    assert describe(found).endswith("all wait in MPI_Ssend in main (solver.c:7), and none of them receives.")
    assert verdict(dict.fromkeys(range(2), meeting("recv"))).kind is StallKind.CYCLE


def test_a_rank_that_is_left_when_the_others_have_ended_does_not_go_on() -> None:
    """Where it is is unknown in an exit handler of C."""
    ended = RankEvidence(state=ProcessState.ENDED)
    found = verdict({0: ended, 1: RankEvidence(), 2: ended})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (1,), ())
    assert describe(found).startswith("Rank 1 does not go on")


C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WRAPPER = CodeLine("wrapper", "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83)


def meeting(call: str = "init_process_group", line: int = 3) -> RankEvidence:
    """Return a rank that waits in a function of PyTorch, which records no collective there."""
    inner = CodeLine("_store_based_barrier", C10D, 900)
    return RankEvidence(
        stack=(inner, CodeLine(call, C10D, 1700), WRAPPER, CodeLine("main", "/home/me/t.py", line))
    )


def at(function: str, line: int, **more: Any) -> RankEvidence:
    """Return a rank of which only the Python stack is known."""
    return RankEvidence(stack=(CodeLine(function, "/home/me/t.py", line),), **more)


def test_before_the_first_collective_the_stacks_tell_who_has_not_come() -> None:
    others = {rank: meeting() for rank in (0, 1, 3)}
    found = verdict({**others, 2: at("load", 9)})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0, 1, 3))
    assert describe(found) == (
        "Rank 2 holds the others up in load (t.py:9). Ranks 0, 1, 3 wait in init_process_group."
    )
    found = verdict({**others, 2: at("load", 9, state=ProcessState.STOPPED)})
    assert (found.kind, found.ranks) == (StallKind.STOPPED, (2,))
    # It has not imported PyTorch yet.
    found = verdict({**others, 2: RankEvidence()})
    assert (found.kind, found.ranks, found.where) == (StallKind.NEVER_CAME, (2,), ())


def test_ranks_that_meet_in_different_functions_are_told_with_both_lines() -> None:
    found = verdict({0: meeting(), 1: meeting(), 2: meeting("new_group", 5)})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.DESYNCHRONIZED, (2,), (0, 1))
    assert describe(found) == (
        "The ranks are in different calls: ranks 0, 1 init_process_group in main (t.py:3); "
        "rank 2 new_group in main (t.py:5)."
    )


def test_all_ranks_that_meet_in_vain_point_at_the_network() -> None:
    found = verdict(dict.fromkeys(range(2), meeting()))
    assert (found.kind, found.ranks) == (StallKind.INSIDE, (0, 1))
    assert "All ranks are in init_process_group in main (t.py:3)" in describe(found)


def test_without_a_known_call_ranks_elsewhere_than_most_are_to_blame() -> None:
    most = {rank: at("wait_for_file", 4) for rank in (0, 1, 3)}
    found = verdict({**most, 2: at("write", 7)})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (2,), (0, 1, 3))
    assert describe(found) == (
        "Rank 2 holds the others up in write (t.py:7). Ranks 0, 1, 3 wait in wait_for_file (t.py:4)."
    )
    apart = verdict({0: at("read", 4), 1: at("write", 7)})
    assert (apart.kind, apart.ranks, apart.waiting) == (StallKind.DESYNCHRONIZED, (0, 1), ())
    assert "rank 0 read in read (t.py:4); rank 1 write in write (t.py:7)" in describe(apart)


def test_a_rank_that_goes_on_after_the_others_have_ended_is_told_with_them() -> None:
    found = verdict({0: RankEvidence(state=ProcessState.ENDED), 1: at("save", 5)})
    assert (found.kind, found.ranks, found.ended) == (StallKind.NEVER_CAME, (1,), (0,))
    assert describe(found) == "Rank 1 does not go on in save (t.py:5), and rank 0 has ended."


def test_a_single_rank_that_does_not_go_on_is_not_compared_with_others() -> None:
    assert describe(verdict({0: at("consume", 4)})) == "Rank 0 does not go on in consume (t.py:4)."


def test_ranks_in_one_place_wait_for_nobody() -> None:
    found = verdict({0: native(""), 1: native(""), 2: RankEvidence()})
    assert (found.kind, found.ranks, found.waiting) == (StallKind.NEVER_CAME, (0, 1), ())
    assert describe(found) == (
        "Ranks 0, 1 do not go on in main (solver.c:7), and no rank is seen to wait for another."
    )


def test_a_rank_without_a_known_call_is_told_once_with_its_place() -> None:
    where = Place(0, "main", "/home/me/t.py", 7)
    sides = (Side((0,), "main (t.py:7)", (), where), Side((1,), "MPI_Recv", (), where))
    stall = Stall(StallKind.DESYNCHRONIZED, (0,), (1,), WaitedFor("MPI_Recv", 0, "", (), sides))
    assert describe(stall) == (
        "The ranks are in different calls: rank 0 in main (t.py:7); rank 1 MPI_Recv in main (t.py:7)."
    )
