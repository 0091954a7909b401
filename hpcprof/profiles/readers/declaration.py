"""Declarations of readers by a package.

The package of a reader holds a `Reader` and imports neither numpy nor the reader itself, so that finding
profiles stays quick. Other packages add a `Reader` by an entry point of the group ``hpcprof.readers``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

# nsys writes local ranks too when asked to (%q{OMPI_COMM_WORLD_LOCAL_RANK}): they are no ranks.
_RANK = re.compile(r"(?<![A-Za-z])(?<!local[-_.])rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
# At most seven digits: PyTorch's own names hold a time stamp there (host_pid.1700000000000.pt.trace.json).
_NUMBER = re.compile(r"\.(\d{1,7})$")
_SUFFIX = re.compile(
    r"(((\.pt)?\.trace)?\.json(\.gz)?|\.sqlite|_pqtdir|\.nsys-rep|\.ncu-repz?|(\.details|\.raw)?\.csv(\.gz)?|\.otf2)$",
    re.IGNORECASE,
)


class ProfileContent(Enum):
    """The content of a profile, which decides its analyses. The values are for messages."""

    TIMELINE = "a timeline of Nsight Systems, PyTorch, JAX, rocprofv3, unitrace or Score-P"
    KERNEL_REPORT = "a profile of Nsight Compute"


@dataclass(frozen=True)
class Scrubber:
    """Copies profiles of one kind with private data removed."""

    function: str
    """``module:name`` of ``f(path, target, names) -> list of str``. It writes the copy and returns what it
    left out; ``names`` is a `hpcprof.profiles.scrub.names.Names`. It raises
    `hpcprof.common.errors.DamagedInput` for a file that it cannot read.
    """
    suffixes: tuple[str, ...]
    """The files that it copies, as in `Reader`."""
    files: str
    """The same for people."""
    otherwise: str = ""
    """Advice on the other files of the reader; may be empty."""


@dataclass(frozen=True)
class SeveralRanks:
    """The ranks in one profile, each with its processes; ``ranks`` is None if the profile does not tell them.

    Processes are numbers as in the columns ``process`` of a `hpcprof.profiles.timeline.Timeline`.
    """

    processes: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...] | None = None

    @classmethod
    def of_processes(cls, ranks: Mapping[int, int | None]) -> "SeveralRanks | None":
        """Return a rank for each of several processes, given the rank that each one tells, or None."""
        by_rank = sorted((rank, process) for process, rank in ranks.items() if rank is not None)
        if len(ranks) < 2:
            return None
        if len({rank for rank, _ in by_rank}) < len(ranks):
            return cls(tuple((process,) for process in sorted(ranks)))
        return cls(tuple((process,) for _, process in by_rank), tuple(rank for rank, _ in by_rank))

    @property
    def every_process(self) -> frozenset[int]:
        """The processes of all ranks."""
        return frozenset(process for processes in self.processes for process in processes)


@dataclass(frozen=True)
class ProfilePart:
    """One rank in a profile of several, by its position; ``merged`` if it stands for all of them."""

    of: SeveralRanks
    position: int = 0
    merged: bool = False

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes of the rank."""
        return self.of.processes[self.position]

    @property
    def first(self) -> bool:
        """True if it is the first rank in the profile."""
        return self.position == 0


@dataclass(frozen=True)
class Reader:
    """The declaration of a reader, known without importing it.

    References have the form ``module:name``; each function takes the path of a file and raises
    `hpcprof.common.errors.DamagedInput` for one that it cannot read.
    """

    name: str
    """The kind of profile, as in `hpcprof.profiles.timeline.Origin` and the store."""
    suffixes: tuple[str, ...]
    """Endings of the files' names, in lower case."""
    files: str
    """The same for people, for example ``*.json[.gz] of PyTorch``."""
    content: ProfileContent
    """The result of ``read``: a `hpcprof.profiles.timeline.Timeline` or a
    `hpcprof.profiles.kernel_report.KernelReport`.
    """
    read: str
    """Reads a profile. It raises `UsageError` if the user's table of kernel classes is wrong."""
    threaded: bool = field(default=False, kw_only=True)
    """True if ``read`` also takes the number of threads to use."""
    identify_rank: str = "hpcprof.profiles.readers.declaration:rank_from_name"
    """Returns the rank of a profile or None, without reading all of it. By default it is that in the file's
    name.
    """
    folder_suffix: str = field(default="", kw_only=True)
    """Ending of folders that are profiles themselves; empty if there are none. ``other_files`` returns their
    files.
    """
    several_ranks: str = ""
    """Returns a `SeveralRanks` for a profile that holds several ranks, else None. By default a profile holds
    one.
    """
    reads_parts: bool = field(default=False, kw_only=True)
    """True if ``read`` also takes the `ProfilePart` to read of a profile of several ranks."""
    other_files: str = ""
    """Returns for a profile and a `ProfilePart`, or None for all of it, the files beside it that it consists
    of. By default a profile is one file.
    """
    place_in_run: str = ""
    """The pattern of the paths of a submitted run's profiles below their folder, if the profiler makes a
    folder for them there.
    """
    shared_suffixes: tuple[str, ...] = ()
    """The suffixes that files of other kinds have too; ``recognize`` finds the profiles among these."""
    own_suffixes: tuple[str, ...] = field(default=(), kw_only=True)
    """The suffixes of this kind alone, though they end like a shared suffix."""
    recognize: str = ""
    """Returns whether a file is a profile of this kind, by its first bytes."""
    reports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The suffixes of files that only the profiler's own tool can read, each with the endings of what is made
    from them. Such a file or folder beside its report is not a profile of its own.
    """
    other_forms: tuple[str, ...] = field(default=(), kw_only=True)
    """Endings, in place of a profile's suffix, of files that the profiler writes beside it about the same
    recording. They are no profiles of their own.
    """
    named_by_host: bool = field(default=False, kw_only=True)
    """True if the profiler names files by host and a folder is one recording: other names are other ranks."""
    convert: str = ""
    """Returns for a report the file to read, which it may have to make."""
    scrubber: Scrubber | None = None
    """Without one, profiles of this kind cannot be scrubbed."""

    def takes(self, path: Path) -> bool:
        """Return whether the name of a file or folder ends as those of this kind do."""
        endings = (*self.suffixes, self.folder_suffix) if self.folder_suffix else self.suffixes
        return path.name.lower().endswith(endings)

    def is_unclear(self, name: str) -> bool:
        """Return whether a file of this name may be of another kind."""
        name = name.lower()
        return name.endswith(self.shared_suffixes) and not name.endswith(self.own_suffixes)

    def made_from(self, path: Path) -> list[Path]:
        """Return the files and folders beside a profile that are made from it, or from the same recording."""
        endings = self.reports.get(path.suffix.lower(), ())
        paths = [path.with_name(f"{path.stem}{ending}") for ending in endings]
        suffix = next((ending for ending in self.suffixes if path.name.lower().endswith(ending)), "")
        return paths + [
            path.with_name(path.name.removesuffix(suffix) + ending) for ending in self.other_forms
        ]


def load(reference: str) -> Any:
    """Return the object that ``module:name`` refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def rank_from_name(path: Path) -> int | None:
    """Return the rank in ``rank00003.sqlite``, ``rank3.sqlite``, ``name.3.sqlite`` or ``a_rank-3_b.sqlite``.

    A folder ``rank_3`` gives the rank of a file in it whose own name has none. None if neither does.
    """
    stem = _SUFFIX.sub("", path.name)
    match = _RANK.search(stem) or _NUMBER.search(stem) or _RANK.fullmatch(path.parent.name)
    return int(match[1]) if match else None
