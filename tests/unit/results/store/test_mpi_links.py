"""Tests of the links between the calls of MPI of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hpcprof.analysis.mpi.matching import RunMpi, collective_tables, match_window
from hpcprof.analysis.mpi.run_lists import NONE
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.timeline import Ints
from hpcprof.results.store.mpi_links import LinkWriter, calls_between
from hpcprof.results.store.rank_tables import MPI_TABLES, has_mpi
from tests.unit.analysis.mpi.programs import Program, receive, run_lists, send

STEPS, AHEAD = 40, {0: 0, 1: 5_000_000, 2: -3_000}


def ring() -> Program:
    """A ring of three ranks, whose messages are under way while steps end, and a reduction in each step."""
    program = Program(3, ahead=AHEAD)
    for rank in range(3):
        program.call(rank, "MPI_Init", 0, 10)
    for step in range(STEPS):
        begin = 1_000 * (step + 1)
        for rank in range(3):
            right, left = (rank + 1) % 3, (rank - 1) % 3
            # The wait is in the next step.
            wait = {"end": begin + 1_100, "wait": 50}
            program.call(rank, "MPI_Isend", begin, begin + 10, send(right, **wait))
            program.call(rank, "MPI_Irecv", begin + 20, begin + 30, receive(left, **wait))
            program.call(rank, "MPI_Waitall", begin + 50, begin + 100)
        program.everywhere(
            "MPI_Allreduce", "AllReduce", [begin + 200 + 30 * rank for rank in range(3)], begin + 300
        )
    return program


@pytest.mark.parametrize("most_calls", [50, 10_000])
def test_calls_in_a_window_are_matched_as_in_the_whole_run(most_calls: int, tmp_path: Path) -> None:
    tables = ring().lists()
    lists = run_lists(tables, most_calls)
    with LinkWriter(tmp_path) as links:
        for window in lists.windows():
            links.add(match_window(lists, window))
    (whole,) = run_lists(tables, 10_000).windows()
    expected = match_window(run_lists(tables, 10_000), whole)
    names = ("mpi_call_list", "mpi_operation_list")
    rows = [
        (
            rank,
            *(
                pa.Table.from_pandas(
                    tables[name][tables[name]["rank"] == rank].drop(columns="rank"), preserve_index=False
                )
                for name in names
            ),
        )
        for rank in range(3)
    ]
    between = {rank: (10_000 + AHEAD[rank], 20_000 + AHEAD[rank]) for rank in range(3)}
    found = calls_between(tmp_path, rows, between)
    assert len(found.calls) == 3 * 10 * 4
    assert found.unmatched.problems() == []
    operations, every = found.operations, expected.operations
    both = np.flatnonzero(operations.partner != NONE)
    # A message that is over after the window is none of it.
    assert len(both) == 3 * 2 * 9

    assert _messages(found, both) <= _messages(expected, np.flatnonzero(every.partner != NONE))
    reductions = np.flatnonzero(~operations.is_of(POINT_TO_POINT))
    groups, count = np.unique(operations.match[reductions], return_counts=True)
    assert count.tolist() == [3] * 10
    for group in groups.tolist():
        rows = reductions[operations.match[reductions] == group]
        begun = found.calls.own_start[operations.begin[rows]].tolist()
        ranks = operations.rank[rows].tolist()
        steps = {start - AHEAD[rank] - 30 * rank for rank, start in zip(ranks, begun, strict=True)}
        assert len(steps) == 1


def _messages(run: RunMpi, ends: Ints) -> set[tuple[int, ...]]:
    """Return the rank and the moment at which each of some messages begins on both sides."""
    of, calls = run.operations, run.calls
    both = np.column_stack((of.begin[ends], of.begin[of.partner[ends]]))
    return {
        (*ranks, *starts)
        for ranks, starts in zip(calls.rank[both].tolist(), calls.own_start[both].tolist(), strict=True)
    }


def test_a_rank_whose_calls_have_no_message_has_calls() -> None:
    events: Any = SimpleNamespace(written_rows=lambda: {"mpi_call_list": 4, "mpi_operation_list": 0})
    assert [has_mpi(events), *(has_mpi(events, table) for table in MPI_TABLES)] == [True, True, False]


def test_a_part_of_a_run_has_the_communicators_of_the_whole(tmp_path: Path) -> None:
    """Two pairs of ranks, of which the first part of the run alone looks like a collective of all."""
    program = Program(4)
    for step in range(9):
        for rank in range(4):
            begin = 1_000_000 * step + (200_000 * step if rank > 1 else 0)
            comm = f"world or {'low' if rank < 2 else 'high'}"
            collective = {"op": "AllReduce", "comm": comm, "ranks": -1, "end": begin + 900, "wait": 500}
            program.call(rank, "MPI_Iallreduce", begin, begin + 100, {**collective, "bytes": 8})
            program.call(rank, "MPI_Wait", begin + 400, begin + 900)
    tables = program.lists()
    lists = run_lists(tables)
    with LinkWriter(tmp_path) as links:
        for window in lists.windows():
            links.add(match_window(lists, window))
    by_rank = [[tables[name][tables[name]["rank"] == rank] for name in MPI_TABLES] for rank in range(4)]
    rows = [
        (rank, *(pa.Table.from_pandas(part.drop(columns="rank"), preserve_index=False) for part in parts))
        for rank, parts in enumerate(by_rank)
    ]
    part = calls_between(tmp_path, rows, dict.fromkeys(range(4), (0, 500_000)))
    found = [part.operations.rank[group].tolist() for _, group in collective_tables(part)]
    assert sorted(found) == [[[0, 1]], [[2, 3]]]
