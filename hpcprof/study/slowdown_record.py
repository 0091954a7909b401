"""The record of a study of slowdown: the runs that it needs and those it has."""

from collections.abc import Sequence
from enum import Enum
from typing import Literal

import msgspec

from hpcprof.runs.job import Job
from hpcprof.study.resumable import StudyRecord
from hpcprof.submit.sites.model import Site
from hpcprof.workloads.sweep import Point, label


class Arm(Enum):
    """The two arms of the experiment: runs without communication, and runs with it."""

    ALONE = "alone"
    COMMUNICATING = "communicating"


class PlannedRun(msgspec.Struct, frozen=True):
    """One run of a study."""

    point: Point
    """The values of the sweep's parameters."""
    arm: Arm
    repeat: int
    """Counted from 0."""
    run: str = ""
    """The id of the run; empty until it is submitted."""


class StudyRun(PlannedRun, frozen=True, kw_only=True):
    """One run of a study with its job; every run is profiled."""

    job: Job

    @property
    def profiled(self) -> bool:
        """True if it leaves profiles to collect."""
        return True

    @property
    def title(self) -> str:
        """The arm and the point of the sweep."""
        return f"{self.arm.value} {label(self.point)}".rstrip()


class SlowdownRecord(StudyRecord, frozen=True):
    """The runs of a study of slowdown."""

    study: Literal["slowdown"]
    site: Site
    runs: list[StudyRun]
    template: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The parameters of the sweep."""
        return tuple(self.runs[0].point)


def plan_runs(points: Sequence[Point], repeats: int) -> list[PlannedRun]:
    """Return the runs in the order in which they are made.

    Points and arms are interleaved, and the order of the arms changes from repeat to repeat, so that a drift
    of the machine affects all of them alike.
    """
    return [
        PlannedRun(point, arm, repeat)
        for repeat in range(repeats)
        for point in points
        for arm in (list(Arm) if repeat % 2 == 0 else reversed(list(Arm)))
    ]
