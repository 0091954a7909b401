"""Receives that record nothing, in programs whose messages are known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from hpcprof.analysis.mpi.unnamed_receives import RankMessages, messages_of_unnamed
from hpcprof.profiles.timeline import NO_PEER, NO_TAG

RANKS, WORLD = 5, 0
Row = tuple[str, int, int]
"""The kind of an operation, its peer and its tag: a receive that names nothing has its true ones."""


def found_in(
    program: dict[int, list[Row]], times: dict[int, list[tuple[int, int]]] | None = None
) -> dict[int, list[tuple[int, int] | None]]:
    """Return the sender and the tag of each unnamed receive of each rank, None without a message.

    ``times`` has the begin and the end of each operation, in ns on the clock of its rank.
    """
    ranks = {}
    for rank, rows in program.items():
        kinds = np.array([kind for kind, _, _ in rows])
        unnamed = kinds == "unnamed"
        peer, tag = (np.array([row[column] for row in rows], np.int64) for column in (1, 2))
        ranks[rank] = RankMessages(
            comm=np.where(unnamed, -1, WORLD),
            peer=np.where(unnamed, NO_PEER, peer),
            tag=np.where(unnamed, NO_TAG, tag),
            sends=kinds == "send",
            receives=unnamed | (kinds == "recv"),
            together=kinds == "all",
            begin=np.array([begin for begin, _ in times[rank]] if times else np.arange(len(rows))),
            end=np.array([end for _, end in times[rank]] if times else np.arange(len(rows))),
        )
    named = messages_of_unnamed(ranks)
    result: dict[int, list[tuple[int, int] | None]] = {}
    for rank, rows in program.items():
        places, _, peers, tags = named.get(rank, (np.empty(0, np.int64),) * 4)
        messages = dict(zip(places.tolist(), zip(peers.tolist(), tags.tolist(), strict=True), strict=True))
        result[rank] = [messages.get(place) for place, row in enumerate(rows) if row[0] == "unnamed"]
    return result


def exchange(rank: int, step: int, ring: bool) -> list[Row]:
    """Return the operations of a rank that exchanges with its neighbours, each tenth step with rank 0 too."""
    left, right = ((rank - 1) % RANKS, (rank + 1) % RANKS) if ring else (rank - 1, rank + 1)
    rows = [("unnamed", left, 0), ("unnamed", right, 1)]
    rows += [("send", to, tag) for to, tag in ((right, 0), (left, 1)) if 0 <= to < RANKS]
    if step % 10 == 9:
        rows += [("unnamed", of, 7) for of in range(1, RANKS)] if rank == 0 else [("send", 0, 7)]
    return rows


def truth(rows: list[Row]) -> list[tuple[int, int]]:
    return [(peer, tag) for kind, peer, tag in rows if kind == "unnamed"]


def groups(named: Sequence[tuple[int, int] | None], size: int = 2) -> list[list[tuple[int, int] | None]]:
    return [sorted(named[at : at + size], key=str) for at in range(0, len(named), size)]


def test_receives_on_a_ring_get_the_messages_of_their_step() -> None:
    program = {
        rank: [row for _ in range(40) for row in exchange(rank, 0, ring=True)] for rank in range(RANKS)
    }
    for rank, named in found_in(program).items():
        assert groups(named) == groups(truth(program[rank])), rank


def test_a_rare_message_is_received_in_its_own_step() -> None:
    program: dict[int, list[Row]] = {rank: [] for rank in range(RANKS)}
    for rank, rows in program.items():
        for step in range(40):
            rows += [*exchange(rank, step, ring=True), ("all", -1, -1)]
    named = found_in(program)[0]
    rare = [(place, one) for place, one in enumerate(named) if one and one[1] == 7]
    # After the 20 receives of 10 steps come the four of the rare messages.
    assert [place for place, _ in rare] == [24 * ten + 20 + at for ten in range(4) for at in range(4)]
    assert {one for _, one in rare} == {(rank, 7) for rank in range(1, RANKS)}


def test_receives_from_no_rank_and_cancelled_ones_get_no_message() -> None:
    program: dict[int, list[Row]] = {rank: [] for rank in range(RANKS)}
    choose = random.Random(1)
    for rank, rows in program.items():
        for _ in range(30):
            cancelled: list[Row] = [("unnamed", -9, -9)] if choose.random() < 0.2 else []
            rows += [*exchange(rank, 0, ring=False), *cancelled, ("all", -1, -1)]
    for rank, named in found_in(program).items():
        received: list[list[tuple[int, int] | None]] = [[]]
        messages = iter(named)
        for kind, _, _ in program[rank]:
            if kind == "all":
                received.append([])
            elif kind == "unnamed":
                received[-1].append(next(messages))
        neighbours = {(rank - 1, 0), (rank + 1, 1)} if 0 < rank < RANKS - 1 else None
        for step in received[:-1]:
            messages_of_step = {one for one in step if one}
            assert len(messages_of_step) == (2 if neighbours else 1)
            assert neighbours is None or messages_of_step == neighbours


def test_a_master_takes_messages_as_they_come() -> None:
    """Two workers of different speed; a receive begins as its worker gets a task, and ends out of order."""
    program: dict[int, list[Row]] = {0: [("all", -1, -1)], 1: [("all", -1, -1)], 2: [("all", -1, -1)]}
    times = {0: [(0, 100)], 1: [(500, 1_100)], 2: [(70, 150)]}
    arrivals = sorted([(10 * turn, 1) for turn in range(1, 21)] + [(33 * turn, 2) for turn in range(1, 7)])
    for moment, worker in arrivals:
        program[worker].append(("send", 0, 1))
        own = moment + times[worker][0][1]
        times[worker].append((own, own))
    begun = {1: 0, 2: 0}
    received = []
    for moment, worker in arrivals:
        received.append((begun[worker], moment, worker))
        begun[worker] = moment
    for begin, end, worker in sorted(received):
        program[0].append(("unnamed", worker, 1))
        times[0].append((begin + 100, end + 100))
    assert found_in(program, times)[0] == truth(program[0])


def test_receives_that_name_their_message_take_it_first() -> None:
    program: dict[int, list[Row]] = {
        0: [("send", 1, 3)] * 6,
        1: [*[("recv", 0, 3)] * 2, *[("unnamed", 0, 3)] * 4],
    }
    assert found_in(program)[1] == [(0, 3)] * 4


def test_without_messages_nothing_is_named() -> None:
    assert found_in({0: [("unnamed", 1, 1)], 1: [("all", -1, -1)]})[0] == [None]
