"""Waits of a program whose archive has wildcard receives, one-sided calls and threads of OpenMP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.mpi.tables import mpi_tables
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import read_profile, several_ranks
from hpcprof.profiles.timeline import Timeline
from tests.data.otf2_archive import RESOLUTION, Program, ticks
from tests.unit.analysis.mpi.programs import run_lists

otf2 = pytest.importorskip("otf2")
RANKS, STEPS, STEP = 3, 4, 1_000
REDUCED = {0: 500, 1: 430, 2: 220}
"""Times at which each rank comes to the reduction that ends a step; all leave it 20 ns after the last one."""


def write_master(folder: Path) -> Path:
    """Write steps in which rank 0 receives from whoever sends: rank 2 sends first, and rank 1 later."""
    from otf2.enums import CollectiveOp, Paradigm

    with otf2.writer.open(str(folder), timer_resolution=RESOLUTION) as trace:
        program = Program(trace, RANKS)
        world, region = program.world, program.regions
        for name in ("MPI_Send", "MPI_Recv", "MPI_Put"):
            region[name] = trace.definitions.region(name, paradigm=Paradigm.MPI)
        writers = [trace.event_writer_from_location(thread) for thread in program.threads]
        workers = [trace.event_writer_from_location(thread) for thread in program.workers]

        def message(rank: int, call: str, start: int, end: int, event: Any, *about: Any) -> None:
            writers[rank].enter(ticks(start), region[call])
            event(writers[rank])(ticks(end - 1 if call == "MPI_Recv" else start + 1), *about)
            writers[rank].leave(ticks(end), region[call])

        for at in range(1_000, 1_000 + STEPS * STEP, STEP):
            for worker in workers:
                program.call(worker, "loop", at + 10, at + 90)
            message(0, "MPI_Recv", at + 100, at + 205, lambda one: one.mpi_recv, 2, world, 5, 64)
            message(0, "MPI_Recv", at + 210, at + 410, lambda one: one.mpi_recv, 1, world, 5, 64)
            message(1, "MPI_Send", at + 400, at + 405, lambda one: one.mpi_send, 0, world, 5, 64)
            message(2, "MPI_Send", at + 200, at + 204, lambda one: one.mpi_send, 0, world, 5, 64)
            program.call(writers[1], "MPI_Put", at + 410, at + 420)
            for rank, writer in enumerate(writers):
                writer.enter(ticks(at + REDUCED[rank]), region["MPI_Allreduce"])
                writer.mpi_collective_begin(ticks(at + REDUCED[rank]))
                writer.mpi_collective_end(ticks(at + 520), CollectiveOp.ALLREDUCE, world, 2**32 - 1, 24, 24)
                writer.leave(ticks(at + 520), region["MPI_Allreduce"])
    return folder / "traces.otf2"


def test_waits_of_an_archive_are_those_that_follow_from_its_times(tmp_path: Path) -> None:
    anchor = write_master(tmp_path / "archive")
    several = several_ranks(anchor)
    assert several is not None
    timelines = [read_profile(anchor, ProfilePart(several, rank)) for rank in range(RANKS)]
    lists: dict[str, pd.DataFrame] = {}
    for name in ("mpi_call_list", "mpi_operation_list", "mpi_regions"):
        found = []
        for rank, timeline in enumerate(timelines):
            assert isinstance(timeline, Timeline)
            found.append(analyze_rank(ANALYSES[name], timeline, rank).frame)
        lists[name] = pd.concat(found, ignore_index=True)
    clocks = {rank: RankClock.shifted(0) for rank in range(RANKS)}
    tables = dict(
        mpi_tables(run_lists(lists), [lists["mpi_regions"]], clocks, dict.fromkeys(clocks, "node0"))
    )
    waits = tables["mpi_waits"].rows
    sums = waits.groupby(["rank", "call", "pattern", "delaying_rank"])["wait_ns"].sum()
    assert sums.to_dict() == {
        (0, "MPI_Recv", "late sender", 1): STEPS * 190,
        (0, "MPI_Recv", "late sender", 2): STEPS * 100,
        (1, "MPI_Allreduce", "wait at N to N", 0): STEPS * 70,
        # Rank 0 comes last, as it has waited for rank 1.
        (2, "MPI_Allreduce", "wait at N to N", 1): STEPS * 280,
    }
    calls = tables["mpi_calls"].rows
    assert int(calls[calls["call"] == "MPI_Put"]["total_ns"].sum()) == STEPS * 10
    assert int((calls["wait_ns"] + calls["transfer_ns"] - calls["total_ns"]).abs().sum()) == 0
