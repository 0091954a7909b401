"""Events of one location of an OTF2 archive as columns, and the regions that they enter and leave."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import msgspec
import numpy as np

from hpcprof.profiles.columns.unique import numbered, numbered_rows, position_in_group
from hpcprof.profiles.readers.otf2.archive import STREAM, UNDEFINED, Archive, ArchiveClock, Location
from hpcprof.profiles.readers.otf2.library import POINTER, U8, U32, U64, Callbacks, LibraryError
from hpcprof.profiles.timeline import Ints, Mask, Table

_RMA = (
    *("Put", "Get", "Atomic", "Sync", "GroupSync", "WaitChange", "CollectiveBegin", "WinCreate"),
    *("RequestLock", "AcquireLock", "TryLock", "OpCompleteBlocking", "OpCompleteNonBlocking"),
)
FLUSH = "flush"
PAUSE = "pause"
RMA = "RMA"
METRICS = "metrics other than instructions and cycles"
_UNREAD = {
    **{f"Rma{name}": RMA for name in _RMA},
    "IoOperationBegin": "sizes of I/O",
    "CallingContextSample": "samples",
    "BufferFlush": FLUSH,
}
"""Events that are only counted, with the category to count them in."""


class MpiKind(IntEnum):
    """The kind of an event of MPI."""

    SEND = 0
    RECEIVE = 1
    COLLECTIVE = 2
    BEGIN_SEND = 3
    BEGIN_RECEIVE = 4
    BEGIN_COLLECTIVE = 5
    END_SEND = 6
    END_RECEIVE = 7
    END_COLLECTIVE = 8
    CANCEL = 9
    WAIT_ALL = 10
    WAIT = 11
    """A call that ends one operation."""
    WAIT_SOME = 12
    """A call that ends at least one of several operations."""
    TEST = 13
    """A call that may end operations."""
    CALL_MESSAGE = 14
    CALL_COLLECTIVE = 15
    CALL_BEGIN_COLLECTIVE = 16
    """A call that sends or receives, takes part in a collective or begins one; ``tag`` is the operation."""


@dataclass(frozen=True)
class MpiEvents(Table):
    """Events of MPI; ``position`` is how many times a region was entered or left before.

    ``peer`` is the partner or the root, and ``tag`` that of a message or the operation of a collective.
    """

    kind: Ints
    position: Ints
    time: Ints
    peer: Ints
    communicator: Ints
    tag: Ints
    sent: Ints
    received: Ints
    request: Ints


_VALUE_BYTES = 8
_MEASUREMENT_OFF = 2
"""Values of OTF2_MeasurementMode."""
_WIDTH = len(MpiEvents.__match_args__)


@dataclass(frozen=True)
class Visits(Table):
    """Regions from an enter to its leave, which are numbered together in the order of their times.

    ``left`` is -1, and ``end`` the last time of the location, if the region was never left.
    """

    region: Ints
    start: Ints
    end: Ints
    entered: Ints
    left: Ints


class Readings(msgspec.Struct, frozen=True):
    """The values of a counter of the CPU at some times; arrays of shape (n,)."""

    time: Ints
    value: Ints


class LocationEvents(msgspec.Struct):
    """The events of one location."""

    visits: Visits
    """In the order of their enters."""
    unmatched: int
    """The number of enters and leaves that do not fit each other and are left out."""
    mpi: MpiEvents
    unread: Counter[str]
    """The number of events of each category that is only counted. While one of `FLUSH` writes the profiler's
    buffer, the program waits; from one of `PAUSE` on, nothing is recorded.
    """
    counters: Mapping[str, Readings]
    """By name."""


_UNKNOWN_MESSAGE = (UNDEFINED, UNDEFINED, UNDEFINED)
"""Peer, communicator and tag of a message that records none of them."""


class _EventRecorder(msgspec.Struct):
    """The events of a location as the library hands them over.

    Each function is called with the location, the time, the position, data and attributes of an event before
    its own fields. A leave is the complement of its region.
    """

    times: array[int] = msgspec.field(default_factory=partial(array, "Q"))
    regions: array[int] = msgspec.field(default_factory=partial(array, "q"))
    mpi: array[int] = msgspec.field(default_factory=partial(array, "Q"))
    unread: Counter[str] = msgspec.field(default_factory=Counter)
    counted: dict[str, tuple[array[int], array[int]]] = msgspec.field(default_factory=dict)

    def callbacks(self, contexts: Mapping[int, int], counters: Mapping[int, Mapping[str, int]]) -> Callbacks:
        """Return the functions to call.

        ``contexts`` has the region of each calling context, and ``counters`` the places of counters among the
        values of metrics.
        """
        message, collective = (U32, U32, U32, U64), (U8, U32, U32, U64, U64)
        return {
            **self._visit_callbacks(contexts),
            **self._probe_callbacks(),
            "Metric": ((U32, U8, POINTER, POINTER), self._metric(counters)),
            "MpiSend": (message, self._message(MpiKind.SEND)),
            "MpiRecv": (message, self._message(MpiKind.RECEIVE)),
            "MpiIsend": ((*message, U64), self._message(MpiKind.BEGIN_SEND)),
            "MpiIsendComplete": ((U64,), self._request(MpiKind.END_SEND)),
            "MpiIrecvRequest": ((U64,), self._request(MpiKind.BEGIN_RECEIVE)),
            "MpiIrecv": ((*message, U64), self._message(MpiKind.END_RECEIVE)),
            "MpiRequestCancelled": ((U64,), self._request(MpiKind.CANCEL)),
            "MpiCollectiveEnd": (collective, self._collective(MpiKind.COLLECTIVE)),
            "NonBlockingCollectiveRequest": ((U64,), self._request(MpiKind.BEGIN_COLLECTIVE)),
            "NonBlockingCollectiveComplete": ((*collective, U64), self._collective(MpiKind.END_COLLECTIVE)),
            "MeasurementOnOff": ((U8,), self._measurement),
            **{name: ((), self._count(category)) for name, category in _UNREAD.items()},
        }

    def _visit_callbacks(self, contexts: Mapping[int, int]) -> Callbacks:
        add_time, add_region = self.times.append, self.regions.append

        def enter(_: int, time: int, __: int, ___: int, ____: int, region: int) -> int:
            add_time(time)
            add_region(region)
            return 0

        def leave(_: int, time: int, __: int, ___: int, ____: int, region: int) -> int:
            add_time(time)
            add_region(~region)
            return 0

        def enter_context(_: int, time: int, __: int, ___: int, ____: int, context: int) -> int:
            return enter(_, time, __, ___, ____, contexts.get(context, UNDEFINED))

        def leave_context(_: int, time: int, __: int, ___: int, ____: int, context: int) -> int:
            return leave(_, time, __, ___, ____, contexts.get(context, UNDEFINED))

        return {
            "Enter": ((U32,), enter),
            "Leave": ((U32,), leave),
            "CallingContextEnter": ((U32,), enter_context),
            "CallingContextLeave": ((U32,), leave_context),
        }

    def _message(self, kind: MpiKind) -> Callable[..., int]:
        number, add, regions = int(kind), self.mpi.extend, self.regions

        def function(_: int, time: int, __: int, ___: int, ____: int, *fields: int) -> int:
            # The event of a blocking call has no request.
            peer, communicator, tag, size, request = fields if len(fields) == 5 else (*fields, 0)
            add((number, len(regions), time, peer, communicator, tag, size, size, request))
            return 0

        return function

    def _request(self, kind: MpiKind) -> Callable[..., int]:
        number, add, regions = int(kind), self.mpi.extend, self.regions

        def function(_: int, time: int, __: int, ___: int, ____: int, request: int) -> int:
            add((number, len(regions), time, *_UNKNOWN_MESSAGE, 0, 0, request))
            return 0

        return function

    def _collective(self, kind: MpiKind) -> Callable[..., int]:
        number, add, regions = int(kind), self.mpi.extend, self.regions

        def function(_: int, time: int, __: int, ___: int, ____: int, *fields: int) -> int:
            operation, communicator, root, sent, received, request = (
                fields if len(fields) == 6 else (*fields, 0)
            )
            add((number, len(regions), time, root, communicator, operation, sent, received, request))
            return 0

        return function

    def _probe_callbacks(self) -> Callbacks:
        add, regions = self.mpi.extend, self.regions
        probes: dict[int, tuple[int, int, int]] = {}
        requests: dict[int, tuple[int, int, int]] = {}

        def probe(_: int, time: int, __: int, ___: int, ____: int, *fields: int) -> int:
            peer, communicator, tag, message = fields
            probes[message] = (peer, communicator, tag)
            return 0

        def receive(_: int, time: int, __: int, ___: int, ____: int, message: int, size: int) -> int:
            fields = probes.pop(message, _UNKNOWN_MESSAGE)
            add((MpiKind.RECEIVE, len(regions), time, *fields, size, size, 0))
            return 0

        def begin(_: int, time: int, __: int, ___: int, ____: int, message: int, request: int) -> int:
            requests[request] = probes.pop(message, _UNKNOWN_MESSAGE)
            add((MpiKind.BEGIN_RECEIVE, len(regions), time, *_UNKNOWN_MESSAGE, 0, 0, request))
            return 0

        def end(_: int, time: int, __: int, ___: int, ____: int, request: int, size: int) -> int:
            fields = requests.pop(request, _UNKNOWN_MESSAGE)
            add((MpiKind.END_RECEIVE, len(regions), time, *fields, size, size, request))
            return 0

        return {
            "MpiProbe": ((U32, U32, U32, U64), probe),
            "MpiMrecv": ((U64, U64), receive),
            "MpiImrecvRequest": ((U64, U64), begin),
            "MpiImrecv": ((U64, U64), end),
        }

    def _metric(self, counters: Mapping[int, Mapping[str, int]]) -> Callable[..., int]:
        unread, counted = self.unread, self.counted

        def function(_: int, time: int, __: int, ___: int, ____: int, *fields: int) -> int:
            metric, size, _types, address = fields
            places = counters.get(metric, {})
            unread[METRICS] += size > len(places)
            for name, place in places.items():
                times, values = counted.setdefault(name, (array("Q"), array("Q")))
                times.append(time)
                values.append(U64.from_address(address + _VALUE_BYTES * place).value)
            return 0

        return function

    def _measurement(self, _: int, __: int, ___: int, ____: int, _____: int, mode: int) -> int:
        self.unread[PAUSE] += mode == _MEASUREMENT_OFF
        return 0

    def _count(self, category: str) -> Callable[..., int]:
        unread = self.unread

        def function(_: int, time: int, __: int, ___: int, ____: int) -> int:
            unread[category] += 1
            return 0

        return function


def read_events(archive: Archive, location: Location) -> LocationEvents:
    """Read the events of a location; the regions of a GPU's stream may overlap.

    Raises LibraryError if its file is missing or damaged.
    """
    recorded = _EventRecorder()
    count = archive.handle.read_events(location.id, recorded.callbacks(archive.contexts, archive.counters))
    if count < location.events and not _are_miscounted(archive):
        raise LibraryError(f"{count:,} of {location.events:,} events are there")
    visits, unmatched = _visits(recorded, archive.clock, nested=location.type != STREAM)
    values = np.frombuffer(recorded.mpi, np.uint64).reshape(-1, _WIDTH)
    columns = {name: values[:, place].astype(np.int64) for place, name in enumerate(MpiEvents.__match_args__)}
    columns["time"] = archive.clock.nanoseconds(values[:, MpiEvents.__match_args__.index("time")])
    counters = {
        name: Readings(
            archive.clock.nanoseconds(np.frombuffer(times, np.uint64)),
            np.frombuffer(values, np.uint64).view(np.int64),
        )
        for name, (times, values) in recorded.counted.items()
    }
    return LocationEvents(visits, unmatched, MpiEvents(**columns), recorded.unread, counters)


def _are_miscounted(archive: Archive) -> bool:
    """Return whether locations hold more events than the archive states, so that its numbers mean nothing.

    APEX writes the number of definitions in place of the number of events.
    """
    for location in archive.locations:
        with suppress(LibraryError):
            if archive.handle.read_events(location.id, {}) > location.events:
                return True
    return False


def _visits(recorded: _EventRecorder, clock: ArchiveClock, *, nested: bool) -> tuple[Visits, int]:
    """Return the regions that were entered, and the number of enters and leaves without a counterpart.

    On a thread, a leave ends the region that was entered last and not left, or, where regions cross, the last
    enter of its own region that is left over; on a stream, the n-th leave of a region ends the n-th of its
    enters.
    """
    region = np.frombuffer(recorded.regions, np.int64)
    time = clock.nanoseconds(np.frombuffer(recorded.times, np.uint64))
    if not len(region):
        return Visits.empty(), 0
    enters = region >= 0
    region = np.where(enters, region, ~region)
    if nested:
        depth = np.cumsum(np.where(enters, 1, -1))
        slot = np.where(enters, depth, depth + 1)
    else:
        number = numbered(region)[1]
        slot = numbered_rows(number, position_in_group(2 * number + ~enters))[1]
    # In a slot, enters and the leaves that end them take turns.
    order = np.argsort(slot, kind="stable")
    first, second = order[:-1], order[1:]
    is_pair = (slot[first] == slot[second]) & enters[first] & ~enters[second]
    is_last_in_slot = np.ones(len(region), bool)
    is_last_in_slot[first[slot[first] == slot[second]]] = False
    is_pair &= region[first] == region[second]
    leaves = np.full(len(region), -1)
    leaves[first[is_pair]] = second[is_pair]
    if nested:
        _pair_crossed(region, enters, leaves)
    entered = np.flatnonzero(enters & (is_last_in_slot | (leaves >= 0)))
    leaves = leaves[entered]
    end = np.where(leaves >= 0, time[leaves], time.max())
    unmatched = len(region) - len(entered) - np.count_nonzero(leaves >= 0)
    return Visits(region[entered], time[entered], end, entered, leaves), int(unmatched)


def _pair_crossed(region: Ints, enters: Mask, leaves: Ints) -> None:
    """Add the leaves of regions that cross others: each ends the last open enter of its region."""
    paired = leaves >= 0
    paired[leaves[paired]] = True
    opened: dict[int, list[int]] = {}
    for place in np.flatnonzero(~paired).tolist():
        open_enters = opened.setdefault(int(region[place]), [])
        if enters[place]:
            open_enters.append(place)
        elif open_enters:
            leaves[open_enters.pop()] = place
