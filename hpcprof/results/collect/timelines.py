"""The timelines of a run's ranks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hpcprof.common.errors import HpcprofError, unknown
from hpcprof.common.paths import is_folder
from hpcprof.profiles.readers.declaration import ProfileContent, ProfilePart
from hpcprof.profiles.readers.discovery import read_profile, reader_of
from hpcprof.profiles.timeline import Timeline
from hpcprof.results.collect.known_files import unchanged_files
from hpcprof.results.collect.profile_ranks import profiles_by_rank
from hpcprof.results.collect.run_profiles import profiles_of
from hpcprof.results.collect.step_choice import requested_steps, stored_step_ranges
from hpcprof.runs.directory import Run

if TYPE_CHECKING:  # the timelines of a folder are read without a database
    from hpcprof.results.store.store import Store


@dataclass(frozen=True)
class Timelines:
    """The profiles of a run that hold a timeline, by rank, and a sentence for each damaged profile.

    ``parts`` has the part of each rank whose profile holds several, and ``captured`` is as in `Origin`.
    """

    paths: dict[int, Path]
    skipped: list[str]
    parts: Mapping[int, ProfilePart] = field(default_factory=dict)
    captured: tuple[tuple[int, int], ...] = ()

    def read(self, rank: int) -> Timeline:
        """Read the timeline of one rank."""
        profile = read_profile(self.paths[rank], self.parts.get(rank), captured=self.captured)
        return cast("Timeline", profile)


def profile_is_gone(run: Run, rank: int, file: str) -> HpcprofError:
    """Return the error of a rank whose profile was collected and is no longer there."""
    return HpcprofError(f"the profile of rank {rank} is no longer in {run.path}: {file}.")


def find_timelines(run: Run, file: str = "") -> Timelines:
    """Find the timelines of a run, or only those in the profile of this name if there is one.

    Raises HpcprofError if two profiles have the same rank, or the folder of the profiles cannot be reached.
    """
    if not is_folder(run.path):
        raise HpcprofError(f"the timelines of {run.id} cannot be read: there is no folder {run.path} here.")
    files = profiles_of(run)
    # Identifying the ranks of thousands of files takes seconds.
    files = [path for path in files if path.name == file] or files
    identity = {file: stored.identity for file, stored in unchanged_files(files).items()}
    profiles = profiles_by_rank(files, identities=identity)
    paths = {rank: path for rank, path in sorted(profiles.paths.items()) if _has_timeline(path)}
    return Timelines(paths, profiles.skipped, profiles.parts, requested_steps(run))


def _has_timeline(path: Path) -> bool:
    reader = reader_of(path)
    return reader is not None and reader.content is ProfileContent.TIMELINE


def timeline_reader(run: Run, store: "Store") -> Callable[[int], Timeline]:
    """Return a function that reads the timeline of a rank, with the steps of the collect.

    The timeline that the collect kept is read if it is of the same profile. The function raises UsageError
    if no profile with a timeline has the rank.
    """
    from hpcprof.results.collect.kept_events import kept_timeline

    exists = store.exists()
    profiles = store.profiles(run.id) if exists else {}
    stored_events = store.rank_events(run.id) if profiles else {}
    steps = stored_step_ranges(store, run.id) if exists else None
    # The profiles are searched once: for each rank, that would take longer than reading them.
    find = cache(partial(find_timelines, run))

    def read(rank: int) -> Timeline:
        step_range = steps.step_range(rank) if steps else None
        if rank in stored_events and (timeline := kept_timeline(stored_events[rank], step_range)) is not None:
            return timeline
        timelines = find()
        if rank not in timelines.paths:
            if rank in stored_events:
                raise profile_is_gone(run, rank, profiles[rank].file)
            raise unknown("rank", str(rank), map(str, sorted({*stored_events, *timelines.paths})))
        return replace(timelines.read(rank), step_range=step_range)

    return read
