"""Which profile of a run belongs to which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.profiles.readers.discovery import file_to_read, identify_rank
from hpcprof.results.executors import Executor, Lost, serially

Identified = tuple[Path, int | None] | DamagedInput
"""The file to read for a profile with its rank, which is None if it is unknown; or the profile's damage."""


@dataclass(frozen=True)
class RankedProfiles:
    """The profiles of a run by rank; ``skipped`` holds a sentence for each damaged one."""

    paths: dict[int, Path] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def identify(paths: Sequence[Path]) -> list[Identified]:
    """Find the rank of each profile; damage to one does not affect the others."""
    found: list[Identified] = []
    for file in paths:
        try:
            path = file_to_read(file)
            found.append((path, identify_rank(path)))
        except DamagedInput as error:
            found.append(error)
    return found


def profiles_by_rank(files: list[Path], executor: Executor = serially, jobs: int = 1) -> RankedProfiles:
    """Assign each profile to its rank; a single profile without a rank is rank 0.

    Raises
    ------
    HpcprofError
        If two profiles have the same rank, or one of several has none.
    """
    identified: dict[Path, Identified] = {}
    for paths, answer in executor(identify, [files[i::jobs] for i in range(min(jobs, len(files)))]):
        identified |= zip(paths, _lost(paths, answer) if isinstance(answer, Lost) else answer, strict=True)
    found = RankedProfiles()
    for file in files:
        identity = identified[file]
        if isinstance(identity, DamagedInput):
            found.skipped.append(str(identity))
            continue
        path, rank = identity
        if rank is None and len(files) > 1:
            raise HpcprofError(
                f"the rank of {path} is unknown: neither the profile nor its name contains it. Rename it, "
                f"for example to rank00000{path.suffix}."
            )
        rank = rank or 0
        if rank in found.paths:
            raise HpcprofError(f"two profiles of rank {rank}: {found.paths[rank]} and {path}; remove one.")
        found.paths[rank] = path
    return found


def _lost(paths: Sequence[Path], lost: Lost) -> list[Identified]:
    return [DamagedInput(f"{path} was not collected: {lost.reason}.") for path in paths]
