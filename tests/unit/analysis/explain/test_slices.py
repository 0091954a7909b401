"""The slice of the timeline that shows a finding."""

from __future__ import annotations

import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.culprits import culprit_of
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.explain.programs import (
    MS,
    Host,
    Instruction,
    Launch,
    Memory,
    Once,
    Place,
    Wait,
    simulate,
)


def program(*more: Instruction) -> list[Instruction]:
    """Return a rank that loads, and works on its GPU."""
    return [
        Place("data", (Host(4 * MS), Once(2, (Host(5 * MS),)))),
        Place("forward", (Launch(6 * MS, name="logits"), *more, Launch(1 * MS), Wait(), Memory(1 * MS))),
        Place("backward", (Launch(2 * MS, collective=True), Memory(3 * MS), Wait())),
    ]


@pytest.fixture
def timelines() -> dict[int, Timeline]:
    return simulate([program(), program(Launch(3 * MS, name="extra"))], 4)


@pytest.mark.parametrize(
    ("cause", "where", "rank", "name", "duration"),
    [
        (Cause.DEVICE_ALLOCATION, "forward", 0, "cudaMalloc", MS),
        (Cause.DEVICE_ALLOCATION, "", 0, "cudaMalloc", 3 * MS),
        # The longest kernel of the late rank is one that all ranks have.
        (Cause.LATE_RANK_GPU, "forward", 1, "extra", 3 * MS),
        (Cause.EXPOSED_COMMUNICATION, "backward", 1, "ncclDevKernel_AllReduce", 2 * MS),
    ],
)
def test_it_is_what_the_cause_is_about_inside_its_place(
    cause: Cause, where: str, rank: int, name: str, duration: int, timelines: dict[int, Timeline]
) -> None:
    found = culprit_of(cause, where, (rank,), timelines)
    assert found is not None
    assert (found.rank, found.name, found.duration_ns) == (rank, name, duration)
    assert found.step > 0


def test_host_work_before_a_step_lies_in_the_wall_time_of_the_step_before(
    timelines: dict[int, Timeline],
) -> None:
    found = culprit_of(Cause.HOST_WORK, "data", (0,), timelines)
    assert found is not None
    # The data of step 2 are loaded before its first kernel starts.
    assert (found.step, found.name, found.duration_ns) == (1, "data", 9 * MS)
    assert found.offset_ns > 0


def test_a_cause_that_no_slice_shows_and_a_place_that_is_gone_have_none(
    timelines: dict[int, Timeline],
) -> None:
    assert culprit_of(Cause.STEP_DRIFT, "", (0,), timelines) is None
    assert culprit_of(Cause.HOST_WORK, "elsewhere", (0,), timelines) is None
    assert culprit_of(Cause.HOST_WORK, "data", (7,), timelines) is None
