"""Steps of programs whose main loop repeats a sequence of MPI calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcprof.analysis.steps.mpi_steps import OWN_LOOP, OWN_SEQUENCE, mpi_step_candidates, sequence_text
from hpcprof.analysis.steps.phases import phases
from hpcprof.analysis.steps.step_detection import (
    MPI,
    REPEATS,
    StepCandidate,
    common_step_range,
    step_candidates,
)
from hpcprof.analysis.steps.step_ranges import no_steps, step_ranges, steps_of, with_capture_as_step
from hpcprof.profiles.timeline import StepRange, Timeline
from hpcprof.results.collect.step_choice import StoredStepRanges
from tests.unit.analysis.mpi.programs import Program, receive, send

Step = Callable[["Loop", int, int], int]


class Loop:
    """A program of ranks that all do the same at the same time, as far as nothing else is said."""

    def __init__(self, ranks: int = 2) -> None:
        self.program, self.ranks, self.now = Program(ranks), ranks, 0

    def all(self, call: str, op: str, length: int = 10, size: int = 8) -> None:
        """Let all ranks join a collective after so long."""
        self.now += length
        for rank in range(self.ranks):
            self.program.call(rank, call, self.now, self.now + 2, {"op": op, "bytes": size})
        self.now += 2

    def one(self, rank: int, call: str, *operations: dict[str, Any], length: int = 1) -> None:
        """Let a rank call something after so long."""
        self.now += length
        self.program.call(rank, call, self.now, self.now + 1, *operations)
        self.now += 1

    def timelines(self) -> dict[int, Timeline]:
        """Return the timelines, for which no step is chosen."""
        for rank in range(self.ranks):
            self.program.call(rank, "MPI_Init", -100, -10)
        return {rank: replace(self.program.timeline(rank), step_range=None) for rank in range(self.ranks)}


def chosen(loop: Loop) -> tuple[str, list[list[int]], list[list[int]]]:
    """Return the step of all ranks, and by rank the starts and the numbers of the steps."""
    timelines = loop.timelines()
    name = common_step_range({rank: step_candidates(one) for rank, one in timelines.items()})
    steps = [steps_of(replace(one, step_range=StepRange(name))) for one in timelines.values()]
    return name, [one.ranges.start.tolist() for one in steps], [one.number.tolist() for one in steps]


def test_a_step_ends_with_the_collective_of_the_loop() -> None:
    loop = Loop()
    loop.all("MPI_Barrier", "Barrier")
    for _ in range(6):
        loop.one(0, "MPI_Isend", send(1))
        loop.one(1, "MPI_Irecv", receive(0))
        loop.all("MPI_Allreduce", "AllReduce", 90)
    name, starts, numbers = chosen(loop)
    assert name == "mpi:MPI_Allreduce"
    # The first one begins with the end of the barrier.
    assert starts == [[12 + 96 * i for i in range(6)]] * 2
    assert numbers == [[0, 1, 2, 3, 4, 5]] * 2


def test_equal_collectives_are_told_apart_by_the_messages_between_them_on_any_rank() -> None:
    loop = Loop(3)
    for _ in range(12):
        loop.all("MPI_Allreduce", "AllReduce", 50)
        loop.one(0, "MPI_Send", send(1))
        loop.one(1, "MPI_Recv", receive(0))
        loop.all("MPI_Allreduce", "AllReduce", 50)
    timelines = loop.timelines()
    assert [mpi_step_candidates(one)[0].name for one in timelines.values()] == [
        *["mpi:MPI_Allreduce/2"] * 2,
        "mpi:MPI_Allreduce",
    ]
    name, starts, _ = chosen(loop)
    assert name == "mpi:MPI_Allreduce/2"
    assert starts[2] == starts[0]
    assert set(zip(starts[0], starts[0][1:], strict=False)) == {(a, a + 108) for a in starts[0][:-1]}


def test_equal_collectives_after_alternating_times_belong_to_one_step() -> None:
    loop = Loop()
    for _ in range(12):
        loop.all("MPI_Allreduce", "AllReduce", 80)
        loop.all("MPI_Allreduce", "AllReduce", 20)
    assert chosen(loop)[0] == "mpi:MPI_Allreduce/2"


def test_a_size_tells_the_collective_of_the_loop_from_others_of_its_name() -> None:
    loop = Loop()
    for step in range(8):
        for _ in range(3 + step % 4):
            loop.all("MPI_Allreduce", "AllReduce", 1 + step, size=8)
        loop.all("MPI_Allreduce", "AllReduce", 400, size=24)
    assert "mpi:MPI_Allreduce:24" in [one.name for one in mpi_step_candidates(loop.timelines()[0])]


def test_sizes_that_rotate_make_no_longer_steps() -> None:
    loop = Loop()
    loop.all("MPI_Barrier", "Barrier")
    for step in range(18):
        loop.all("MPI_Alltoallv", "AlltoAllV", 90, size=1024 * (1 + step % 3))
    name, starts, _ = chosen(loop)
    assert name == "mpi:MPI_Alltoallv"
    assert [len(one) for one in starts] == [18, 18]


def test_other_work_between_periods_does_not_change_the_period() -> None:
    loop = Loop()
    for step in range(30):
        loop.all("MPI_Allreduce", "AllReduce", 90)
        if step % 10 == 9:
            loop.all("MPI_Gather", "Gather", 300)
    name, starts, _ = chosen(loop)
    assert name == "mpi:MPI_Allreduce"
    assert len(starts[0]) == 29


def test_steps_of_a_master_are_cut_where_all_ranks_meet_however_it_serves() -> None:
    loop = Loop(3)
    loop.all("MPI_Barrier", "Barrier")
    for step in range(9):
        loop.all("MPI_Bcast", "Broadcast", 5)
        for task in range(4 + step % 3):
            worker = 1 + (task * step) % 2
            loop.one(worker, "MPI_Send", send(0, tag=step))
            loop.one(0, "MPI_Recv", receive(worker, tag=step), length=7)
        loop.all("MPI_Barrier", "Barrier", 30)
    name, starts, numbers = chosen(loop)
    assert name == "mpi:MPI_Barrier"
    assert [len(one) for one in starts] == [9] * 3
    assert numbers[0] == numbers[1] == numbers[2]


def test_ranks_that_never_all_meet_take_their_own_sequence() -> None:
    loop = Loop(3)
    loop.all("MPI_Barrier", "Barrier")
    for _ in range(7):
        for rank in range(3):
            if rank:
                loop.one(rank, "MPI_Recv", receive(rank - 1))
            loop.now += 20
            if rank < 2:
                loop.one(rank, "MPI_Send", send(rank + 1))
    name, starts, _ = chosen(loop)
    assert name == OWN_SEQUENCE
    assert [len(one) for one in starts] == [7] * 3
    first = loop.timelines()[1]
    assert sequence_text(first, OWN_SEQUENCE) == "MPI_Recv, MPI_Send"


def test_models_that_are_coupled_take_the_loop_that_they_have_in_common() -> None:
    """The ocean (ranks 0, 1) meets twice in each step and the atmosphere (ranks 2, 3) four times."""
    loop = Loop(4)
    loop.all("MPI_Barrier", "Barrier")
    for _ in range(8):
        begin = loop.now
        for ranks, meetings in (((0, 1), 2), ((2, 3), 4)):
            model = {"op": "AllReduce", "comm": f"ranks {ranks}", "ranks": 2, "bytes": 8}
            for meeting in range(meetings):
                for rank in ranks:
                    at = begin + 100 * (meeting + 1) // meetings
                    loop.program.call(rank, "MPI_Allreduce", at, at + 2, model)
            for rank in ranks:
                call = {**model, "op": "Broadcast", "root": ranks[0]}
                loop.program.call(rank, "MPI_Bcast", begin + 103, begin + 104, call)
        loop.now = begin + 110
    name, starts, _ = chosen(loop)
    assert name == OWN_LOOP
    assert [len(one) for one in starts] == [8] * 4
    assert starts[0] == starts[3]


@pytest.mark.parametrize("call", ["MPI_Sendrecv_replace", "MPI_Put", "MPI_Neighbor_alltoall"])
@pytest.mark.parametrize("exchanges", [1, 2, 6])
def test_calls_without_a_record_make_steps_where_no_record_repeats(call: str, exchanges: int) -> None:
    loop = Loop()
    loop.all("MPI_Barrier", "Barrier")
    for step in range(12):
        for exchange in range(exchanges):
            start, length = loop.now, 1 if exchange else 90 + step % 3
            for rank in range(2):
                loop.now = start
                loop.one(rank, call, length=length)
        if step % 5 == 4:
            loop.all("MPI_Allreduce", "AllReduce", 1)
    name, starts, _ = chosen(loop)
    assert name == OWN_SEQUENCE
    assert {len(one) for one in starts} <= {11, 12}
    # Local calls never mark steps.
    loop.program.calls = [(rank, "MPI_Comm_rank", start, end) for rank, _, start, end in loop.program.calls]
    loop.program.operations.clear()
    assert chosen(loop)[0] == ""


def test_calls_without_a_record_leave_steps_by_recorded_ones_as_they_are() -> None:
    loop = Loop()
    for step in range(12):
        loop.all("MPI_Allreduce", "AllReduce", 90)
        for rank in range(2 * (step % 2)):
            loop.one(rank, "MPI_Put", length=5)
    assert chosen(loop)[0] == "mpi:MPI_Allreduce"


@pytest.mark.parametrize(
    ("instances", "name"), [((0, 90, 92), ""), ((300, 90, 92), ""), ((90, 91, 100), OWN_SEQUENCE)]
)
def test_sequences_of_workers_are_no_steps_of_all_ranks(instances: tuple[int, ...], name: str) -> None:
    candidates = {
        rank: [StepCandidate(OWN_SEQUENCE, MPI, count, 90.0)] if count else []
        for rank, count in enumerate(instances)
    }
    assert common_step_range(candidates) == name
    rows = {
        rank: [
            {"range": one.name, "source": one.source, "instances": one.instances, "coverage_pct": 90.0}
            for one in ones
        ]
        for rank, ones in candidates.items()
    }
    assert {*StoredStepRanges(rows).agreed().values()} == {name}


def test_long_work_before_the_loop_is_no_step() -> None:
    loop = Loop()
    loop.all("MPI_Allreduce", "AllReduce")
    for length in (500, *[90] * 8):
        loop.all("MPI_Allreduce", "AllReduce", length)
    _, starts, numbers = chosen(loop)
    assert (len(starts[0]), numbers[0][0]) == (8, 1)


@pytest.mark.parametrize(
    ("before", "first", "steps"),
    [("Barrier", 350, 9), ("Barrier", 370, 8), ("AllGather", 100, 9), ("AllGather", 130, 8)],
)
def test_the_time_since_another_call_is_a_step_unless_it_is_longer(
    before: str, first: int, steps: int
) -> None:
    loop = Loop()
    loop.all(f"MPI_{before}", before, size=-1)
    for length in (first, *[90] * 8):
        loop.all("MPI_Allreduce", "AllReduce", length)
    _, starts, numbers = chosen(loop)
    assert (len(starts[0]), numbers[0][-1]) == (steps, 8)


def test_the_time_before_a_loop_that_lacks_the_waits_of_a_step_is_none() -> None:
    loop = Loop()
    loop.all("MPI_Barrier", "Barrier", size=-1)
    for _ in range(8):
        for call in ("MPI_Irecv", "MPI_Isend"):
            for rank in (0, 1):
                loop.one(rank, call, (send if call == "MPI_Isend" else receive)(1 - rank))
        loop.now += 90
        for rank in (0, 1):
            loop.one(rank, "MPI_Waitall")
    name, starts, numbers = chosen(loop)
    assert name == OWN_SEQUENCE
    assert [len(one) for one in starts] == [7, 7] and numbers[0] == [*range(1, 8)]


def test_a_named_range_comes_before_calls_of_mpi_unless_it_is_a_part_of_the_step() -> None:
    loop = Loop()
    for _ in range(8):
        for rank in range(2):
            loop.program.ranges.append((rank, "outer", loop.now, loop.now + 101))
            loop.program.ranges.append((rank, "compute", loop.now + 1, loop.now + 80))
        loop.all("MPI_Allreduce", "AllReduce", 90)
        loop.now += 10
    timelines = loop.timelines()
    found = {one.name: one.source for one in step_candidates(timelines[0])}
    assert found["outer"] == "automatic"
    loop.program.ranges = [one for one in loop.program.ranges if one[1] == "compute"]
    found = {one.name: one.source for one in step_candidates(loop.timelines()[0])}
    assert found == {"compute": REPEATS, "mpi:MPI_Allreduce": MPI}
    # It is a phase of the steps then.
    assert phases(loop.timelines()[0]).rows["phase"].tolist() == ["compute", "(rest)"]


def test_a_user_chooses_calls_by_name_size_and_number() -> None:
    loop = Loop()
    for _ in range(6):
        loop.all("MPI_Bcast", "Broadcast", 20)
        loop.all("MPI_Allreduce", "AllReduce", 40)
    timeline = loop.timelines()[0]
    counts = {}
    for name in ("mpi:MPI_Bcast", "mpi:MPI_Bcast:8", "mpi:MPI_Bcast/2", "mpi:MPI_Bcast:9"):
        counts[name] = len(steps_of(replace(timeline, step_range=StepRange(name, named=True))))
    assert counts == {"mpi:MPI_Bcast": 5, "mpi:MPI_Bcast:8": 5, "mpi:MPI_Bcast/2": 2, "mpi:MPI_Bcast:9": 0}
    without = replace(timeline, step_range=StepRange("mpi:MPI_Scan", named=True))
    assert "it has no calls of MPI named mpi:MPI_Scan; others that repeat: mpi:MPI_Allreduce" in no_steps(
        without
    )


def test_the_table_says_which_calls_are_a_step() -> None:
    loop = Loop()
    for _ in range(6):
        loop.one(0, "MPI_Isend", send(1), send(1))
        loop.one(0, "MPI_Isend", send(1))
        loop.one(1, "MPI_Irecv", receive(0))
        loop.all("MPI_Allreduce", "AllReduce", 90)
    found = step_ranges(loop.timelines()[0])
    assert found.rows["range"].tolist() == ["mpi:MPI_Allreduce"]
    assert found.rows["source"].tolist() == [MPI]
    assert found.reason.endswith("is 2 x MPI_Isend, MPI_Allreduce")


def test_calls_that_do_not_repeat_are_no_steps() -> None:
    loop = Loop()
    for number, op in enumerate(("Barrier", "Broadcast", "AllReduce", "Gather", "Scatter", "Scan")):
        loop.all(f"MPI_{op}", op, 10 + number)
    assert chosen(loop)[0] == ""
    assert "nor do its calls that communicate repeat a sequence" in no_steps(loop.timelines()[0])


def test_a_capture_as_one_step_has_neither_the_start_of_mpi_nor_its_end() -> None:
    loop = Loop()
    loop.all("MPI_Barrier", "barrier")
    for rank in range(2):
        loop.program.call(rank, "MPI_Finalize", 50, 90)
    for timeline in loop.timelines().values():
        step = steps_of(with_capture_as_step(timeline)).ranges
        assert (step.start.tolist(), step.end.tolist()) == ([-10], [50])


def test_a_call_of_leaders_is_no_step_of_ranks_that_do_not_make_it() -> None:
    """Leaders take part in a reduction among them, which is their best call; all ranks repeat a broadcast."""
    broadcast, reduction = "mpi:MPI_Bcast", "mpi:MPI_Allreduce"
    leader = [StepCandidate(reduction, MPI, 69, 98.0), StepCandidate(broadcast, REPEATS, 69, 99.0)]
    member = [StepCandidate(broadcast, MPI, 69, 99.0)]
    assert common_step_range({0: leader, 1: member, 2: leader, 3: member}) == broadcast
    assert common_step_range({0: leader, 1: leader, 2: leader, 3: member}) == reduction
