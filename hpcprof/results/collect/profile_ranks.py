"""Ranks of the profiles of a run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from types import MappingProxyType

import msgspec

from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.common.logs import log_traceback
from hpcprof.profiles.readers.declaration import ProfilePart, SeveralRanks, rank_from_name
from hpcprof.profiles.readers.discovery import (
    file_to_read,
    identify_rank,
    named_by_host,
    reader_of,
    several_ranks,
)
from hpcprof.results.collect.executors.interface import Executor, Lost, serially
from hpcprof.results.collect.known_files import Identity, stamps_of

Identified = Identity | DamagedInput
"""Rank and source of a profile file, or its damage."""


class RankedProfiles(msgspec.Struct, frozen=True):
    """The profiles of a run by rank, and the damage of the others.

    ``paths`` has the file to read for each rank; a profile of several ranks is listed for each, and ``parts``
    has the part of each of these ranks. ``identities`` has the profiles by file, and ``left_out`` a sentence
    for each file that is not a rank of the run.
    """

    paths: dict[int, Path] = msgspec.field(default_factory=dict)
    identities: dict[Path, Identity] = msgspec.field(default_factory=dict)
    parts: dict[int, ProfilePart] = msgspec.field(default_factory=dict)
    damaged: list[DamagedInput] = msgspec.field(default_factory=list)
    left_out: list[str] = msgspec.field(default_factory=list)

    @property
    def skipped(self) -> list[str]:
        """A sentence for each damaged profile."""
        return [str(damage) for damage in self.damaged]


def identify(paths: Sequence[Path]) -> list[Identified]:
    """Find the rank of each profile; damage to one does not affect the others."""
    identities: list[Identified] = []
    for file in paths:
        try:
            path = file_to_read(file)
            stamps = stamps_of(file, path)
            identities.append(Identity(path, identify_rank(path), several_ranks(path), stamps))
        except DamagedInput as error:
            log_traceback(str(error), error.traceback)
            identities.append(error)
    return identities


def profiles_by_rank(
    files: list[Path],
    executor: Executor = serially,
    jobs: int = 1,
    identities: Mapping[Path, Identity] = MappingProxyType({}),
) -> RankedProfiles:
    """Assign each profile to its rank; a single profile without a rank is rank 0.

    Profiles in ``identities`` are not opened. If no file states a rank, or all state the same, ranks are
    numbered by the names of the files (`ranks_by_name`). Beside files with distinct ranks, a file without a
    rank, or with the rank of another file, is left out. Raises HpcprofError if the ranks cannot be told
    apart.
    """
    identified: dict[Path, Identified] = {**identities}
    new = [file for file in files if file not in identities]
    for paths, answer in executor(identify, [new[i::jobs] for i in range(min(jobs, len(new)))]):
        identified |= zip(
            paths, _damaged_profiles(paths, answer) if isinstance(answer, Lost) else answer, strict=True
        )
    ranked = RankedProfiles()
    is_one_job = _hold_equally_many(identified.values())
    stated_ranks = {
        item.rank for item in identified.values() if isinstance(item, Identity) and item.rank is not None
    }
    profiles = [file for file, item in identified.items() if isinstance(item, Identity)]
    # Several servers side by side state rank 0 each.
    stated = len(stated_ranks) > 1 or (
        stated_ranks and any(rank_from_name(item) is not None for item in profiles)
    )
    by_name = {} if stated or len(profiles) < 2 else ranks_by_name(profiles)
    if by_name:
        ranked.left_out.append(
            f"the {len(by_name)} ranks are numbered by the names of the profiles, which tell no ranks apart"
        )
    for file in sorted(files, key=lambda file: _is_less_certain(file, identified[file])):
        identity = identified[file]
        if isinstance(identity, DamagedInput):
            ranked.damaged.append(identity)
            continue
        path = identity.path
        rank = by_name.get(file, identity.rank)
        for number, part in _numbered_parts(rank, identity.several, len(profiles) == 1, is_one_job):
            if number is None and stated_ranks:
                ranked.left_out.append(
                    f"{file} is left out: neither the profile nor its name contains a rank. If it is one, "
                    f"rename it, for example to {_name_with_rank(file, identified.values())}"
                )
                continue
            if number is None and len(profiles) > 1:
                raise HpcprofError(
                    f"the rank of {file} is unknown: neither the profile nor its name contains it. Rename "
                    f"it, for example to {_name_with_rank(file, identified.values())}, or open it alone."
                )
            number = number or 0
            if number in ranked.paths:
                other = ranked.paths[number]
                if len(stated_ranks) > 1:
                    ranked.left_out.append(f"{path} is left out: {other} is a profile of rank {number} too")
                    continue
                twins = f"two profiles of rank {number}: {other} and {path}"
                raise HpcprofError(f"{twins}; remove one{_advice_on_twins(number, (other, path))}.")
            ranked.paths[number] = path
            ranked.identities[file] = identity
            if part is not None:
                ranked.parts[number] = part
    return ranked


def _advice_on_twins(rank: int, files: Sequence[Path]) -> str:
    """Return what to do if two profiles of a rank are of one job, by the ranks in their names."""
    names = {rank_from_name(file) for file in files}
    if rank == 0 and names != {0}:  # as with the mpiexec of another MPI
        remedy = "use the mpiexec of the program's MPI: each was alone"
    elif len(names - {None}) > 1:
        remedy = "let its ranks start no other ranks"
    else:
        return ""
    return f", or if both are of one job, {remedy}"


_NUMBER = re.compile(r"\d+")
_PROCESS = re.compile(r"(.+)_(\d+)\.(\d{9,})\D")
"""Host, process and time of the end in the names that PyTorch gives traces by default."""

_EPOCH_DIGITS = 10
"""Digits of the seconds since 1970; names have milliseconds or nanoseconds."""

_MIN_APART_S = 10
"""Minimum time between the ends of recordings of processes that do not run together, in seconds."""


def ranks_by_name(files: Sequence[Path]) -> dict[Path, int]:
    """Return ranks for profiles by their names; empty if the names do not suffice.

    1. If the names differ only in numbers, the first number that counts from 0 is the rank.
    2. If each names another host, ranks follow the order of the names.
    3. If each names a host and a process, ranks follow their order.
    """
    numbers = [[*map(int, _NUMBER.findall(file.name))] for file in files]
    if len({_NUMBER.sub("#", file.name) for file in files}) == 1:
        for column in zip(*numbers, strict=True):
            if sorted(column) == [*range(len(files))]:
                return dict(zip(files, column, strict=True))
    if named_by_host(files):
        return {file: rank for rank, file in enumerate(sorted(files))}
    processes = [match.group(1, 2) for file in files if (match := _PROCESS.match(file.name))]
    if len({*processes}) < len(files):
        return {}
    order = sorted((host, int(process), file) for (host, process), file in zip(processes, files, strict=True))
    return {file: rank for rank, (_, _, file) in enumerate(order)}


def recorded_apart(files: Sequence[Path]) -> bool:
    """Return whether the names of profiles say that processes of one host were recorded one after another."""
    named = [match for file in files if (match := _PROCESS.match(file.name))]
    ends = sorted(int(match[3][:_EPOCH_DIGITS]) for match in named)
    apart = all(after - before >= _MIN_APART_S for before, after in pairwise(ends))
    return (
        len(files) == len(named) == len({match[2] for match in named})
        and apart
        and (len({match[1] for match in named}) == 1)
    )


def _is_less_certain(file: Path, identity: Identified) -> bool:
    """Return whether other profiles of a rank come first: those of one rank whose names have the rank."""
    several = isinstance(identity, Identity) and identity.several is not None
    return several or rank_from_name(file) is None


def _numbered_parts(
    rank: int | None, several: SeveralRanks | None, alone: bool, is_one_job: bool
) -> list[tuple[int | None, ProfilePart | None]]:
    """Return the ranks in a profile, each with its part.

    Processes without a stated rank are numbered: from 0 in the only profile, else after those of the profiles
    before it if all have equally many (``is_one_job``). Otherwise they are merged into one rank.
    """
    if several is None:
        return [(rank, None)]
    processes = len(several.processes)
    if several.ranks is not None:
        return [(number, ProfilePart(several, at)) for at, number in enumerate(several.ranks)]
    if not rank if alone else is_one_job and rank is not None:
        first = (rank or 0) * processes
        return [(first + at, ProfilePart(several, at)) for at in range(processes)]
    return [(rank, ProfilePart(several, merged=True))]


def _hold_equally_many(identified: Iterable[Identified]) -> bool:
    """Return whether all profiles hold equally many processes without a stated rank."""
    counts = {
        0 if item.several is None or item.several.ranks is not None else len(item.several.processes)
        for item in identified
        if not isinstance(item, DamagedInput)
    }
    return len(counts) == 1 and counts != {0}


def _name_with_rank(file: Path, identified: Iterable[Identified]) -> str:
    """Suggest a name for a profile without a rank, with the first free rank and its whole suffix."""
    intact = [identity for identity in identified if not isinstance(identity, DamagedInput)]
    taken = {identity.rank for identity in intact} | {
        rank for identity in intact if identity.several is not None for rank in identity.several.ranks or ()
    }
    free = next(rank for rank in count() if rank not in taken)
    reader = reader_of(file)
    suffixes = [end for end in reader.suffixes if file.name.lower().endswith(end)] if reader else []
    suffix = file.name[-max(map(len, suffixes)) :] if suffixes else file.suffix
    return f"rank{free:05d}.{suffix.lstrip('.')}"


def _damaged_profiles(paths: Sequence[Path], lost: Lost) -> list[Identified]:
    return [DamagedInput(f"{path} was not collected: {lost.reason}.") for path in paths]
