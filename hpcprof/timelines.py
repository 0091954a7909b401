"""The timelines of a run's ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcprof.collect import Collected, by_rank
from hpcprof.readers.detect import find_profiles, read_profile
from hpcprof.run import Run
from hpcprof.timeline import Timeline


@dataclass(frozen=True)
class Timelines:
    """The profiles of a run that hold a timeline, by rank; ``skipped`` are sentences about the others."""

    paths: dict[int, Path]
    skipped: list[str]

    def read(self, rank: int) -> Timeline:
        """Read one rank's timeline.

        Raises
        ------
        DamagedInput
            If its profile cannot be read.
        """
        return read_profile(self.paths[rank])


def find_timelines(run: Run) -> Timelines:
    """Find the timelines of a run.

    Raises
    ------
    HpcprofError
        If two profiles are of the same rank.
    """
    summary = Collected()
    found = by_rank(find_profiles(run.path), summary)
    return Timelines(dict(sorted(found.items())), summary.skipped)
