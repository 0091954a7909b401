"""Targets of the waiting calls and streams of a rank, as recorded or as inferred."""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise
from operator import itemgetter

import numpy as np

from hpcprof.analysis.explain.host_activity import NONE
from hpcprof.analysis.explain.rank_activity import CallKind, RankActivity
from hpcprof.profiles.columns.joins import matches, pair_keys
from hpcprof.profiles.timeline import Ints, SyncKind

ODD_NS = 10_000
"""A later start than the known edges explain is kept as it is, with what it is due to unknown."""


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
        self._recorded = _recorded(activity)
        self._devices = activity.streams[:, 0].tolist()
        self._passed_on: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
        self._records = np.flatnonzero(self.calls.kind == CallKind.RECORD)
        of_gpu = np.flatnonzero(~np.isin(self.calls.kind, (CallKind.MPI, CallKind.PAUSE)))
        correlation = activity.timeline.calls.correlation[self.calls.row[of_gpu]]
        self._of_correlation = dict(zip(correlation.tolist(), of_gpu.tolist(), strict=True))

        # An event is recorded before the wait for it, so what its stream had to wait for is known by then.
        for call, (kind, device, stream, source, record) in sorted(self._recorded.items()):
            moment = int(self.calls.start[call])
            recorded = self._recorded_at(record, moment)
            if kind == SyncKind.STREAM_WAIT and recorded < moment:
                of_source = self._recording(device, stream, source, recorded)
                own, others = self._before(device, stream, moment), self._before(of_source, source, recorded)
                passed_on = self._passed_on.setdefault((device, stream), [])
                passed_on.append((moment, self._latest([*own, *others])))

    def _numbered(self, device: int, stream: int) -> int | None:
        """Return the number of a stream; profilers may number the device of a wait within its process."""
        alone = self._numbers.index(stream) if self._numbers.count(stream) == 1 else None
        return self._stream.get((device, stream), alone)

    def _before(self, device: int, stream: int, moment: int) -> list[int]:
        """Return the operations that end when all is done that a stream was given before a moment.

        These are the last operation on it, and what it was told to wait for since then: an event on a stream
        without work of its own passes on the waits of that stream. Of each stream, the last one is enough.
        """
        number = self._numbered(device, stream)
        found = [] if number is None else self._last_on(number, moment)
        waits = self._passed_on.get((device, stream), [])
        last = bisect(waits, moment, key=itemgetter(0)) - 1
        if last >= 0 and (not found or self.calls.start[self.work.call[found[0]]] < waits[last][0]):
            return waits[last][1]
        return found

    def _latest(self, work: list[int]) -> list[int]:
        """Return the operation of each stream that ends last."""
        of_stream: dict[int, int] = {}
        for row in work:
            other = of_stream.setdefault(int(self.work.stream[row]), row)
            if self.work.end[row] > self.work.end[other]:
                of_stream[int(self.work.stream[row])] = row
        return list(of_stream.values())

    def _last_on(self, stream: int, moment: int) -> list[int]:
        """Return the last operation that was launched on a stream before a moment, if any."""
        place = int(np.searchsorted(self._launched[stream], moment)) - 1
        return [int(self._by_launch[stream][place])] if place >= 0 else []

    def _last_on_all(self, moment: int, device: int | None) -> list[int]:
        """Return the last operation on each stream of a device, of all where the profile does not know it."""
        known = device in self._devices
        streams = [i for i, of in enumerate(self._devices) if of == device or not known]
        return [one for stream in streams for one in self._last_on(stream, moment)]

    def _recording(self, device: int, stream: int, source: int, moment: int) -> int:
        """Return the device of the stream that a stream waits for, which profiles do not say.

        It is the same device, but a stream does not wait for itself: then it is another one that has a stream
        of this number. That is the one that was last given work, since an event is recorded after it.
        """
        if source != stream:
            return device
        launched = {
            of: int(self.calls.start[self.work.call[last[0]]])
            for (of, one), number in self._stream.items()
            if one == source and of != device and (last := self._last_on(number, moment))
        }
        return max(launched, key=launched.__getitem__, default=device)

    def _ended_inside(self, call: int) -> list[int]:
        """Return the operation that ended last while a call was executed: what an unknown wait waited for."""
        last = int(np.searchsorted(self.work.end[self._by_end], self.calls.end[call], side="right")) - 1
        row = int(self._by_end[last]) if last >= 0 else NONE
        return [row] if row != NONE and self.work.end[row] > self.calls.start[call] else []

    def of_calls(self, waiting: Ints) -> Ints:
        """Return the pairs of a waiting call and an operation that it waits for, shape (n, 2)."""
        pauses = self.calls.kind[waiting] == CallKind.PAUSE
        pairs = [(call, row) for call in waiting[~pauses].tolist() for row in self._of_call(call)]
        found: Ints = np.concatenate(
            [np.array(pairs, np.int64).reshape(-1, 2), np.column_stack(self._before_all(waiting[pauses]))]
        )
        return found

    def _before_all(self, calls: Ints) -> tuple[Ints, Ints]:
        """Return calls, each once for every stream, with the last operation launched there before them."""
        place = [np.searchsorted(launched, self.calls.start[calls]) - 1 for launched in self._launched]
        there = [np.flatnonzero(one >= 0) for one in place]
        rows = [work[one[kept]] for work, one, kept in zip(self._by_launch, place, there, strict=True)]
        none = np.empty(0, np.int64)
        return calls[np.concatenate([none, *there])], np.concatenate([none, *rows])

    def _of_call(self, call: int) -> list[int]:
        moment = int(self.calls.start[call])
        known = self._recorded.get(call)
        if self.calls.kind[call] == CallKind.FREE or (known and known[0] == SyncKind.DEVICE):
            return self._last_on_all(moment, known[1] if known else None)
        if known is None or known[0] not in (SyncKind.STREAM, SyncKind.EVENT):
            self.inferred += 1
            return self._ended_inside(call)
        _, device, stream, source, record = known
        if known[0] == SyncKind.STREAM:
            return self._before(device, stream, moment)
        return self._before(device, source, self._recorded_at(record, moment))

    def _recorded_at(self, record: int, otherwise: int) -> int:
        """Return when the call began that recorded an event."""
        call = self._of_correlation.get(record)
        return otherwise if call is None else int(self.calls.start[call])

    def of_streams(self) -> Ints:
        """Return the pairs of operations of which the second waits for the first by an event, shape (n, 2).

        A wait holds for the next operation that is launched on the waiting stream. If the profile does not
        record the event, the waiting stream is that of the operation launched next, and the event the one
        recorded last, after the last operation that was launched on another stream. If it records no wait of
        a stream at all, an operation waited for what ended on another stream just before it began.
        """
        waiting = np.flatnonzero(self.calls.kind == CallKind.STREAM_WAIT).tolist()
        pairs = [pair for call in waiting for pair in self._of_wait(call)]
        found = np.array(pairs, np.int64).reshape(-1, 2) if waiting else self._just_before()
        # Of the operations of one stream, the last one decides.
        order = np.lexsort((self.work.end[found[:, 0]], self.work.stream[found[:, 0]], found[:, 1]))
        found = found[order]
        same = (found[1:, 1] == found[:-1, 1]) & (
            self.work.stream[found[1:, 0]] == self.work.stream[found[:-1, 0]]
        )
        # An event that was recorded after the wait cannot be the one.
        found = found[np.append(~same, True)[: len(found)]]
        known: Ints = found[self.work.end[found[:, 0]] <= self.work.start[found[:, 1]] + ODD_NS]
        return known

    def _just_before(self) -> Ints:
        """Return what ended on another stream just before an operation that was launched long ago."""
        work = self.work
        last = np.searchsorted(work.end[self._by_end], work.start, side="right") - 1
        # The operation before it on its own stream may explain when it began.
        free = (work.before == NONE) | (work.start - work.end[work.before] > ODD_NS)
        late = np.flatnonzero((last >= 0) & free)
        source = self._by_end[last[late]]
        launched = self.calls.start[work.call[late]]
        kept = (work.stream[source] != work.stream[late]) & (work.end[source] > launched + ODD_NS)
        kept &= work.start[late] - work.end[source] <= ODD_NS
        self.inferred += int(kept.sum())
        return np.column_stack((source[kept], late[kept]))

    def _of_wait(self, call: int) -> list[tuple[int, int]]:
        known = self._recorded.get(call)
        moment = int(self.calls.start[call])
        if known is None:
            self.inferred += 1
            return self._inferred_wait(call, moment)
        _, device, stream, source, record = known
        waiting = self._numbered(device, stream)
        if waiting is None:
            return []
        place = int(np.searchsorted(self._launched[waiting], moment))
        if place == len(self._by_launch[waiting]):
            return []
        target = int(self._by_launch[waiting][place])
        recorded = self._recorded_at(record, moment)
        signalling = self._before(self._recording(device, stream, source, recorded), source, recorded)
        return [(one, target) for one in signalling if self.work.stream[one] != waiting]

    def _inferred_wait(self, call: int, moment: int) -> list[tuple[int, int]]:
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
        others = [
            one
            for stream in range(len(self._by_launch))
            if stream != self.work.stream[target]
            for one in self._last_on(stream, when)
        ]
        if not others:
            return []
        return [(max(others, key=lambda row: int(self.calls.start[self.work.call[row]])), int(target))]


def _recorded(activity: RankActivity) -> dict[int, tuple[int, int, int, int, int]]:
    """Return what the profile records of each waiting call.

    That is the kind, the device, the stream, and the stream and the call that recorded the event.
    """
    table, calls = activity.timeline.synchronizations, activity.timeline.calls
    rows = np.flatnonzero(np.isin(activity.calls.kind, (CallKind.WAIT, CallKind.STREAM_WAIT, CallKind.FREE)))
    row = activity.calls.row[rows]
    ours, theirs = pair_keys((calls.process[row], calls.correlation[row]), (table.process, table.correlation))
    call, found = matches(ours, theirs)
    columns = (table.kind, table.device, table.stream, table.source_stream, table.source_correlation)
    values = zip(*(column[found].tolist() for column in columns), strict=True)
    return dict(zip(rows[call].tolist(), values, strict=True))
