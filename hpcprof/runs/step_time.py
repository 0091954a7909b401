"""The time of a step over all steps of a run, and the steps that take long once.

Such are the set-up of a communicator, a first compilation, and a single checkpoint.

1. A step is long if it exceeds the median by `MIN_EXCESS` of it, and by `MIN_DEVIATIONS` standard deviations
   of the other steps (by their median absolute deviation).
2. A long step happens once if no other long step has an excess within a factor of `ALIKE` of its own.
   Several of a kind are a rate, such as a checkpoint in each tenth step.
3. A step is not long if another one is shorter than the median by half of its excess or more: the moments
   that divide the steps are late, as where a profile lacks their first kernels.

It needs no numpy, which takes longer to load than a list of runs.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

from hpcprof.common.robust import MAD_TO_DEVIATION
from hpcprof.common.units import counted

MIN_EXCESS = 0.5
"""Minimum excess of a long step over the median, as a share of the median."""

MIN_DEVIATIONS = 10
"""Minimum excess of a long step in standard deviations of the other steps."""

ALIKE = 4.0
"""Maximum ratio of the excesses of long steps of one kind."""

MIN_STEPS = 6
"""Minimum number of steps of a series in which a long step stands out."""


class StepTime(msgspec.Struct, frozen=True):
    """The time of a step, in ns: elapsed over the ``counted`` steps, and the median of all ``steps``.

    Steps that take long once are not counted.
    """

    elapsed_ns: float
    p50_ns: float
    steps: int
    counted: int

    @property
    def words(self) -> str:
        """The counted steps: ``38 of 39 steps of the program``."""
        subset = "" if self.counted == self.steps else f"{self.counted:,} of "
        return f"{subset}{counted(self.steps, 'step')} of the program"


def step_time(walls: Sequence[float]) -> StepTime | None:
    """Return the time of a step from the wall times of all steps, in ns; None without steps."""
    if not walls:
        return None
    once = single_long_steps(walls)
    usual = len(walls) - len(once)
    elapsed = (sum(walls) - sum(walls[place] for place in once)) / usual
    return StepTime(elapsed, float(median(walls)), len(walls), usual)


def single_long_steps(walls: Sequence[float]) -> list[int]:
    """Return the places of the steps that take long once among the wall times of all steps, in ns."""
    if len(walls) < MIN_STEPS:
        return []
    middle = median(walls)
    spread = MAD_TO_DEVIATION * median(abs(wall - middle) for wall in walls)
    least = max(MIN_EXCESS * middle, MIN_DEVIATIONS * spread, 2 * (middle - min(walls)))
    long = sorted((wall - middle, place) for place, wall in enumerate(walls) if wall - middle > least)
    return sorted(
        place
        for number, (excess, place) in enumerate(long)
        if (number == 0 or excess > ALIKE * long[number - 1][0])
        and (number + 1 == len(long) or long[number + 1][0] > ALIKE * excess)
    )
