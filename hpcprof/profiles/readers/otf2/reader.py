"""Reader of OTF2 archives, of all ranks or of one."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcprof.common.errors import DamagedInput
from hpcprof.common.units import counted
from hpcprof.profiles.collective_operations import mpi_function
from hpcprof.profiles.kernel_classification import classes_of
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import ProfilePart, rank_from_name
from hpcprof.profiles.readers.otf2 import EZTRACE_NAME, OTF2
from hpcprof.profiles.readers.otf2.archive import (
    CPU_THREAD,
    EZTRACE,
    MPI,
    STREAM,
    Archive,
    Location,
    open_archive,
)
from hpcprof.profiles.readers.otf2.events import FLUSH, PAUSE, RMA, LocationEvents, Visits, read_events
from hpcprof.profiles.readers.otf2.library import LibraryError
from hpcprof.profiles.readers.otf2.mpi import (
    CalledEvents,
    events_with_calls,
    kind_of_call,
    operations,
    outermost,
)
from hpcprof.profiles.readers.string_table import StringTable, translate
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    NO_PROCESS,
    ApiCalls,
    Category,
    CpuCounters,
    Gpu,
    Ints,
    Kernels,
    MemoryOperations,
    MpiCalls,
    MpiOperations,
    Origin,
    Ranges,
    Table,
    TableT,
    Timeline,
    concatenate,
)

_ONE_SIDED = re.compile(
    r"MPI_R?(?:Put|Get|(?:Get_a|A)ccumulate)(?:_c)?|MPI_(?:Fetch_and_op|Compare_and_swap)"
)
_SYNCHRONIZES = re.compile(r"MPI_Win_(?:fence|(?:un)?lock|flush|start|complete|post|wait|test|sync)")
"""The calls of windows that access memory of another rank, and those that wait until it is accessed."""

# Paradigms and roles by their numbers in the format.
_GPU_PARADIGMS = (5, 19, 23)  # CUDA, OpenCL and HIP
_MEASUREMENT = 6
_DATA_TRANSFER, _ARTIFICIAL = 30, 31
_MEMORY = (35, 36, 37)  # allocation and release


def read(path: Path, part: ProfilePart | None = None) -> Timeline:
    """Read an OTF2 archive, or only the ranks of ``part``.

    Regions of MPI are its calls, those of CUDA, HIP and OpenCL on a thread are API calls, and all others are
    ranges. A region on a stream of a GPU is a kernel, or a memory copy by its role. Raises DamagedInput if
    the definitions, or the events of the thread that is the rank, cannot be read (other threads that cannot
    be are losses), and UsageError if the user's table of kernel classes is wrong.
    """
    with open_archive(path) as archive:
        return _Building(archive).timeline(part)


class _Building:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._strings = StringTable()
        regions = archive.regions
        self._numbers = {key: self._strings.add(region.name) for key, region in regions.items()}
        self._paradigm = {key: region.paradigm for key, region in regions.items()}
        functions = {key: mpi_function(region.name) for key, region in regions.items()}
        self._kind = {key: kind_of_call(functions[key], region.name) for key, region in regions.items()}
        self._operation = {
            key: self._strings.add(function.operation if function else None)
            for key, function in functions.items()
        }
        self._role = {key: region.role for key, region in regions.items()}
        writer_names = EZTRACE if archive.of_eztrace else ()
        self._writer_regions = [key for key, region in regions.items() if region.name in writer_names]
        self._tables: dict[type[Table], list[Table]] = {}
        self._losses: list[Loss] = []
        self._unread = Counter[str]()
        self._unmatched = 0
        synchronized = any(_SYNCHRONIZES.match(region.name) for region in regions.values())
        self._one_sided = [
            key for key, region in regions.items() if not synchronized and _ONE_SIDED.fullmatch(region.name)
        ]
        """The one-sided functions, if the archive has none that synchronizes windows."""
        self._unsynchronized = 0
        self._visits = 0
        self._gpus: dict[int, int] = {}

    def timeline(self, part: ProfilePart | None) -> Timeline:
        """Read the locations of the ranks and return their timeline."""
        archive = self._archive
        processes = archive.processes if part is None else part.processes
        gpus = [(group, name) for process in processes for group, name in archive.gpus(process).items()]
        self._gpus = {group: number for number, (group, _) in enumerate(gpus)}
        for process in processes:
            self._read_process(process)
        if part is None or part.first:
            events = {loc.id: loc.events for loc in archive.locations}
            unowned = sum(events[loc.id] for loc in archive.locations if loc.process == NO_PROCESS)
            self._losses += losses(LossKind.PROCESS, Subject.EVENT, {"": unowned}, sum(events.values()))
        return Timeline(
            origin=self._origin(processes, [name for _, name in gpus]),
            strings=self._strings.array(),
            kernels=self._table(Kernels),
            memops=self._table(MemoryOperations),
            calls=self._table(ApiCalls),
            ranges=self._table(Ranges),
            mpi_calls=self._table(MpiCalls),
            mpi_operations=self._table(MpiOperations),
            cpu_counters=self._table(CpuCounters),
        )

    def _read_process(self, process: int) -> None:
        rank = self._archive.rank_of(process)
        events = [CalledEvents.empty()]
        for location in self._archive.locations:
            if location.process != process:
                continue
            location_events = self._read_location(location, rank)
            if location_events is None:
                continue
            self._unread += location_events.unread
            self._unmatched += location_events.unmatched
            self._visits += len(location_events.visits)
            if location.type == STREAM:
                self._add_stream(location, location_events.visits)
            elif location.type == CPU_THREAD:
                events.append(self._add_thread(location, location_events))
        mpi, lost = operations(
            concatenate(CalledEvents, events), self._archive, rank or 0, process, self._strings
        )
        self._add(mpi)
        self._losses += lost
        if not any(map(len, self._tables.get(MpiCalls, ()))):
            alone = {"call around it": len(mpi)}
            self._losses += losses(LossKind.ROW, Subject.MPI_OPERATION, alone, len(mpi))

    def _read_location(self, location: Location, rank: int | None) -> LocationEvents | None:
        """Return the events of a location; None, and a loss, if a minor one cannot be read."""
        try:
            return read_events(self._archive, location)
        except LibraryError as error:
            if location.id in self._archive.world:
                raise DamagedInput(
                    f"{self._archive.path}: the events of rank {rank} ({location.id}.evt) cannot be read: "
                    f"{error}."
                ) from None
        name = f"{location.name or 'without a name'} ({location.id}.evt)"
        self._losses.append(Loss(LossKind.LOCATION, Subject.EVENT, max(location.events, 1), None, name))
        return None

    def _add_thread(self, location: Location, events: LocationEvents) -> CalledEvents:
        visits = events.visits
        paradigm = self._look_up(visits.region, self._paradigm)
        mpi = outermost(visits.take(paradigm == MPI))
        self._add(self._calls(MpiCalls, mpi, location))
        on_gpu = np.isin(paradigm, _GPU_PARADIGMS)
        self._add(self._calls(ApiCalls, visits.take(on_gpu), location))
        ranges = visits.take((paradigm != MPI) & ~on_gpu & ~np.isin(visits.region, self._writer_regions))
        self._add(self._calls(Ranges, ranges, location))
        for name, readings in events.counters.items():
            rows = max(len(readings.time) - 1, 0)
            self._add(
                CpuCounters(
                    start=readings.time[:-1],
                    end=readings.time[1:],
                    process=np.full(rows, location.process),
                    thread=np.full(rows, location.id),
                    counter=np.full(rows, self._strings.add(name)),
                    grown=np.diff(readings.value),
                )
            )
        self._unsynchronized += np.count_nonzero(np.isin(mpi.region, self._one_sided))
        kind, operation = self._look_up(mpi.region, self._kind), self._look_up(mpi.region, self._operation)
        return events_with_calls(events.mpi, mpi, kind, operation, location.id)

    def _add_stream(self, location: Location, visits: Visits) -> None:
        role = self._look_up(visits.region, self._role)
        memory = np.isin(role, _MEMORY)
        self._unread["memory allocation"] += int(np.count_nonzero(memory))
        idle = (role == _ARTIFICIAL) | (self._look_up(visits.region, self._paradigm) == _MEASUREMENT)
        copies = role == _DATA_TRANSFER
        ended = visits.left >= 0
        for mask, category, subject in (
            (~copies & ~memory & ~idle, None, Subject.KERNEL),
            (copies, Category.MEM, Subject.COPY),
        ):
            unended = {"end": np.count_nonzero(mask & ~ended)}
            self._losses += losses(LossKind.ROW, subject, unended, int(np.count_nonzero(mask)))
            work = visits.take(mask & ended)
            rows = len(work)
            name = self._look_up(work.region, self._numbers)
            columns = {
                "start": work.start,
                "end": work.end,
                "device": np.full(rows, self._gpus.get(location.group, 0)),
                "stream": np.full(rows, location.id),
                "name": name,
                "category": classes_of(name, self._strings.array())
                if category is None
                else np.full(rows, int(category)),
                "correlation": np.full(rows, NO_CORRELATION),
                "process": np.full(rows, location.process),
            }
            self._add((Kernels if category is None else MemoryOperations)(**columns))

    def _origin(self, processes: Sequence[int], gpus: Sequence[str]) -> Origin:
        archive = self._archive
        lost = self._losses
        unmatched = {"counterpart": self._unmatched}
        lost += losses(LossKind.ROW, Subject.VISIT, unmatched, self._unmatched + 2 * self._visits)
        alone = {"synchronization of their windows, whose time counts as compute": self._unsynchronized}
        lost += losses(LossKind.FIELD, Subject.MPI_OPERATION, alone)
        flushes, pauses = self._unread.pop(FLUSH, 0), self._unread.pop(PAUSE, 0)
        lost += losses(LossKind.CATEGORY, Subject.EVENT, {RMA: self._unread.pop(RMA, 0)})
        # The others add to regions, which have their times.
        lost += losses(LossKind.CATEGORY, Subject.RECORD, self._unread)
        lost += losses(LossKind.PAUSE, Subject.CAPTURE, {"": pauses})
        if flushes:
            sentence = f"its buffer was full and was written {counted(flushes, 'time')} while the program ran"
            lost.append(Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, 1, None, sentence))
        if not archive.has_resolution:
            sentence = (
                "its clock has no resolution: its ticks count as ns, so that only ratios of times are known"
            )
            lost.append(Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, 1, None, sentence))
        rank = archive.rank_of(processes[0]) if len(processes) == 1 else None
        return Origin(
            path=archive.path,
            kind=OTF2.name,
            rank=rank_from_name(archive.path) if rank is None else rank,
            world_size=len(archive.world) or None,
            host=archive.host(processes[0]) if processes else None,
            profiler_version=archive.creator or (EZTRACE_NAME if archive.of_eztrace else None),
            start_utc_ns=archive.start_utc_ns,
            gpus=tuple(Gpu(number, name) for number, name in enumerate(gpus)),
            losses=tuple(lost),
        )

    def _calls(self, kind: type[TableT], visits: Visits, location: Location) -> TableT:
        rows = len(visits)
        columns = {
            "start": visits.start,
            "end": visits.end,
            "process": np.full(rows, location.process),
            "thread": np.full(rows, location.id),
            "name": self._look_up(visits.region, self._numbers),
            "correlation": np.full(rows, NO_CORRELATION),
            "closed": (visits.left >= 0).astype(np.int64),
        }
        return kind(**{name: columns[name] for name in kind.__match_args__ if name in columns})

    def _look_up(self, region: Ints, values: Mapping[int, int]) -> Ints:
        return translate(region.copy(), values)

    def _add(self, table: Table) -> None:
        self._tables.setdefault(type(table), []).append(table)

    def _table(self, kind: type[TableT]) -> TableT:
        return concatenate(kind, self._tables.get(kind, ()))
