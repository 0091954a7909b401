"""Windows of a run: what they add up to is what the run as a whole gives."""

from __future__ import annotations

from random import Random

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.mpi.matching import match_window
from tests.unit.analysis.mpi.programs import Program, receive, run_lists, send


def busy_program(seed: int, *, lost: bool = False) -> Program:
    """Return steps with messages that go on over reductions, a communicator of two ranks, and two threads."""
    random = Random(seed)
    program = Program(4, ahead={1: 9_000, 2: -4_000, 3: 70})
    now = 0
    for rank in range(4):
        program.call(rank, "MPI_Init", 0, 100)
    for step in range(30):
        now += 5_000
        for rank in range(4):
            program.ranges.append((rank, "step", now, now + 5_000))
            program.ranges.append((rank, "solve", now + 50, now + 900))
        late = [random.randrange(0, 600) for _ in range(4)]
        # Every third message is received after the next reduction.
        over = 5_000 if step % 3 == 0 and step < 28 else 0
        for rank, other in ((0, 1), (2, 3)):
            start = now + 20 + late[rank]
            program.call(rank, "MPI_Isend", start, start + 9, send(other, step % 2, end=start + 60, wait=20))
            program.call(rank, "MPI_Wait", start + 40, start + 60)
            begin = now + 1_000 + over + late[other]
            if not (lost and step == 10 and other == 3):
                program.call(other, "MPI_Recv", begin, begin + 30, receive(rank, step % 2))
        for rank in (0, 2):
            pair = {"op": "AllReduce", "comm": "pair", "ranks": 2, "bytes": 8}
            program.call(rank, "MPI_Allreduce", now + 2_000 + late[rank], now + 2_800 + rank, pair)
        program.everywhere("MPI_Barrier", "Barrier", [now + 3_000 + one for one in late], now + 3_700)
    for rank in range(4):
        program.call(rank, "MPI_Finalize", now + 20_000, now + 20_010)
    return program


@pytest.mark.parametrize(("seed", "lost"), [(1, False), (2, False), (3, True)])
def test_windows_give_the_same_tables_as_the_run_as_a_whole(seed: int, lost: bool) -> None:
    program = busy_program(seed, lost=lost)
    lists = run_lists(program.lists(), 60)
    assert len([*lists.windows()]) > 5
    whole, parts = program.tables(), program.tables(60)
    for name, outcome in whole.items():
        names = [*outcome.rows.columns]
        rows, others = (one.sort_values(names, ignore_index=True) for one in (outcome.rows, parts[name].rows))
        pd.testing.assert_frame_equal(rows, others, check_dtype=False)
        assert parts[name].reason == outcome.reason


def test_no_window_ends_while_a_message_is_under_way() -> None:
    program = busy_program(4)
    lists = run_lists(program.lists(), 60)
    for window in lists.windows():
        found = match_window(lists, window).operations
        assert not np.any(found.match == -1)
        assert not np.any(found.end == -1)


def test_a_program_without_a_collective_of_all_ranks_is_one_window() -> None:
    program = Program(2)
    for start in range(0, 1_000, 100):
        program.call(0, "MPI_Send", start, start + 5, send(1))
        program.call(1, "MPI_Recv", start, start + 9, receive(0))
    assert len([*run_lists(program.lists(), 4).windows()]) == 1
