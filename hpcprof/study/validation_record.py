"""The record of a study that validates explanations: the runs that it needs and those it has."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from hpcprof.runs.job import Job
from hpcprof.study.resumable import StudyRecord
from hpcprof.submit.sites.model import Site
from hpcprof.workloads.ddp.faults import BLOCKS

_CAPTURED_STEPS = 20
_STEPS_PER_EPOCH = 66
"""Before the captured ones in the middle, twice ten steps are timed without the profiler."""


class ValidationRun(msgspec.Struct, frozen=True):
    """One run of the study."""

    # Under the name that 0.2 wrote.
    faults: list[str] = msgspec.field(name="plants")
    """The faults of the run, as they are written."""
    profiled: bool
    """True if a profiler records the run. Else it measures what the faults cost, in blocks."""
    job: Job
    run: str = ""
    """The id of the run; empty until it is submitted."""

    @property
    def title(self) -> str:
        """The fault, or that the costs of all are measured."""
        return self.faults[0] if self.profiled else "costs of all faults, without a profiler"


class ValidationRecord(StudyRecord, frozen=True):
    """The runs of a study that validates explanations; the first one measures the costs."""

    study: Literal["validate"]
    site: Site
    runs: list[ValidationRun]
    template: str | None = None


def timed_arguments(faults: Sequence[str], block_steps: int, repeats: int) -> list[str]:
    """Return the options of the run that measures the costs of all faults, each in ``repeats`` epochs."""
    return [
        *_injected_faults(faults),
        "--fault-blocks",
        *_epochs(measured=repeats * len(faults), steps=BLOCKS * block_steps),
    ]


def profiled_arguments(fault: str) -> list[str]:
    """Return the options of a run with one fault that is short enough to profile."""
    return [
        *_injected_faults([fault]),
        *_epochs(measured=1, steps=_STEPS_PER_EPOCH),
        "--capture-steps",
        str(_CAPTURED_STEPS),
    ]


def _injected_faults(faults: Sequence[str]) -> list[str]:
    return [word for fault in faults for word in ("--fault", fault)]


def _epochs(measured: int, steps: int) -> list[str]:
    return ["--epochs", str(measured + 1), "--warmup-epochs", "1", "--steps-per-epoch", str(steps)]
