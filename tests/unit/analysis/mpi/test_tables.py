"""Waits, messages and efficiencies of programs whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.collectives.common_clock import connect
from hpcprof.analysis.mpi import efficiencies
from hpcprof.analysis.mpi.matching import aligned_by_mpi
from tests.unit.analysis.mpi.programs import Program, receive, run_lists, send


def waits(program: Program) -> list[tuple[Any, ...]]:
    table = program.tables()["mpi_waits"].rows
    names = ["rank", "call", "pattern", "wait_ns", "delaying_rank", "delaying_range"]
    return list(table[names].itertuples(index=False, name=None)) if len(table) else []


def pop(program: Program, scope: str = "run") -> dict[str, float]:
    rows = program.tables()["pop"].rows
    row = rows[rows["scope"] == scope].iloc[0]
    names = ("load_balance", "communication_efficiency", "serialization_efficiency", "transfer_efficiency")
    return {name: row[f"{name}_pct"] for name in ("parallel_efficiency", *names)}


def late_sender() -> Program:
    program = Program(2, ahead={1: 7_000_000})
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
    program.call(0, "MPI_Send", 110, 120, send(1))
    program.call(1, "MPI_Recv", 30, 125, receive(0))
    for rank in range(2):
        program.call(rank, "MPI_Finalize", 150, 160)
    return program


def test_a_receive_waits_until_its_late_sender_begins() -> None:
    assert waits(late_sender()) == [(1, "MPI_Recv", "late sender", 80, 0, "between MPI_Init and MPI_Send")]


def test_the_range_that_delays_is_the_one_in_which_the_late_rank_worked() -> None:
    program = late_sender()
    program.ranges.append((0, "assembly", 12, 105))
    assert waits(program)[0][-1] == "assembly"


def test_a_rank_that_comes_late_to_its_first_call_is_late_before_it() -> None:
    program = Program(2)
    for rank, start in enumerate((10, 90)):
        program.call(rank, "MPI_Barrier", start, 100, {"op": "Barrier"})
    assert waits(program) == [(0, "MPI_Barrier", "wait at barrier", 80, 1, "before MPI_Barrier")]


def test_a_send_waits_for_a_late_receiver_only_where_it_is_blocked() -> None:
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
    program.call(0, "MPI_Send", 20, 25, send(1))
    program.call(1, "MPI_Recv", 60, 65, receive(0))
    program.call(0, "MPI_Send", 70, 130, send(1))
    program.call(1, "MPI_Recv", 120, 131, receive(0))
    assert [one[:5] for one in waits(program)] == [(0, "MPI_Send", "late receiver", 50, 1)]
    # One that ends shortly before its receive begins was blocked: clocks agree to some microseconds.
    program.call(0, "MPI_Send", 140, 198, send(1))
    program.call(1, "MPI_Recv", 200, 201, receive(0))
    assert [one[:5] for one in waits(program)] == [(0, "MPI_Send", "late receiver", 50 + 58, 1)]


@pytest.mark.parametrize(
    ("call", "pattern"), [("MPI_Recv", "wrong order of messages"), ("MPI_Waitany", "late sender")]
)
def test_a_receive_waits_for_the_wrong_message_while_another_is_there(call: str, pattern: str) -> None:
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
    program.call(0, "MPI_Send", 15, 20, send(1, tag=1))
    program.call(0, "MPI_Send", 80, 85, send(1, tag=2))
    program.call(1, call, 30, 90, receive(0, tag=2))
    program.call(1, "MPI_Recv", 91, 95, receive(0, tag=1))
    assert [one[:5] for one in waits(program)] == [(1, call, pattern, 50, 0)]


def test_a_rank_that_receives_from_any_source_has_no_wrong_order() -> None:
    def patterns(senders: list[int]) -> set[str]:
        program = Program(4)
        for rank in range(4):
            program.call(rank, "MPI_Init", 0, 10)
        for at, sender in enumerate(senders):
            # Each second message begins to be sent before the one that is received before it.
            sent = 100 * at + (60 if at % 2 == 0 else -80)
            program.call(sender, "MPI_Send", 1000 + sent, 1000 + sent + 5, send(0))
            program.call(0, "MPI_Recv", 1000 + 100 * at, 1070 + 100 * at, receive(sender))
        return {wait[2] for wait in waits(program)}

    for senders in ([1, 2, 3] * 4, [1, 1, 2] * 4, [1, 1, 1, 2, 2, 2] * 3):
        assert "wrong order of messages" in patterns(senders)
    assert patterns([1, 2, 3, 1, 3, 2, 2, 1, 3, 3, 2, 1]) == {"late sender"}


def test_a_call_that_waits_for_unrecorded_messages_is_no_cause() -> None:
    def causes(call: str) -> set[tuple[int | None, str | None]]:
        program = Program(2)
        program.everywhere("MPI_Barrier", "Barrier", [0, 0], 20)
        program.call(0, call, 22, 100)
        program.everywhere("MPI_Barrier", "Barrier", [101, 21], 110)
        return {wait[4:] for wait in waits(program)}

    assert causes("MPI_Put") == {(0, "MPI_Put")}
    assert causes("MPI_Waitall") == causes("MPI_Sendrecv") == causes("MPI_Comm_split") == {(None, None)}


def test_a_late_rank_makes_all_others_wait_at_the_barrier() -> None:
    program = Program(3)
    program.everywhere("MPI_Barrier", "Barrier", [0, 0, 0], 5)
    program.everywhere("MPI_Barrier", "Barrier", [40, 10, 90], 100)
    assert [one[:5] for one in waits(program)] == [
        (0, "MPI_Barrier", "wait at barrier", 50, 2),
        (1, "MPI_Barrier", "wait at barrier", 80, 2),
    ]


def test_ranks_that_leave_a_collective_later_than_the_first_complete_it() -> None:
    program = Program(2)
    program.call(0, "MPI_Allreduce", 0, 30, {"op": "AllReduce", "bytes": 8})
    program.call(1, "MPI_Allreduce", 20, 50, {"op": "AllReduce", "bytes": 8})
    assert [one[:5] for one in waits(program)] == [
        (0, "MPI_Allreduce", "wait at N to N", 20, 1),
        (1, "MPI_Allreduce", "completion", 20, None),
    ]


def test_only_the_root_of_a_reduction_waits_and_only_the_others_of_a_broadcast() -> None:
    program = Program(3)
    for rank, (start, end) in enumerate(((10, 75), (60, 66), (70, 74))):
        program.call(rank, "MPI_Reduce", start, end, {"op": "Reduce", "root": 0, "bytes": 8})
    for rank, (start, end) in enumerate(((140, 145), (100, 146), (142, 147))):
        program.call(rank, "MPI_Bcast", start, end, {"op": "Broadcast", "root": 0, "bytes": 8})
    assert [one[:5] for one in waits(program)] == [
        (0, "MPI_Reduce", "early reduce", 60, 2),
        (1, "MPI_Bcast", "late broadcast", 40, 0),
    ]


def test_the_root_of_a_broadcast_that_records_none_follows_from_the_times() -> None:
    program = Program(3)
    for begin, starts, ends in ((0, (10, 50, 20), (52, 51, 53)), (1_000, (10, 20, 90), (22, 21, 91))):
        for rank, (start, end) in enumerate(zip(starts, ends, strict=True)):
            broadcast = {"op": "Broadcast", "bytes": 8, "end": begin + end, "wait": end - start - 2}
            program.call(rank, "MPI_Ibcast", begin + start, begin + start + 1, broadcast)
            program.call(rank, "MPI_Wait", begin + start + 2, begin + end)
    # Rank 1 is late; then rank 2 comes last, when the others have left.
    assert {(one[0], *one[2:5]) for one in waits(program)} == {
        (0, "late broadcast", 38, 1),
        (2, "late broadcast", 28, 1),
        (0, "late broadcast", 8, 1),
    }


@pytest.mark.parametrize("rotates", [False, True])
def test_the_root_of_a_nonblocking_broadcast_waits_for_the_last_rank_to_complete_it(rotates: bool) -> None:
    """Rank 2 comes late to take the data of the root, which nothing records; then all reduce."""
    program = Program(4)
    for step in range(6):
        root = (1, 0, 3)[step % 3] if rotates else 1
        for rank in range(4):
            begin = 10_000_000 * step + (3, 1, 4, 2)[rank] * 1_000
            comes = begin + (6_000_000 if rank == 2 else 1_000_000)
            end = 10_000_000 * step + 6_020_000 if rank in (root, 2) else comes + 5_000
            call = {"op": "Broadcast", "bytes": 8, "end": end, "wait": end - comes}
            program.call(rank, "MPI_Ibcast", begin, begin + 500, call)
            program.call(rank, "MPI_Wait", comes, end)
            program.call(
                rank, "MPI_Allreduce", end + 1_000, 10_000_000 * step + 6_030_000, {"op": "AllReduce"}
            )
    found = waits(program)
    held = {(rank, pattern) for rank, call, pattern, *_ in found if call == "MPI_Wait"}
    assert held == (set() if rotates else {(1, "late receiver")})
    if not rotates:
        assert {cause for *_, cause, _ in found if cause is not None} == {2}


def test_scans_wait_for_ranks_before_and_blocked_givers_for_the_root() -> None:
    program = Program(3)
    for rank, (start, end) in enumerate(((10, 12), (60, 66), (20, 74))):
        program.call(rank, "MPI_Scan", start * 1000, end * 1000, {"op": "Scan", "bytes": 8})
    for rank, (start, end) in enumerate(((190, 195), (100, 193), (142, 147))):
        program.call(rank, "MPI_Gather", start * 1000, end * 1000, {"op": "Gather", "root": 0, "bytes": 8})
    assert [one[:5] for one in waits(program)] == [
        (1, "MPI_Gather", "late receiver", 90_000, 0),
        (2, "MPI_Scan", "wait at N to N", 40_000, 1),
    ]


def test_a_delay_is_followed_through_a_chain_of_messages_to_its_root() -> None:
    program = Program(3)
    program.everywhere("MPI_Barrier", "Barrier", [0, 0, 0], 10)
    # Rank 0 works longer; the others work 10 ns each, and rank 2 waits for rank 1, which waited for rank 0.
    program.call(0, "MPI_Send", 110, 112, send(1))
    program.call(1, "MPI_Recv", 20, 113, receive(0))
    program.call(1, "MPI_Send", 123, 125, send(2))
    program.call(2, "MPI_Recv", 30, 126, receive(1))
    program.ranges.append((0, "slow part", 11, 109))
    assert waits(program) == [
        (1, "MPI_Recv", "late sender", 90, 0, "slow part"),
        (2, "MPI_Recv", "late sender", 93, 0, "slow part"),
    ]


def left_between_isend_and_wait() -> Program:
    """Return a program whose rank 0 works long after it has begun a message that moves only inside MPI."""
    program = Program(3)
    program.everywhere("MPI_Barrier", "Barrier", [0, 0, 0], 10)
    program.call(0, "MPI_Isend", 12, 14, send(1, end=112, wait=12))
    program.call(1, "MPI_Irecv", 12, 14, receive(0, end=113, wait=83))
    program.call(0, "MPI_Wait", 100, 112)
    program.call(1, "MPI_Wait", 30, 113)
    program.everywhere("MPI_Allreduce", "AllReduce", [115, 116, 40], 120)
    return program


def test_a_receive_waits_for_a_sender_that_has_left_mpi_before_its_message_was_over() -> None:
    program = left_between_isend_and_wait()
    assert (1, "MPI_Wait", "late sender", 70, 0, "between MPI_Isend and MPI_Wait") in waits(program)
    # The message moves in the 13 ns from the return of rank 0 on.
    assert program.tables()["mpi_matrix"].rows["transfer_ns"].tolist() == [13]


def test_a_receive_waits_for_a_sender_that_comes_late_and_leaves_mpi_again() -> None:
    program = left_between_isend_and_wait()
    program.calls = [(r, n, 40, 42) if n == "MPI_Isend" else (r, n, s, e) for r, n, s, e in program.calls]
    for one in program.operations:
        if one["end"] == 112:
            one.update(start=40)
    assert (1, "MPI_Wait", "late sender", 70, 0, "between MPI_Isend and MPI_Wait") in waits(program)


@pytest.mark.parametrize(("answers", "pattern"), [(False, "wrong order of messages"), (True, "late sender")])
def test_only_single_receives_with_no_send_in_between_are_in_the_wrong_order(
    answers: bool, pattern: str
) -> None:
    """Rank 1 takes a late message before one that was sent early, or after a message of its own."""
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
    program.call(0, "MPI_Send", 15, 20, send(1, tag=1))
    program.call(0, "MPI_Send", 80, 85, send(1, tag=2))
    program.call(1, "MPI_Recv", 30, 90, receive(0, tag=2))
    if answers:
        program.call(1, "MPI_Send", 90, 91, send(0, tag=3))
        program.call(0, "MPI_Recv", 90, 92, receive(1, tag=3))
    program.call(1, "MPI_Recv", 93, 95, receive(0, tag=1))
    assert (1, "MPI_Recv", pattern, 50, 0) in [one[:5] for one in waits(program)]


def test_a_chain_leads_through_a_wait_for_such_a_sender() -> None:
    # Rank 1 is the last in the reduction, because it waited for rank 0.
    found = waits(left_between_isend_and_wait())
    assert (2, "MPI_Allreduce", "wait at N to N", 76, 0, "between MPI_Isend and MPI_Wait") in found


def test_a_transfer_that_ends_long_after_its_sender_came_back_did_not_wait_for_that() -> None:
    program = left_between_isend_and_wait()
    program.calls = [(r, n, s, 180 if e == 113 else e) for r, n, s, e in program.calls[:-3]]
    for one in program.operations:
        if one["end"] == 113:
            one.update(end=180, wait=150)
    assert waits(program) == []


def test_messages_match_by_tag_and_order_and_the_rest_is_counted() -> None:
    program = Program(2)
    program.call(0, "MPI_Send", 10, 11, send(1, tag=1))
    program.call(0, "MPI_Send", 20, 21, send(1, tag=2))
    program.call(0, "MPI_Send", 30, 31, send(1, tag=3))
    program.call(1, "MPI_Recv", 40, 41, receive(0, tag=2))
    program.call(1, "MPI_Recv", 50, 51, receive(0, tag=1))
    found = program.matched()
    assert found.operations.partner.tolist() == [4, 3, -1, 1, 0]
    assert found.unmatched.problems() == ["sends and receives without a match: 1"]


def test_the_matrix_has_the_messages_and_nodes_of_each_pair() -> None:
    program = Program(4)
    program.call(0, "MPI_Isend", 10, 11, send(3, end=40, wait=5))
    program.call(0, "MPI_Wait", 35, 40)
    program.call(3, "MPI_Recv", 5, 25, receive(0))
    rows = program.tables()["mpi_matrix"].rows.to_dict("records")
    assert rows == [
        {
            **{"sender": 0, "receiver": 3, "sender_node": "node0", "receiver_node": "node1"},
            **{"messages": 1, "bytes": 100, "transfer_ns": 15},
        }
    ]


def test_the_transfer_of_a_message_has_no_waiting_for_other_senders_of_its_call() -> None:
    program = Program(3)
    program.call(0, "MPI_Send", 1, 2, send(1))
    program.call(2, "MPI_Send", 90, 91, send(1))
    program.call(1, "MPI_Irecv", 3, 4, receive(0, end=100, wait=10))
    program.call(1, "MPI_Irecv", 5, 6, receive(2, end=100, wait=10))
    program.call(1, "MPI_Waitall", 10, 100)
    assert program.tables()["mpi_matrix"].rows["transfer_ns"].tolist() == [10, 10]


def test_a_matrix_without_valid_records_names_the_calls_that_send() -> None:
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Barrier", 0, 10)
    assert program.tables()["mpi_matrix"].reason == "no messages between ranks"
    program.call(0, "MPI_Send", 20, 25)
    program.call(1, "MPI_Recv", 20, 25)
    assert program.tables()["mpi_matrix"].reason == (
        "no valid record of a message between ranks, though the program calls MPI_Recv, MPI_Send"
    )


@pytest.fixture
def mixed() -> Program:
    """Return steps of three ranks with messages, reductions and a slow rank."""
    program = Program(3, ahead={1: 5_000, 2: -3_000})
    for rank in range(3):
        program.call(rank, "MPI_Init", 0, 100)
    now = 100
    for step in range(12):
        work = [1_000, 1_000, 1_000 + 500 * (step % 2)]
        for rank in range(3):
            program.ranges.append((rank, "step", now, now + 1_700))
        low, high = (1, 2) if step % 3 else (2, 1)
        program.call(high, "MPI_Isend", now + 10, now + 20, send(low, end=now + work[high] + 30, wait=10))
        program.call(low, "MPI_Recv", now + 15, now + 60, receive(high))
        program.call(high, "MPI_Wait", now + work[high] + 20, now + work[high] + 30)
        for rank in range(3):
            start = now + work[rank] + 60
            program.call(rank, "MPI_Allreduce", start, now + 1_660 + rank, {"op": "AllReduce", "bytes": 8})
        now += 1_700
    for rank in range(3):
        program.call(rank, "MPI_Finalize", now, now + 10)
    return program


def test_the_time_of_calls_is_their_waits_and_their_transfer_to_the_nanosecond(mixed: Program) -> None:
    tables = mixed.tables()
    calls, found = tables["mpi_calls"].rows, tables["mpi_waits"].rows
    assert (calls["total_ns"] == calls["wait_ns"] + calls["transfer_ns"]).all()
    assert (calls["transfer_ns"] >= 0).all()
    both = pd.concat(
        [
            one.groupby(["rank", "call"])["wait_ns"].sum().rename(name)
            for name, one in (("calls", calls), ("waits", found))
        ],
        axis=1,
    ).fillna(0)
    assert (both["calls"] == both["waits"]).all()
    durations = pd.Series([end - start for _, _, start, end in mixed.calls]).sum()
    assert calls["total_ns"].sum() == durations


def test_efficiencies_multiply_and_are_those_of_the_program(mixed: Program) -> None:
    found = pop(mixed)
    product = found["load_balance"] * found["communication_efficiency"] / 100
    assert found["parallel_efficiency"] == pytest.approx(product, abs=0.01)
    product = found["serialization_efficiency"] * found["transfer_efficiency"] / 100
    assert found["communication_efficiency"] == pytest.approx(product, abs=0.01)
    inside = [0, 0, 0]
    for rank, name, start, end in mixed.calls:
        inside[rank] += 0 if name in ("MPI_Init", "MPI_Finalize") else end - start
    useful = [12 * 1_700 - one for one in inside]
    assert found["load_balance"] == pytest.approx(100 * sum(useful) / 3 / max(useful), abs=0.01)
    assert found["communication_efficiency"] == pytest.approx(100 * max(useful) / (12 * 1_700), abs=0.01)
    assert pop(mixed, "step") == pytest.approx(found, abs=0.1)


def test_what_lies_between_calls_that_follow_at_once_is_not_useful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiencies, "_MAX_OVERHEAD_NS", 1_000)
    program = Program(2)
    for rank, work in enumerate((100_000, 50_000)):
        program.call(rank, "MPI_Init", 0, 10)
        for number in range(50):
            begin = work + number * 1_500
            program.call(rank, "MPI_Send", begin, begin + 500, send(1 - rank, tag=number))
        program.call(rank, "MPI_Finalize", 180_000, 180_010)
    # After the last call both work until the end.
    useful = [work + 180_000 - work - 74_000 - 10 for work in (100_000, 50_000)]
    assert useful[0] == useful[1]
    found = pop(program)
    assert found["load_balance"] == pytest.approx(100, abs=0.1)
    assert found["communication_efficiency"] == pytest.approx(100 * useful[0] / 179_990, abs=0.1)


def test_what_a_function_of_a_window_waits_for_needs_all_ranks() -> None:
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
        for step in range(1, 9):
            begin = 1_000_000 * step
            program.call(rank, "MPI_Allreduce", begin, begin + 20, {"op": "AllReduce", "bytes": 8})
    for step in range(1, 9):
        begin = 1_000_000 * step
        program.call(0, "MPI_Win_fence", begin + 100_000, begin + 300_010, {"op": "Fence", "comm": "windows"})
        program.call(1, "MPI_Win_fence", begin + 300_000, begin + 300_010, {"op": "Fence", "comm": "windows"})
    every = [one for one in waits(program) if one[1] == "MPI_Win_fence"]
    assert every[0][:5] == (0, "MPI_Win_fence", "wait at N to N", 8 * 200_000, 1)
    # Windows of other ranks each: the first one has ended when the second begins.
    program.calls = [
        (rank, name, start, end - 100_000 if name == "MPI_Win_fence" and not rank else end)
        for rank, name, start, end in program.calls
    ]
    assert not [one for one in waits(program) if one[1] == "MPI_Win_fence"]


def test_waits_for_ranks_that_are_not_recorded_are_said_to_be_transfer() -> None:
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
        for step in range(1, 9):
            begin = 1_000_000 * step
            program.call(rank, "MPI_Allreduce", begin, begin + 20, {"op": "AllReduce", "bytes": 8})
            program.call(rank, "MPI_Win_wait" if rank else "MPI_Win_complete", begin + 1_000, begin + 300_000)
    said = "waits in MPI_Win_complete, MPI_Win_wait count as transfer: their partners are not recorded"
    assert {program.tables()[name].reason for name in ("mpi_calls", "mpi_waits", "pop")} == {said}


def test_messages_that_are_not_recorded_leave_no_known_wait_in_their_calls() -> None:
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
        for step in range(1, 9):
            begin = 1_000_000 * step
            program.call(rank, "MPI_Allreduce", begin, begin + 20, {"op": "AllReduce", "bytes": 8})
            program.call(rank, "MPI_Sendrecv", begin + 1_000, begin + 300_000)
    said = "waits in MPI_Sendrecv count as transfer: their partners are not recorded"
    assert {program.tables()[name].reason for name in ("mpi_calls", "mpi_waits", "pop")} == {said}


def test_a_nonblocking_collective_waits_for_the_rank_that_completes_it_last() -> None:
    program = Program(2)
    for rank, work in enumerate((10_000, 50_000)):
        program.call(rank, "MPI_Init", 0, 10)
        collective = {"op": "AlltoAll", "bytes": 8, "end": 51_000, "wait": 51_000 - work}
        program.call(rank, "MPI_Ialltoall", 100, 200, collective)
        program.call(rank, "MPI_Wait", work, 51_000)
        program.call(rank, "MPI_Finalize", 60_000, 60_010)
    found = [one[:5] for one in waits(program) if one[1] == "MPI_Wait"]
    assert found == [(0, "MPI_Wait", "wait at N to N", 40_000, 1)]


def test_an_ideal_network_has_no_transfer_but_keeps_what_ranks_wait_for_each_other() -> None:
    program = Program(2)
    for rank in range(2):
        program.call(rank, "MPI_Init", 0, 10)
    # Rank 0 works 40 and sends, the transfer takes 50; then rank 1 works 60.
    program.call(0, "MPI_Send", 50, 90, send(1))
    program.call(1, "MPI_Recv", 10, 100, receive(0))
    program.call(0, "MPI_Finalize", 90, 165)
    program.call(1, "MPI_Finalize", 160, 165)
    found = pop(program)
    assert found["communication_efficiency"] == pytest.approx(100 * 60 / 150)
    assert found["transfer_efficiency"] == pytest.approx(100 * 100 / 150, abs=0.001)
    assert found["serialization_efficiency"] == pytest.approx(60.0)


def test_ranks_that_start_at_different_times_leave_transfer_as_it_is() -> None:
    program = Program(2)
    for rank, begin in enumerate((0, 900)):
        program.call(rank, "MPI_Init", begin, 1_000)
    program.call(0, "MPI_Send", 1_040, 1_080, send(1))
    program.call(1, "MPI_Recv", 1_000, 1_090, receive(0))
    for rank, end in enumerate((1_080, 1_150)):
        program.call(rank, "MPI_Finalize", end, 1_155)
    assert pop(program)["transfer_efficiency"] == pytest.approx(100 * 100 / 150, abs=0.001)


def test_broadcasts_and_reductions_align_the_clocks() -> None:
    program = Program(3, ahead={1: 7_000, 2: -90_000})
    for step in range(8):
        begin = 1_000 * (step + 1)
        program.everywhere("MPI_Bcast", "Broadcast", [begin, begin + 5, begin + 40], begin + 60, root=0)
        program.everywhere(
            "MPI_Reduce", "Reduce", [begin + 500, begin + 540, begin + 505], begin + 560, root=0
        )
    (clocks,) = connect(aligned_by_mpi(run_lists(program.lists())))
    moments = [
        int(clock.to_common(np.array([program.ahead.get(rank, 0)]))[0])
        for rank, clock in clocks.clocks.items()
    ]
    assert [*clocks.clocks] == [0, 1, 2]
    assert max(moments) - min(moments) <= 120


def ring_with_a_late_rank(ahead: dict[int, int]) -> Program:
    """A ring of one-way messages that each rank sends before it receives; rank 2 works longer."""
    program, now = Program(4, ahead=ahead), [0] * 4
    for _ in range(20):
        sent = [now[rank] + (12_000_000 if rank == 2 else 8_000_000) for rank in range(4)]
        for rank in range(4):
            left, right = (rank - 1) % 4, (rank + 1) % 4
            now[rank] = max(sent[rank], sent[left]) + 10_000
            program.call(rank, "MPI_Sendrecv", sent[rank], now[rank], send(right), receive(left))
    return program


def test_ranks_of_one_node_have_its_clock_unless_their_messages_deny_it() -> None:
    ahead = {0: 0, 1: 7_000_000, 2: -3_000_000, 3: 40}
    lists = run_lists(ring_with_a_late_rank(ahead).lists())
    ((ranks, clock),) = aligned_by_mpi(lists, zeros=ahead)
    assert clock.of_node
    stamps = np.array([[ahead[rank] + 5 for rank in ranks]])
    np.testing.assert_array_equal(clock.aligned(stamps), [[5.0] * 4])
    # With these, messages would arrive before they are sent.
    wrong = {**ahead, 3: 1_000_000}
    assert not any(one.of_node for _, one in aligned_by_mpi(lists, zeros=wrong))


def test_ranks_of_one_node_have_its_clock_if_only_rooted_collectives_join_them() -> None:
    ahead = {0: 0, 1: 7_000_000, 2: -3_000_000}
    program = Program(3, ahead=ahead)
    program.everywhere("MPI_Gather", "Gather", [900_000, 200_000, 990_000], 1_000_000, root=0)
    lists = run_lists(program.lists())
    ((_, clock),) = aligned_by_mpi(lists, zeros=ahead)
    assert clock.of_node
    # With this one, the root would have the value of rank 2 before rank 2 gives it.
    wrong = {**ahead, 2: -4_000_000}
    assert not any(one.of_node for _, one in aligned_by_mpi(lists, zeros=wrong))


def test_nonblocking_collectives_align_the_clocks_though_ranks_wait_late_for_them() -> None:
    program = Program(2, ahead={1: 5_000_000})
    for step in range(12):
        begin, late = 1_000_000 * step, step % 2
        for rank in range(2):
            start = begin + 300_000 * (rank == late)
            end = begin + 310_000 + 200_000 * (rank == 1)
            collective = {"op": "AllReduce", "bytes": 8, "end": end, "wait": 5_000}
            program.call(rank, "MPI_Iallreduce", start, start + 2_000, collective)
            program.call(rank, "MPI_Wait", end - 5_000, end)
    (clocks,) = connect(aligned_by_mpi(run_lists(program.lists())))
    moments = [
        int(clock.to_common(np.array([program.ahead.get(rank, 0)]))[0])
        for rank, clock in clocks.clocks.items()
    ]
    assert abs(moments[1] - moments[0]) <= 100_000


def test_a_rank_that_comes_late_to_complete_nonblocking_collectives_does_not_move_the_clocks() -> None:
    """Rank 0 needs only what rank 1 sends as it begins, rank 2 also what it sends when it comes to wait."""
    random, ahead = np.random.default_rng(2), {1: 5_000_000, 2: -3_000_000}
    program, now = Program(3, ahead=ahead), [0] * 3
    for _ in range(40):
        begun = [moment + 3_000_000 + int(random.exponential(60_000)) for moment in now]
        comes = [moment + 7_000_000 for moment in begun]
        late = comes[1] = begun[1] + 13_000_000 + int(random.exponential(60_000))
        ends = [max(comes[0], begun[1]), late, max(comes[2], late)]
        now = [end + 10_000 + int(random.exponential(5_000)) for end in ends]
        for rank in range(3):
            call = {"op": "AllReduce", "bytes": 8, "end": now[rank], "wait": now[rank] - comes[rank]}
            program.call(rank, "MPI_Iallreduce", begun[rank], begun[rank] + 2_000, call)
            program.call(rank, "MPI_Wait", comes[rank], now[rank])
    (clocks,) = connect(aligned_by_mpi(run_lists(program.lists())))
    moments = [
        int(clock.to_common(np.array([ahead.get(rank, 0)]))[0]) for rank, clock in clocks.clocks.items()
    ]
    assert max(moments) - min(moments) <= 50_000
    assert max(clocks.uncertainty.values()) <= 100_000


def test_receives_of_messages_that_lie_there_align_no_clocks() -> None:
    program = Program(2, ahead={1: 5_000_000})
    for begin in range(0, 100_000_000, 5_000_000):
        program.call(0, "MPI_Send", begin, begin + 1_000, send(1))
        program.call(1, "MPI_Recv", begin + 3_000_000, begin + 3_002_500, receive(0))
    assert aligned_by_mpi(run_lists(program.lists())) == []


def test_ranks_of_one_clock_rate_that_return_late_for_want_of_a_core_are_aligned() -> None:
    """Rank 1 comes 6 ms late; the others wake up to 12 ms after that in most collectives."""
    random, ahead = np.random.default_rng(3), {0: 0, 1: 70_000_000, 2: 69_000_000, 3: 69_400_000}
    program, begin = Program(4, ahead=ahead), 1_000_000
    for step in range(40):
        late = begin + 14_000_000
        for rank in range(4):
            woken = random.exponential(4_000_000) if step % 5 and rank != 1 else 10_000 * (rank != 1)
            start = late if rank == 1 else begin + 8_000_000
            call = {"op": "AllReduce", "bytes": 8}
            program.call(rank, "MPI_Allreduce", start, late + 20_000 + int(woken), call)
        begin = late + 40_000_000
    (clocks,) = connect(aligned_by_mpi(run_lists(program.lists()), zeros=dict.fromkeys(range(4), 0)))
    moments = [int(clock.to_common(np.array([ahead[rank]]))[0]) for rank, clock in clocks.clocks.items()]
    assert max(moments) - min(moments) <= 20_000
    assert max(clocks.uncertainty.values()) <= 40_000


def test_one_collective_of_all_aligns_ranks_of_one_clock_rate_that_nothing_else_connects() -> None:
    ahead = {0: 0, 1: 70_000_000, 2: 69_000_000, 3: 69_400_000}
    program = Program(4, ahead=ahead)
    program.everywhere("MPI_Barrier", "Barrier", [900_000, 200_000, 990_000, 500_000], 1_000_000)
    for step in range(6):
        begin = 2_000_000 * (step + 1)
        for pair in ((0, 1), (2, 3)):
            for rank in pair:
                call = {"op": "AllReduce", "comm": f"ranks {pair}", "ranks": 2, "bytes": 8}
                program.call(rank, "MPI_Allreduce", begin, begin + 500_000, call)
    lists = run_lists(program.lists())
    assert len(connect(aligned_by_mpi(lists))) == 2
    (clocks,) = connect(aligned_by_mpi(lists, zeros=dict.fromkeys(range(4), 0)))
    moments = {int(clock.to_common(np.array([ahead[rank]]))[0]) for rank, clock in clocks.clocks.items()}
    assert (len(clocks.clocks), len(moments)) == (4, 1)
    # The last rank to come was in the barrier for 10 µs, which both sides of it may be apart.
    assert max(clocks.uncertainty.values()) == 20_000


def test_one_collective_of_all_never_moves_the_clocks_that_others_align() -> None:
    """The pairs meet often; from the only barrier, rank 3 returns 12 ms late, as it lacked a core."""
    ahead = {0: 0, 1: 70_000_000, 2: 69_000_000, 3: 69_400_000}
    program = Program(4, ahead=ahead)
    for step in range(20):
        begin = 2_000_000 * step
        for pair in ((0, 1), (2, 3)):
            for rank in pair:
                call = {"op": "AllReduce", "comm": f"ranks {pair}", "ranks": 2, "bytes": 8}
                end = begin + 500_000 + 40_000 * (step % 5) * (rank % 2 == 0)
                program.call(rank, "MPI_Allreduce", begin + 460_000 * (rank % 2), end, call)
    for rank, start in enumerate((42_000_000, 40_000_000, 50_000_000, 41_000_000)):
        end = 50_004_000 + 12_000_000 * (rank == 3)
        program.call(rank, "MPI_Barrier", start, end, {"op": "Barrier", "bytes": 0})
    (clocks,) = connect(aligned_by_mpi(run_lists(program.lists()), zeros=dict.fromkeys(range(4), 0)))
    moments = [int(clock.to_common(np.array([ahead[rank]]))[0]) for rank, clock in clocks.clocks.items()]
    assert len(moments) == 4
    assert max(moments) - min(moments) <= 60_000


def test_without_a_common_clock_calls_and_messages_are_there_and_waits_are_unknown() -> None:
    from hpcprof.analysis.mpi.tables import mpi_tables

    lists = late_sender().lists()
    tables = mpi_tables(run_lists(lists), [lists["mpi_regions"]], {}, {})
    assert tables["mpi_calls"].rows["wait_ns"].isna().all()
    assert not len(tables["mpi_waits"])
    assert "clocks of ranks 0, 1 are not aligned" in tables["pop"].reason


def test_a_delay_is_where_a_rank_spent_more_than_usual_and_not_where_all_compute_longest() -> None:
    program = Program(4)
    for rank in range(4):
        program.call(rank, "MPI_Init", 0, 10)
        program.call(rank, "MPI_Barrier", 20, 25, {"op": "Barrier"})
        program.call(rank, "MPI_Put", 1025, 1030)
        late = 300 if rank == 3 else 5
        program.call(rank, "MPI_Allreduce", 1030 + late, 1340, {"op": "AllReduce", "bytes": 8})
    assert {wait[-1] for wait in waits(program) if wait[4] == 3} == {"between MPI_Put and MPI_Allreduce"}


def test_a_rank_that_is_late_out_of_a_call_without_operations_spent_its_time_there() -> None:
    program = Program(3)
    for rank in range(3):
        end = 900 if rank == 2 else 100
        program.call(rank, "MPI_Initialized", 0, 1)
        program.call(rank, "MPI_Init", 5, end)
        program.call(rank, "MPI_Barrier", end + 5, 910, {"op": "Barrier"})
    assert {wait[-1] for wait in waits(program) if wait[2] == "wait at barrier"} == {"MPI_Init"}


def test_how_long_a_rank_waits_in_its_first_call_for_ranks_that_start_later_is_no_delay() -> None:
    program = Program(3)
    for rank in range(3):
        program.call(rank, "MPI_Init", 0 if rank == 2 else 980, 1_000)
        late = 100 if rank == 2 else 5
        program.call(rank, "MPI_Barrier", 1_000 + late, 1_110, {"op": "Barrier"})
    assert {wait[-1] for wait in waits(program) if wait[2] == "wait at barrier"} == {
        "between MPI_Init and MPI_Barrier"
    }
