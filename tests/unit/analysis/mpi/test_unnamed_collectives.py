"""Nonblocking collectives that name no communicator, in programs whose communicators are known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hpcprof.analysis.mpi.unnamed_collectives import UnnamedCollectives, named_communicators
from tests.unit.analysis.mpi.programs import WORLD, Program

MS = 1_000_000
ROWS, COLUMNS = (
    {0: "row 0", 1: "row 0", 2: "row 1", 3: "row 1"},
    {0: "left", 1: "right", 2: "left", 3: "right"},
)
LOOPS = {
    "rows": [ROWS],
    "rows and columns": [ROWS, COLUMNS],
    "all ranks": [dict.fromkeys(range(4), WORLD)],
    "rows, then all ranks": [ROWS, dict.fromkeys(range(4), WORLD)],
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_collective_is_of_the_ranks_that_finish_it_together(loop: str) -> None:
    chance = random.Random(1)
    clock, ends, true = [0, 5 * MS, 7 * MS, 0], [[0] * 0 for _ in range(4)], [[""] * 0 for _ in range(4)]
    now = [0] * 4
    for groups in LOOPS[loop] * 30:
        begins = [moment + chance.randrange(8 * MS, 12 * MS) for moment in now]
        for rank in range(4):
            others = [begins[other] for other in range(4) if groups[other] == groups[rank]]
            now[rank] = max(others) + chance.randrange(5_000, 15_000)
            ends[rank].append(now[rank] + clock[rank])
            true[rank].append(groups[rank])
    ranks = {
        rank: UnnamedCollectives(
            [WORLD, ROWS[rank], COLUMNS[rank]], np.zeros(len(ends[rank]), np.int64), np.array(ends[rank])
        )
        for rank in range(4)
    }
    found = named_communicators(ranks)
    wrong = sum(name != found[rank][place] for rank in range(4) for place, name in enumerate(true[rank]))
    # Others may end one by chance together.
    assert wrong <= 4


def test_collectives_of_ranks_that_call_another_number_of_them_stay_unknown() -> None:
    ranks = {
        rank: UnnamedCollectives([WORLD], np.zeros(count, np.int64), np.arange(count))
        for rank, count in enumerate((3, 4))
    }
    assert named_communicators(ranks) == {0: [None] * 3, 1: [None] * 4}


def test_waits_of_two_groups_are_for_the_late_rank_of_the_own_group() -> None:
    program = Program(4, ahead={1: 3 * MS, 3: 9 * MS})
    for step in range(10):
        for rank, work in enumerate((10, 18, 12 + step, 12 + step)):
            begin = step * 40 * MS + work * MS
            end = step * 40 * MS + (18 if rank < 2 else 12 + step) * MS + 20_000
            comm = {"comm": f"{WORLD} or {ROWS[rank]}", "ranks": -1, "bytes": 8, "end": end, "wait": 10_000}
            program.call(rank, "MPI_Iallreduce", begin, begin + 5_000, {"op": "AllReduce", **comm})
            program.call(rank, "MPI_Wait", begin + 6_000, end)
    waits = program.tables()["mpi_waits"].rows
    late = waits[waits["wait_ns"] > MS]
    assert {(*pair,) for pair in late[["rank", "delaying_rank"]].to_numpy().tolist()} == {(0, 1)}
    assert late["wait_ns"].sum() == pytest.approx(80 * MS, rel=0.01)
