"""The edges of the graph inside one rank: the dependencies between the moments of its host and its GPU.

A node is the start or the end of a call or of an operation; an edge says that a node lies at least ``lag`` ns
after another. Waits that a profile does not record are inferred.
"""

from bisect import bisect
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.explain.edge_kinds import EdgeKind as EdgeKind
from hpcprof.analysis.explain.rank_activity import HostCalls, RankActivity, Work
from hpcprof.profiles.columns.intervals import difference, length, union
from hpcprof.profiles.columns.joins import latest_rows, matches, pair_keys
from hpcprof.profiles.columns.unique import ends_run
from hpcprof.profiles.timeline import Category, Ints, Mask, SyncKind, Table, concatenate
from hpcprof.profiles.waiting_calls import waits_for_device

EARLIEST = -(1 << 60)
"""The lag of an edge along which nothing waits."""

_MAX_BACKLOG_NS = 50_000
"""Minimum time from its launch to the end of the work before it for an operation that queued."""

_QUEUE_LENGTH = 1022
"""Maximum number of launches that a stream holds before they begin, measured on H100 and H200; a further
launch waits."""

_HELD_TIMES = 10
"""Minimum ratio of a launch to the usual one for a wait for its nearly full queue."""

_BACKLOG_NS = 1_000_000
"""Minimum delay in ns of a first operation of a stream that was busy before the capture."""

_FIRST_OPERATIONS = 20
"""Number of operations at the begin of a stream that may show so."""

_MIN_BLOCKING_SHARE = 0.95
"""Minimum share of launches that end after their operation, also among long ones, if all launches wait."""

_LAUNCH_NS, _GAP_NS, _EVENT_NS, _RETURN_NS = 10_000, 1_500, 2_000, 5_000
"""Default lags in ns of a launch, on a stream, after an event and at the end of a wait."""


@dataclass(frozen=True)
class Edges(Table):
    """Edges between nodes; ``row`` is the call or the operation to which an edge belongs."""

    source: Ints
    target: Ints
    lag: Ints
    kind: Ints
    row: Ints

    def of(self, *kinds: EdgeKind) -> Ints:
        """Return the rows of the edges of some kinds."""
        return np.flatnonzero(np.isin(self.kind, kinds))


@dataclass(frozen=True)
class RankEdges:
    """The edges of a rank, with counts of what was inferred."""

    edges: Edges
    """Nodes ``2 i`` and ``2 i + 1`` are the start and the end of call i; the operations follow."""
    odd_ns: int
    """The time without work in which operations start later than every known edge explains."""
    inferred_waits: int
    """The waits whose event or stream the profile does not record."""
    blocked: Ints
    """The calls that waited for the GPU."""


def rank_edges(activity: RankActivity) -> RankEdges:
    """Return the edges inside a rank."""
    calls, work = activity.calls, activity.work
    node = 2 * (len(calls) + np.arange(len(work)))
    waits = WaitedWork(activity)
    device, odd_count = _device_edges(calls, work, waits.of_streams(), node)
    blocking, call_time, blocked = _waiting_calls(calls, work, waits, node)
    needed = _needed_by_mpi(calls, blocking)
    queue = _full_queues(calls, work, call_time, node)
    ordered = _ordered_by_host(calls, work, blocking, node)
    edges = concatenate(Edges, [*host_edges(calls, call_time), *device, blocking, ordered, needed, queue])
    return RankEdges(edges, odd_count, waits.inferred, blocked)


def host_edges(calls: HostCalls, call_time: Ints) -> list[Edges]:
    """Return the edges along threads; ``call_time``, of shape (calls,), is the time inside each, in ns."""
    all_calls = np.arange(len(calls))
    follows, first = np.flatnonzero(calls.before != NONE), np.flatnonzero(calls.before == NONE)
    start, end = 2 * all_calls, 2 * all_calls + 1
    return [
        edges_of(end[calls.before[follows]], start[follows], calls.gap[follows], EdgeKind.HOST, follows),
        edges_of(np.full_like(first, NONE), start[first], calls.start[first], EdgeKind.FIXED, first),
        edges_of(start, end, call_time, EdgeKind.CALL, all_calls),
    ]


def edges_of(source: Ints, target: Ints, lag: Ints | int, kind: EdgeKind, row: Ints) -> Edges:
    """Return edges of one kind; a single lag is that of all."""
    lags = np.broadcast_to(np.asarray(lag, np.int64), row.shape)
    return Edges(source, target, lags, np.full(len(row), int(kind)), row)


def _device_edges(calls: HostCalls, work: Work, events: Ints, node: Ints) -> tuple[list[Edges], int]:
    """Return the edges that end at operations, and the time by which operations start later.

    ``node`` has the nodes of the starts of operations.
    """
    # A call with long work of its own, such as the load of a module, launches at its end.
    time = calls.time[work.call]
    usual = _median(time, 0)
    slow = (time > max(_HELD_TIMES * usual, _MAX_BACKLOG_NS)) & (work.start >= calls.end[work.call])
    launched = np.where(slow, calls.end[work.call] - usual, calls.start[work.call])
    ahead = np.where(work.before == NONE, EARLIEST, work.end[work.before])
    signalled, (source, target) = np.full(len(work), EARLIEST), events.T
    np.maximum.at(signalled, target, work.end[source])
    launch, gap = np.zeros(len(work), np.int64), np.zeros(len(work), np.int64)
    ready = np.maximum(ahead, signalled)
    gaps = work.start - ahead
    # Copies differ by name: those from pageable memory start after the host has moved them to pinned memory.
    kind = np.where(work.category == Category.MEM, len(Category) + work.name, work.category)
    for number in np.unique(kind).tolist():
        is_kind = kind == number
        idle = is_kind & (launched > ready) & (work.start - launched < _BACKLOG_NS)
        queued = is_kind & (launched + _MAX_BACKLOG_NS < ahead) & (signalled < ahead)
        launch[is_kind] = _median(work.start[idle] - launched[idle], _LAUNCH_NS)
        gap_of_queued = _median(gaps[queued], _GAP_NS)
        # A few that queued may have waited for something else as well: most of the kind leave less.
        odd = gap_of_queued > _median(gaps[is_kind], _GAP_NS) + ODD_NS
        gap[is_kind] = _GAP_NS if odd else gap_of_queued
    waited = (signalled > ahead) & (launched + _MAX_BACKLOG_NS < signalled)
    event = _median(work.start[waited] - signalled[waited], _EVENT_NS)
    expected = np.maximum.reduce([launched + launch, ahead + gap, signalled + event])
    late = work.start - expected
    late[late < ODD_NS] = 0
    all_rows = np.arange(len(work))
    after = np.flatnonzero(work.before != NONE)
    # Operations of a stream before the first known one cannot be replayed, nor what waits for them.
    prompt, begins = np.cumsum(late <= _BACKLOG_NS), work.before == NONE
    earlier = np.append(0, prompt)[np.maximum.accumulate(np.where(begins, all_rows, 0))]
    first_step = (work.step == work.step.min(initial=0)) & (prompt == earlier)
    # A somewhat late one moves with its launch, which in the first step may follow host work.
    behind = (late > _BACKLOG_NS) & (begins | first_step) & (signalled == EARLIEST)
    late[behind] = 0
    first, prompt_rows = np.flatnonzero(behind), np.flatnonzero(~behind)
    device_edges = [
        edges_of(
            (2 * work.call + slow)[prompt_rows],
            node[prompt_rows],
            np.maximum(launch + late - slow * usual, 0)[prompt_rows],
            EdgeKind.LAUNCH,
            prompt_rows,
        ),
        edges_of(np.full_like(first, NONE), node[first], work.start[first], EdgeKind.FIXED, work.call[first]),
        edges_of(node[work.before[after]] + 1, node[after], (gap + late)[after], EdgeKind.STREAM, after),
        edges_of(node[source] + 1, node[target], event + late[target], EdgeKind.EVENT, target),
        edges_of(node, node + 1, work.time, EdgeKind.RUN, all_rows),
    ]
    is_late = after[late[after] > 0]
    unexplained = difference(union(expected[is_late], work.start[is_late]), union(work.start, work.end))
    return device_edges, length(*unexplained)


def _median(values: Ints, default: int) -> int:
    return int(np.median(values)) if len(values) else default


def _waiting_calls(calls: HostCalls, work: Work, waits: "WaitedWork", node: Ints) -> tuple[Edges, Ints, Ints]:
    """Return the edges of the calls that wait, the own time of every call, and the calls that waited.

    A copy blocks its call if the call returns when the copy has ended. A call that waited has the own time of
    calls of its name that did not, and returns after the usual lag of its name. A launch that waits has its
    own time before the start of its operation.
    """
    blocking = _blocking_calls(calls, work)
    may_wait = np.flatnonzero(np.isin(calls.kind, (CallKind.WAIT, CallKind.FREE, CallKind.PAUSE)))
    call, row = np.concatenate([waits.of_calls(may_wait), blocking]).T
    until = np.full(len(calls), EARLIEST)
    np.maximum.at(until, call, work.end[row])
    waited = until > calls.start + _RETURN_NS
    call_time = calls.time
    lag = np.zeros(len(calls), np.int64)
    for name in np.unique(calls.name[call]).tolist():
        is_call = (calls.name == name) & (until != EARLIEST)
        held, free = is_call & waited, is_call & ~waited
        lag[is_call] = _median((calls.end - until)[held], _RETURN_NS)
        call_time[held] = np.minimum(call_time[held], _median(calls.time[free], _RETURN_NS))
    launch, launched = blocking[calls.kind[blocking[:, 0]] == CallKind.LAUNCH].T
    call_time[launch] = np.maximum(work.start[launched] - calls.start[launch], 0)
    late = calls.end - np.maximum(calls.start + call_time, until + lag)
    lag += np.where(waited & (late > ODD_NS), late, 0)
    edges = edges_of(node[row] + 1, 2 * call + 1, lag[call], EdgeKind.WAIT, call)
    return edges, call_time, np.flatnonzero(waited)


def _ordered_by_host(calls: HostCalls, work: Work, blocking: Edges, node: Ints) -> Edges:
    """Return the edges to kernels from the work of other streams for which their thread waited before.

    An event, or whatever replaces the wait, has to keep that order.
    """
    rows = np.flatnonzero(work.is_compute)
    rows = rows[np.lexsort((work.call[rows], work.stream[rows]))]
    call, stream = work.call[rows], work.stream[rows]
    last = latest_rows((calls.thread[blocking.row],), blocking.row, (calls.thread[call],), call - 1)
    wait = np.where(last == NONE, NONE, np.append(blocking.row, NONE)[last])
    follows = stream == np.append(NONE, stream[:-1])
    first = np.flatnonzero(wait > np.where(follows, np.append(NONE, call[:-1]), NONE))
    kernel, edge = matches(wait[first], blocking.row)
    source, target = blocking.source[edge], rows[first[kernel]]
    other = work.stream[source // 2 - len(calls)] != work.stream[target]
    return edges_of(source[other], node[target[other]], 0, EdgeKind.AFTER_WAIT, target[other])


def _needed_by_mpi(calls: HostCalls, blocking: Edges) -> Edges:
    """Return the edges to calls of MPI from the work for which their thread waited just before.

    The data to send need that work, even where the thread itself would not have to wait.
    """
    mpi = np.flatnonzero(calls.kind == CallKind.MPI)
    # Calls are sorted by start; so are those of a thread.
    mpi = mpi[np.argsort(calls.thread[mpi], kind="stable")]
    thread, count = calls.thread[mpi], len(calls) + 1
    call = (blocking.target - 1) // 2
    after = np.searchsorted(thread * count + mpi, calls.thread[call] * count + call)
    rows = np.flatnonzero(after < len(mpi))
    rows = rows[thread[after[rows]] == calls.thread[call[rows]]]
    following = mpi[after[rows]]
    return edges_of(blocking.source[rows], 2 * following, 0, EdgeKind.WAIT, following)


def _full_queues(calls: HostCalls, work: Work, call_time: Ints, node: Ints) -> Edges:
    """Return the edges of launches that wait for room in the queue of their stream; shorten their own time.

    A launch returns when the operation `_QUEUE_LENGTH` launches before it has begun. A queue was full only if
    a launch took long while the queue was nearly full.
    """
    edges = [Edges.empty()]
    usual = _median(call_time[calls.kind == CallKind.LAUNCH], _RETURN_NS)
    for stream in np.unique(work.stream).tolist():
        rows = np.flatnonzero(work.stream == stream)
        call = work.call[rows]
        begun = np.searchsorted(work.start[rows], calls.end[call], side="right")
        ahead = np.arange(len(rows)) - begun
        # Launches before the capture are unknown.
        waited = work.start[rows[:_FIRST_OPERATIONS]] - calls.start[call[:_FIRST_OPERATIONS]]
        backlog = bool(np.any(waited > _BACKLOG_NS))
        queues = np.isin(calls.kind[call], (CallKind.LAUNCH, CallKind.COPY))
        long = queues & (call_time[call] > max(_HELD_TIMES * usual, _MAX_BACKLOG_NS))
        long &= begun > 0
        held = np.flatnonzero(long & (ahead >= (_QUEUE_LENGTH // 8 if backlog else _QUEUE_LENGTH // 2)))
        if not len(held):
            continue
        call_time[call[held]] = usual
        freeing = begun[held] - 1
        lag = np.maximum(calls.end[call[held]] - work.start[rows[freeing]], 0)
        edges.append(edges_of(node[rows[freeing]], 2 * call[held] + 1, lag, EdgeKind.WAIT, call[held]))
        late = np.setdiff1d(np.arange(_QUEUE_LENGTH, len(rows)), held)
        waits = call[late]
        room = np.full(len(late), _RETURN_NS)
        edges.append(edges_of(node[rows[late - _QUEUE_LENGTH]], 2 * waits + 1, room, EdgeKind.WAIT, waits))
    return concatenate(Edges, edges)


def _blocking_calls(calls: HostCalls, work: Work) -> Ints:
    """Return the calls that return when their operation ends, and the operation; shape (n, 2).

    Copies return some µs before. Launches count only if nearly all wait (`_MIN_BLOCKING_SHARE`), as with
    ``CUDA_LAUNCH_BLOCKING=1``: a single one may last longer than a short operation without waiting.
    """
    kind, end, time = calls.kind[work.call], calls.end[work.call], work.time
    copies, launches = (work.category == Category.MEM) & (kind == CallKind.COPY), kind == CallKind.LAUNCH
    almost = work.end - np.where(copies, np.minimum(ODD_NS, time // 2), 0)
    held, long = (end >= almost) & (work.start < end), launches & (time > ODD_NS)
    if (
        np.count_nonzero(long) >= _FIRST_OPERATIONS
        and min(held[launches].mean(), held[long].mean()) >= _MIN_BLOCKING_SHARE
    ):
        copies |= launches
    rows = np.flatnonzero(copies & held)
    return np.column_stack((work.call[rows], rows))


ODD_NS = 10_000
"""Minimum unexplained delay of an operation that the replay keeps, in ns; its cause is unknown."""


DEFAULT_STREAM, MAX_BESIDE_SHARE = 7, 0.01
"""CUPTI's number of CUDA's legacy default stream, and maximum share of its time beside streams that it waits
for, and that wait for it: those that are not created as non-blocking."""


class _RecordedWait(NamedTuple):
    """The record of a wait, with the stream (``source``) and the call that recorded the event."""

    kind: int
    device: int
    stream: int
    source: int
    recorder: int


class WaitedWork:
    """The work that calls and streams of a rank wait for: as recorded, else as inferred."""

    def __init__(self, activity: RankActivity) -> None:
        self.calls, self.work = activity.calls, activity.work
        self.inferred = 0
        launched = self.calls.start[self.work.call]
        order = np.lexsort((self.work.start, launched, self.work.stream))
        bounds = np.searchsorted(self.work.stream[order], np.arange(len(activity.streams) + 1))
        self._by_launch = [order[a:b] for a, b in pairwise(bounds.tolist())]
        self._launched = [launched[rows] for rows in self._by_launch]
        self._by_end = np.argsort(self.work.end, kind="stable")
        self._stream = {(device, stream): i for i, (device, stream) in enumerate(activity.streams.tolist())}
        self._numbers = activity.streams[:, 1].tolist()
        self._recorded_waits = _recorded_waits(activity)
        self._devices = activity.streams[:, 0].tolist()
        # CUPTI may record no wait for a whole GPU. The call's name tells it where the rank has one GPU.
        used = np.unique(self.calls.name).tolist() if len({*self._devices}) == 1 else []
        self._device_waits = {name for name in used if waits_for_device(activity.names[name] or "")}
        self._passed_on: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
        self._records = np.flatnonzero(self.calls.kind == CallKind.RECORD)
        on_gpu = np.flatnonzero(~np.isin(self.calls.kind, (CallKind.MPI, CallKind.PAUSE)))
        correlation = activity.timeline.calls.correlation[self.calls.row[on_gpu]]
        self._of_correlation = dict(zip(correlation.tolist(), on_gpu.tolist(), strict=True))

        # In order of the calls: an event is recorded before the wait for it.
        for call, wait in sorted(self._recorded_waits.items()):
            moment = int(self.calls.start[call])
            recorded = self._record_time(wait, moment)
            if wait.kind == SyncKind.STREAM_WAIT and recorded < moment:
                last = self._find_last_given(wait.device, wait.stream, moment)
                source_work = self._find_last_given(
                    self._source_device(wait, recorded), wait.source, recorded
                )
                passed_on = self._passed_on.setdefault((wait.device, wait.stream), [])
                passed_on.append((moment, self._latest_operations([*last, *source_work])))

    def _stream_number(self, device: int, stream: int) -> int | None:
        """Return the number of a stream; profilers may number the device of a wait within its process."""
        alone = self._numbers.index(stream) if self._numbers.count(stream) == 1 else None
        return self._stream.get((device, stream), alone)

    def _find_last_given(self, device: int, stream: int, moment: int) -> list[int]:
        """Return the last operations that a stream had to execute or await before a moment.

        These are the last operation on it and its waits since then: an event on a stream without work of its
        own passes on the waits of that stream. The last operation of each awaited stream is enough.
        """
        number = self._stream_number(device, stream)
        last_work = [] if number is None else self._last_on_stream(number, moment)
        waits = self._passed_on.get((device, stream), [])
        last = bisect(waits, moment, key=itemgetter(0)) - 1
        if last >= 0 and (not last_work or self.calls.start[self.work.call[last_work[0]]] < waits[last][0]):
            return waits[last][1]
        return last_work

    def _latest_operations(self, work: list[int]) -> list[int]:
        last_of: dict[int, int] = {}
        for row in work:
            other = last_of.setdefault(int(self.work.stream[row]), row)
            if self.work.end[row] > self.work.end[other]:
                last_of[int(self.work.stream[row])] = row
        return list(last_of.values())

    def _last_on_stream(self, stream: int, moment: int) -> list[int]:
        place = int(np.searchsorted(self._launched[stream], moment)) - 1
        return [int(self._by_launch[stream][place])] if place >= 0 else []

    def _last_on_streams(self, moment: int, device: int | None) -> list[int]:
        """Return the last operation on each stream of a device, of all where the profile does not know it."""
        chosen = {device} if device in self._devices else {*self._devices}
        streams = (stream for stream, its_device in enumerate(self._devices) if its_device in chosen)
        return [row for stream in streams for row in self._last_on_stream(stream, moment)]

    def _source_device(self, wait: _RecordedWait, moment: int) -> int:
        """Return the device of the stream that recorded the event of a wait, which profiles do not tell.

        It is the device of the waiting stream unless both streams have one number, as no stream waits for
        itself. Then it is the other device with a stream of this number that was last given work: events are
        recorded after work.
        """
        if wait.source != wait.stream:
            return wait.device
        launched = {
            device: int(self.calls.start[self.work.call[last[0]]])
            for (device, stream), number in self._stream.items()
            if stream == wait.source
            and device != wait.device
            and (last := self._last_on_stream(number, moment))
        }
        return max(launched, key=launched.__getitem__, default=wait.device)

    def _find_last_ended_inside(self, call: int) -> list[int]:
        """Return the operation that ended last while a call was executed: what an unknown wait waited for."""
        last = int(np.searchsorted(self.work.end[self._by_end], self.calls.end[call], side="right")) - 1
        row = int(self._by_end[last]) if last >= 0 else NONE
        return [row] if row != NONE and self.work.end[row] > self.calls.start[call] else []

    def of_calls(self, waiting: Ints) -> Ints:
        """Return the pairs of a waiting call and an operation that it waits for, shape (n, 2)."""
        pauses = self.calls.kind[waiting] == CallKind.PAUSE
        pairs = [(call, row) for call in waiting[~pauses].tolist() for row in self._of_call(call)]
        parts = [np.array(pairs, np.int64).reshape(-1, 2)]
        calls = waiting[pauses]
        for work, launched in zip(self._by_launch, self._launched, strict=True):
            place = np.searchsorted(launched, self.calls.start[calls]) - 1
            parts.append(np.column_stack((calls[place >= 0], work[place[place >= 0]])))
        return np.concatenate(parts)

    def _of_call(self, call: int) -> list[int]:
        moment = int(self.calls.start[call])
        wait = self._recorded_waits.get(call)
        if wait is None and int(self.calls.name[call]) in self._device_waits:
            return self._last_on_streams(moment, self._devices[0])
        if self.calls.kind[call] == CallKind.FREE or (wait and wait.kind == SyncKind.DEVICE):
            return self._last_on_streams(moment, wait.device if wait else None)
        if wait is None or wait.kind not in (SyncKind.STREAM, SyncKind.EVENT):
            self.inferred += 1
            return self._find_last_ended_inside(call)
        if wait.kind == SyncKind.STREAM:
            return self._find_last_given(wait.device, wait.stream, moment)
        return self._find_last_given(wait.device, wait.source, self._record_time(wait, moment))

    def _record_time(self, wait: _RecordedWait, otherwise: int) -> int:
        call = self._of_correlation.get(wait.recorder)
        return otherwise if call is None else int(self.calls.start[call])

    def of_streams(self) -> Ints:
        """Return the pairs of operations whose second one waits for the first by an event, shape (n, 2).

        1. A recorded wait holds for the next operation that is launched on the waiting stream.
        2. If the event is not recorded, the waiting stream is that of the operation launched next. The event
           is the one recorded last, after the last operation that was launched on another stream.
        3. If no wait of a stream is recorded at all, an operation waited for the operation of another stream
           that ended just before it began. So do operations of CUDA's legacy default stream, and others for
           them, if none runs beside others.
        """
        waiting = np.flatnonzero(self.calls.kind == CallKind.STREAM_WAIT).tolist()
        pairs = [pair for call in waiting for pair in self._of_wait(call)]
        probable = self._probable_source()
        if waiting:
            probable = probable[self._in_serial_stream()[probable].any(axis=1)]
        else:
            self.inferred += len(probable)
        waits = np.concatenate((np.array(pairs, np.int64).reshape(-1, 2), probable))
        # The last operation of each stream decides.
        order = np.lexsort((self.work.end[waits[:, 0]], self.work.stream[waits[:, 0]], waits[:, 1]))
        waits = waits[order]
        waits = waits[ends_run(waits[:, 1], self.work.stream[waits[:, 0]])]
        # An operation that ends after the begin of the waiting one cannot be its source.
        possible: Ints = waits[self.work.end[waits[:, 0]] <= self.work.start[waits[:, 1]] + ODD_NS]
        return possible

    def _probable_source(self) -> Ints:
        """Return the operations of other streams that ended just before one that was launched long ago."""
        work = self.work
        last = np.searchsorted(work.end[self._by_end], work.start, side="right") - 1
        # The operation before it on its own stream may explain when it began.
        free = (work.before == NONE) | (work.start - work.end[work.before] > ODD_NS)
        late = np.flatnonzero((last >= 0) & free)
        source = self._by_end[last[late]]
        launched = self.calls.start[work.call[late]]
        is_plausible = (work.stream[source] != work.stream[late]) & (work.end[source] > launched + ODD_NS)
        is_plausible &= work.start[late] - work.end[source] <= ODD_NS
        return np.column_stack((source[is_plausible], late[is_plausible]))

    def _in_serial_stream(self) -> Mask:
        """Return a mask of the operations of the legacy default stream, if none runs beside others."""
        work = self.work
        default = np.array(self._numbers, np.int64)[work.stream] == DEFAULT_STREAM
        alone, other = (length(work.start[rows], work.end[rows]) for rows in (default, ~default))
        beside = alone + other - length(work.start, work.end)
        serial: Mask = default & (beside <= MAX_BESIDE_SHARE * alone)
        return serial

    def _of_wait(self, call: int) -> list[tuple[int, int]]:
        wait = self._recorded_waits.get(call)
        moment = int(self.calls.start[call])
        if wait is None:
            self.inferred += 1
            return self._inferred_wait(moment)
        waiting = self._stream_number(wait.device, wait.stream)
        if waiting is None:
            return []
        place = int(np.searchsorted(self._launched[waiting], moment))
        if place == len(self._by_launch[waiting]):
            return []
        target = int(self._by_launch[waiting][place])
        recorded = self._record_time(wait, moment)
        signalling = self._find_last_given(self._source_device(wait, recorded), wait.source, recorded)
        return [(row, target) for row in signalling if self.work.stream[row] != waiting]

    def _inferred_wait(self, moment: int) -> list[tuple[int, int]]:
        after = [
            rows[place]
            for rows, launched in zip(self._by_launch, self._launched, strict=True)
            if (place := int(np.searchsorted(launched, moment))) < len(rows)
        ]
        recorded = int(np.searchsorted(self.calls.start[self._records], moment)) - 1
        if not after or recorded < 0:
            return []
        target = min(after, key=lambda row: int(self.calls.start[self.work.call[row]]))
        when = int(self.calls.start[self._records[recorded]])
        other_streams = [
            row
            for stream in range(len(self._by_launch))
            if stream != self.work.stream[target]
            for row in self._last_on_stream(stream, when)
        ]
        if not other_streams:
            return []
        return [(max(other_streams, key=lambda row: int(self.calls.start[self.work.call[row]])), int(target))]


def _recorded_waits(activity: RankActivity) -> dict[int, _RecordedWait]:
    """Return the profile's record of each waiting call that has one."""
    table, calls = activity.timeline.synchronizations, activity.timeline.calls
    rows = np.flatnonzero(np.isin(activity.calls.kind, (CallKind.WAIT, CallKind.STREAM_WAIT, CallKind.FREE)))
    row = activity.calls.row[rows]
    ours, theirs = pair_keys((calls.process[row], calls.correlation[row]), (table.process, table.correlation))
    call, match = matches(ours, theirs)
    columns = (table.kind, table.device, table.stream, table.source_stream, table.source_correlation)
    waits = map(_RecordedWait, *(column[match].tolist() for column in columns))
    return dict(zip(rows[call].tolist(), waits, strict=True))
