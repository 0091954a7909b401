"""The study of slowdown: which runs it needs, and the file of its folder in which they stand."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Literal

import msgspec

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import HpcprofError, UsageError, writing
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.sites.model import Site
from hpcprof.workloads.sweep import Point

RECORD = "study.json"


class Arm(Enum):
    """One side of the comparison."""

    ALONE = "alone"
    COMMUNICATING = "communicating"


class Planned(msgspec.Struct, frozen=True):
    """One run: the values of the sweep's parameters, the side, and which repeat it is.

    ``run`` is its id, empty until it is submitted.
    """

    point: Point
    arm: Arm
    repeat: int
    run: str = ""


class Member(Planned, frozen=True, kw_only=True):
    """A run of a study with its job."""

    job: Job


class Record(msgspec.Struct, frozen=True):
    """What a study's folder tells of its runs, in the order in which they are made.

    ``template`` is the user's template of job.sh, as an absolute path.
    """

    study: Literal["slowdown"]
    site: Site
    runs: list[Member]
    template: str | None = None

    def with_run(self, index: int, run: str) -> Record:
        """Return the record with the id of one run changed."""
        runs = list(self.runs)
        runs[index] = msgspec.structs.replace(runs[index], run=run)
        return msgspec.structs.replace(self, runs=runs)

    @property
    def begun(self) -> bool:
        """Whether any of the runs has been submitted."""
        return any(one.run for one in self.runs)

    @property
    def keys(self) -> tuple[str, ...]:
        """The parameters of the sweep."""
        return tuple(self.runs[0].point)


def plan(points: Sequence[Point], repeats: int) -> list[Planned]:
    """Return the runs in the order in which they are made.

    Points and sides are interleaved, and the sides change their order from repeat to repeat, so that what
    drifts meets all of them alike.
    """
    return [
        Planned(point, arm, repeat)
        for repeat in range(repeats)
        for point in points
        for arm in (list(Arm) if repeat % 2 == 0 else reversed(list(Arm)))
    ]


def write_record(folder: Path, record: Record) -> None:
    """Write a study's record into its folder; the file is there whole or as it was before.

    Raises
    ------
    HpcprofError
        If it cannot be written.
    """
    path = folder / RECORD
    text = msgspec.json.format(msgspec.json.encode(record), indent=1).decode()
    with writing(path):
        write_atomically(path, text + "\n")


def read_record(folder: Path) -> Record:
    """Read the record of a study.

    Raises
    ------
    UsageError
        If the folder is that of no study of slowdown.
    HpcprofError
        If its record cannot be read.
    """
    path = folder / RECORD
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} has no {RECORD}: name the folder of a study of slowdown.") from None
    except OSError as error:
        raise HpcprofError(f"{path} cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise HpcprofError(f"{path} cannot be read: {error}.") from None
    if not record.runs:
        raise HpcprofError(f"{path} cannot be read: it lists no runs.")
    return record
