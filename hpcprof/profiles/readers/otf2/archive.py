"""The definitions of an OTF2 archive: its clock, processes, threads, regions and communicators.

As the standard and its writers (Score-P, TAU, EZTrace, rocprofv3) have them:
- The group of the type ``COMM_LOCATIONS`` lists the threads that are the ranks of MPI, in their order; the
  members of a communicator's group are places in it. Without this group (EZTrace), the processes are the
  ranks in their order, if there are communicators or functions of MPI (TAU); without communicators, all
  operations count as those of one that all ranks share.
- A process is a location group. The streams of a GPU are in its process, or in a group of their own that
  names the process, or belong to the single process of an archive of rocprofv3.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.declaration import ProfilePart, SeveralRanks, rank_from_name
from hpcprof.profiles.readers.otf2.library import (
    I64,
    POINTER,
    TEXT,
    U8,
    U32,
    U64,
    Callbacks,
    Handle,
    LibraryError,
    open_handle,
)
from hpcprof.profiles.timeline import CYCLES, INSTRUCTIONS, LATEST, NO_PROCESS, Ints

UNDEFINED = (1 << 32) - 1
"""Stands for no reference, no rank and no tag."""
_NANOSECONDS = 1_000_000_000
_LAST_TICK = np.uint64((1 << 63) - 1)
"""Largest stamp; beyond it, a writer stored a negative one."""

CPU_THREAD, STREAM = 1, 2
"""Types of locations."""
_ACCELERATOR = 2
_LOCATIONS, _COMM_LOCATIONS, _COMM_SELF = 1, 4, 6
"""Types of groups; the members of the first two are locations."""
MPI = 4
"""The paradigm of MPI."""

EZTRACE = frozenset({"Working", "EZTrace finalize"})
"""The regions of EZTrace around a whole thread and around its own end."""

_MPI_FUNCTION = re.compile(r"P?MPI_([a-z]\w*?)_{0,2}(?: ?\(.*\))?", re.IGNORECASE)
"""A function of MPI as writers name it: ``MPI_Send``, ``mpi_send_`` (Fortran), ``MPI_Send()`` (TAU)."""

COUNTERS = {
    "PAPI_TOT_INS": INSTRUCTIONS,
    "instructions": INSTRUCTIONS,
    "PAPI_TOT_CYC": CYCLES,
    "cycles": CYCLES,
    "cpu-cycles": CYCLES,
}
"""The metrics that are read, as PAPI and perf name them."""

_SINCE_START, _INTEGERS = 0, (4, 8)
"""The mode of a metric that counts since the start of the program, and the types of 64 bits."""


class Region(NamedTuple):
    """A function, or a part of one, that events enter and leave; ``role`` and ``paradigm`` as in OTF2."""

    name: str
    role: int
    paradigm: int


class Location(NamedTuple):
    """A thread or a stream of a GPU; ``process`` is `NO_PROCESS` if the archive does not tell it."""

    id: int
    name: str
    type: int
    events: int
    group: int
    process: int


@dataclass(frozen=True)
class ArchiveClock:
    """The clock of an archive: ``resolution`` ticks are a second, and ``offset`` is its first tick."""

    resolution: int
    offset: int
    realtime: int

    def nanoseconds(self, ticks: NDArray[np.uint64]) -> Ints:
        """Return ticks as nanoseconds since the first, shape (n,)."""
        since: Ints = (ticks - np.uint64(self.offset)).view(np.int64)
        if self.resolution != _NANOSECONDS:
            seconds, remainder = np.divmod(since, self.resolution)
            # The rest is less than a second, so that a float holds its nanoseconds exactly.
            parts: Ints = np.rint(remainder * (_NANOSECONDS / self.resolution)).astype(np.int64)
            since = seconds * _NANOSECONDS + parts
        since[ticks > _LAST_TICK] = LATEST
        return since


class _Definitions(msgspec.Struct):
    """The definitions of an archive, by their references."""

    clock: ArchiveClock | None = None
    strings: dict[int, str] = msgspec.field(default_factory=dict)
    nodes: dict[int, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    location_groups: dict[int, tuple[int, int, int, int]] = msgspec.field(default_factory=dict)
    locations: dict[int, tuple[int, int, int, int]] = msgspec.field(default_factory=dict)
    regions: dict[int, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    groups: dict[int, tuple[int, int, list[int]]] = msgspec.field(default_factory=dict)
    worlds: list[tuple[int, list[int]]] = msgspec.field(default_factory=list)
    communicators: dict[int, tuple[int, tuple[int, ...]]] = msgspec.field(default_factory=dict)
    contexts: dict[int, tuple[int]] = msgspec.field(default_factory=dict)
    members: dict[int, tuple[int, bool]] = msgspec.field(default_factory=dict)
    metrics: dict[int, list[int]] = msgspec.field(default_factory=dict)
    instances: dict[int, tuple[int]] = msgspec.field(default_factory=dict)

    def callbacks(self) -> Callbacks:
        """Return the functions that fill the definitions while the library reads them."""

        def clock(_: int, resolution: int, offset: int, length: int, realtime: int) -> int:
            self.clock = ArchiveClock(resolution, offset, realtime)
            return 0

        def string(_: int, reference: int, text: bytes | None) -> int:
            self.strings[reference] = (text or b"").decode("utf-8", "replace")
            return 0

        def region(
            _: int, reference: int, name: int, full: int, description: int, role: int, paradigm: int
        ) -> int:
            self.regions[reference] = (name, role, paradigm)
            return 0

        # The last fields, which are not read, need no type.
        return {
            "ClockProperties": ((U64, U64, U64, U64), clock),
            "String": ((U32, TEXT), string),
            "SystemTreeNode": ((U32, U32, U32, U32), _keep_definitions(self.nodes)),
            "LocationGroup": ((U32, U32, U8, U32, U32), _keep_definitions(self.location_groups)),
            "Location": ((U64, U32, U8, U64, U32), _keep_definitions(self.locations)),
            "Region": ((U32, U32, U32, U32, U8, U8), region),
            "CallingContext": ((U32, U32), _keep_definitions(self.contexts)),
            **self._rank_callbacks(),
            **self._metric_callbacks(),
        }

    def _rank_callbacks(self) -> Callbacks:
        def group(
            _: int, reference: int, name: int, kind: int, paradigm: int, flags: int, size: int, members: int
        ) -> int:
            values = np.ctypeslib.as_array((U64 * size).from_address(members)).tolist() if size else []
            if kind == _COMM_LOCATIONS:
                self.worlds.append((paradigm, values))
            # EZTrace writes groups with one reference: the first counts that is not a list of ranks.
            if self.groups.get(reference, (_COMM_LOCATIONS,))[0] == _COMM_LOCATIONS:
                self.groups[reference] = (kind, paradigm, values)
            return 0

        def communicator(_: int, reference: int, name: int, group: int) -> int:
            self.communicators.setdefault(reference, (name, (group,)))
            return 0

        def between(_: int, reference: int, name: int, first: int, other: int) -> int:
            self.communicators.setdefault(reference, (name, (first, other)))
            return 0

        return {
            "Group": ((U32, U32, U8, U8, U32, U32, POINTER), group),
            "Comm": ((U32, U32, U32), communicator),
            "InterComm": ((U32, U32, U32, U32), between),
        }

    def _metric_callbacks(self) -> Callbacks:
        def member(
            _: int,
            reference: int,
            name: int,
            description: int,
            kind: int,
            mode: int,
            value_type: int,
            base: int,
            exponent: int,
        ) -> int:
            self.members[reference] = name, mode == _SINCE_START and value_type in _INTEGERS and exponent == 0
            return 0

        def metric(_: int, reference: int, size: int, members: int) -> int:
            self.metrics[reference] = (U32 * size).from_address(members)[:] if size else []
            return 0

        return {
            "MetricMember": ((U32, U32, U32, U8, U8, U8, U8, I64), member),
            "MetricClass": ((U32, U8, POINTER), metric),
            "MetricInstance": ((U32, U32), _keep_definitions(self.instances)),
        }


def _keep_definitions(table: dict[int, Any]) -> Callable[..., int]:
    """Return a function that keeps the fields of each definition by its reference."""

    def function(_: int, reference: int, *fields: int) -> int:
        table[reference] = fields
        return 0

    return function


class Archive:
    """An open archive with its definitions resolved.

    ``creator`` is the program that wrote it, empty if unknown; ``of_eztrace`` is true for EZTrace, which does
    not name itself. ``locations`` are the threads and the streams of GPUs. ``world`` has the location of each
    rank of MPI, or of another library of messages; it is empty without one. Without ``has_resolution``, a
    tick of the clock counts as 1 ns.
    """

    def __init__(self, path: Path, handle: Handle) -> None:
        self.path = path
        self.handle = handle
        self._definitions = defs = _Definitions()
        with self.damage("its definitions"):
            # APEX adds lines about its compiler.
            self.creator = handle.creator.partition("\n")[0].strip()
            handle.read_definitions(defs.callbacks())
        recorded = defs.clock or ArchiveClock(0, 0, LATEST)
        self.has_resolution = recorded.resolution > 0
        self.clock = recorded if self.has_resolution else replace(recorded, resolution=_NANOSECONDS)
        in_programs = {key for key, group in defs.location_groups.items() if group[1] != _ACCELERATOR}
        used = {location[3] for location in defs.locations.values()} & in_programs
        only = next(iter(used)) if len(used) == 1 else NO_PROCESS
        self.locations = [
            Location(key, self._text(name), kind, events, group, self._process(group, only))
            for key, (name, kind, events, group) in sorted(defs.locations.items())
        ]
        process = {loc.id: loc.process for loc in self.locations}
        # A world has one location per process: others list threads. The world of MPI comes first.
        worlds = [
            world for world in defs.worlds if len({process.get(key) for key in world[1]}) == len(world[1])
        ]
        worlds.sort(key=lambda world: world[0] != MPI)
        self.of_eztrace = {self._text(name) for name, _, _ in defs.regions.values()} >= EZTRACE
        by_order = bool(defs.communicators) or any(item.paradigm == MPI for item in self.regions.values())
        # The first thread of each process, in the order of the processes: the lowest id, which comes last.
        threads = [loc for loc in self.locations if loc.type == CPU_THREAD and loc.process != NO_PROCESS]
        threads.sort(key=lambda loc: (loc.process, -loc.id))
        first = {loc.process: loc.id for loc in threads}
        self.world = worlds[0][1] if worlds else [*first.values()] if by_order else []

    @contextmanager
    def damage(self, action: str) -> Iterator[None]:
        """Name the archive and the failed action if the block finds damage."""
        try:
            yield
        except LibraryError as error:
            raise DamagedInput(f"{self.path} is damaged or incomplete: {action}: {error}.") from None

    @property
    def ranks(self) -> dict[int, int]:
        """The process of each rank of MPI."""
        process = {loc.id: loc.process for loc in self.locations}
        return {rank: process[key] for rank, key in enumerate(self.world) if key in process}

    def rank_of(self, process: int) -> int | None:
        """Return the rank of a process, None if it has none."""
        return next((rank for rank, pid in self.ranks.items() if pid == process), None)

    @property
    def start_utc_ns(self) -> int | None:
        """The time of the clock's first tick since 1970 in ns, None if unknown.

        rocprofv3, which does not name itself, writes the time of the program's end.
        """
        is_known = self.creator and self.clock.realtime < LATEST
        return self.clock.realtime if is_known else None

    @property
    def processes(self) -> list[int]:
        """The processes that have threads."""
        return sorted({loc.process for loc in self.locations if loc.type == CPU_THREAD} - {NO_PROCESS})

    @property
    def regions(self) -> dict[int, Region]:
        """The regions by their references."""
        return {
            key: _region(self._text(name), role, paradigm)
            for key, (name, role, paradigm) in self._definitions.regions.items()
        }

    @property
    def contexts(self) -> dict[int, int]:
        """The region of each calling context."""
        return {key: region for key, (region,) in self._definitions.contexts.items()}

    @property
    def counters(self) -> dict[int, dict[str, int]]:
        """The counters of the CPU in each metric that has some: by name, their places among its values."""
        defs = self._definitions
        classes = {key: key for key in defs.metrics} | {
            key: metric_class for key, (metric_class,) in defs.instances.items()
        }
        places = {
            key: {
                COUNTERS[name]: place
                for place, member in enumerate(defs.metrics.get(metric_class, ()))
                if member in defs.members
                and defs.members[member][1]
                and (name := self._text(defs.members[member][0])) in COUNTERS
            }
            for key, metric_class in classes.items()
        }
        return {key: metric_class for key, metric_class in places.items() if metric_class}

    def communicators(self) -> dict[int, tuple[str, list[list[int]] | None]]:
        """Return by reference the name of each communicator, and the ranks of its groups; None for one rank.

        The ranks are those of MPI in the program. ``MPI_COMM_SELF`` has no list of ranks.
        """
        communicators: dict[int, tuple[str, list[list[int]] | None]] = {}
        for key, (name, references) in self._definitions.communicators.items():
            groups = [self._definitions.groups.get(reference) for reference in references]
            if any(group is None for group in groups):
                continue
            alone = any(group is not None and group[0] == _COMM_SELF for group in groups)
            ranks = None if alone else [self._members(*group) for group in groups if group is not None]
            communicators[key] = self._text(name), ranks
        return communicators

    def _members(self, kind: int, _: int, members: list[int]) -> list[int]:
        if kind not in (_LOCATIONS, _COMM_LOCATIONS):
            return members
        rank_of = {location: rank for rank, location in enumerate(self.world)}
        return [rank_of[location] for location in members if location in rank_of]

    def host(self, process: int) -> str | None:
        """Return the name of the node that a process ran on, None if unknown."""
        groups = self._definitions.location_groups
        node = groups[process][2] if process in groups else -1
        for _ in range(len(self._definitions.nodes)):
            name, kind, node = self._definitions.nodes.get(node, (UNDEFINED, UNDEFINED, UNDEFINED))
            if self._text(kind).lower() == "node":
                return self._text(name) or None
        return None

    def gpus(self, process: int) -> dict[int, str]:
        """Return the names of the GPUs that a process uses, by their location groups in ascending order."""
        groups = {loc.group for loc in self.locations if loc.type == STREAM and loc.process == process}
        names = self._definitions.location_groups
        return {key: self._text(names[key][0]) for key in sorted(groups) if names[key][1] == _ACCELERATOR}

    def _text(self, reference: int) -> str:
        return self._definitions.strings.get(reference, "")

    def _process(self, group: int, only: int) -> int:
        """Return the process of a location group; ``only`` is the archive's only process, if any."""
        groups = self._definitions.location_groups
        if group not in groups:
            return NO_PROCESS
        _, kind, _, creator = groups[group]
        if kind != _ACCELERATOR:
            return group
        return creator if creator in groups else only


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an archive by its anchor file."""
    with open_handle(path) as handle:
        yield Archive(path, handle)


def _region(name: str, role: int, paradigm: int) -> Region:
    """Return a region; a region with the name of an MPI function is of MPI, whatever its paradigm."""
    match = _MPI_FUNCTION.fullmatch(name)
    if not match:
        return Region(name, role, paradigm)
    function = match[1]
    if function in (function.lower(), function.upper()):
        function = function.capitalize()
    return Region(f"MPI_{function}", role, MPI)


def identify_rank(path: Path) -> int | None:
    """Return the rank in the name of an archive; 0 if it is of one rank of MPI."""
    with open_archive(path) as archive:
        named = rank_from_name(path)
        return 0 if named is None and len(archive.world) == 1 else named


def several_ranks(path: Path) -> SeveralRanks | None:
    """Return the process of each rank in an archive, or None if it holds one.

    Without MPI, each process is a rank.
    """
    with open_archive(path) as archive:
        ranks = archive.ranks
        if len(ranks) > 1:
            return SeveralRanks(tuple((process,) for process in ranks.values()), tuple(ranks))
        return None if ranks else SeveralRanks.of_processes(dict.fromkeys(archive.processes))


def other_files(path: Path, part: ProfilePart | None) -> Sequence[Path]:
    """Return the files of an archive beside its anchor file: of some ranks, or of all without ``part``."""
    definitions, folder = path.with_suffix(".def"), path.with_suffix("")
    if part is None:
        events = sorted(folder.iterdir()) if folder.is_dir() else []
        return [definitions, *events]
    with open_archive(path) as archive:
        ids = [loc.id for loc in archive.locations if loc.process in part.processes]
    files = [folder / f"{key}.{end}" for key in ids for end in ("def", "evt")]
    return [definitions, *(file for file in files if file.is_file())]
