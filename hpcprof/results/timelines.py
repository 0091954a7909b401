"""The timelines of a run's ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hpcprof.profiles.readers.discovery import find_profiles, profile_kind, read_profile
from hpcprof.profiles.timeline import Timeline
from hpcprof.results.collect import Collected, by_rank
from hpcprof.submit.runs.directory import Run

_KINDS = ("nsys", "torch")


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
        return cast("Timeline", read_profile(self.paths[rank]))


def find_timelines(run: Run) -> Timelines:
    """Find the timelines of a run.

    Raises
    ------
    HpcprofError
        If two profiles are of the same rank.
    """
    summary = Collected()
    found = by_rank(find_profiles(run.path), summary)
    paths = {rank: path for rank, path in sorted(found.items()) if profile_kind(path) in _KINDS}
    return Timelines(paths, summary.skipped)
