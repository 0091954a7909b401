"""Calls, messages and collectives of MPI in an OTF2 archive.

A nonblocking operation begins in the call of its request event and ends in that of its completion event. The
arguments of a receive and of a collective are in the completion, those of a send in the request. Score-P
counts the bytes of a collective for each pair of ranks, as nsys does. Where the writer records no
completions, they are calls that wait and test (`completions`).
"""

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcprof.profiles.collective_operations import (
    FROM_ROOT,
    POINT_TO_POINT,
    TO_ROOT,
    MpiFunction,
    mpi_function,
)
from hpcprof.profiles.columns.joins import latest_rows
from hpcprof.profiles.columns.unique import distinct, map_unique, numbered_rows
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.communicators import (
    ALTERNATIVE,
    NULL,
    UNKNOWN,
    WORLD,
    Communicator,
    bytes_of_rank,
    numbered_text,
    ranks_in_program,
    ranks_in_short,
)
from hpcprof.profiles.readers.otf2.archive import UNDEFINED, Archive
from hpcprof.profiles.readers.otf2.events import MpiEvents, MpiKind, Visits
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_NAME,
    NO_PEER,
    NO_ROOT,
    NO_TAG,
    NO_WAIT,
    Ints,
    Mask,
    MpiOperations,
    concatenate,
)

# In the order of their numbers in the format.
_COLLECTIVES = (
    *("Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall"),
    *("Alltoallv", "Alltoallw", "Allreduce", "Reduce", "Reduce_scatter", "Scan", "Exscan"),
    "Reduce_scatter_block",
)
_BEGIN_KINDS: dict[int, int] = {
    MpiKind.END_SEND: MpiKind.BEGIN_SEND,
    MpiKind.END_RECEIVE: MpiKind.BEGIN_RECEIVE,
    MpiKind.END_COLLECTIVE: MpiKind.BEGIN_COLLECTIVE,
}
_BLOCKING_KINDS = (MpiKind.SEND, MpiKind.RECEIVE, MpiKind.COLLECTIVE)
_SENDS = (MpiKind.SEND, MpiKind.BEGIN_SEND)
_NO_RANKS = UNDEFINED - 2
"""The first of three values for no rank, and for the roots of communicators between two groups."""
_MAX_BYTES = 1 << 40
"""Maximum size of a message in bytes; larger values are uninitialized."""
_COLLECTIVE_KINDS = (MpiKind.COLLECTIVE, MpiKind.BEGIN_COLLECTIVE, MpiKind.END_COLLECTIVE)
COMPLETING = (MpiKind.WAIT_ALL, MpiKind.WAIT, MpiKind.WAIT_SOME, MpiKind.TEST)
"""The kinds of calls that complete requests."""

_COLLECTIVE_CALLS = (MpiKind.CALL_COLLECTIVE, MpiKind.CALL_BEGIN_COLLECTIVE)
_UNUSED_KINDS = (MpiKind.CALL_MESSAGE, *_COLLECTIVE_CALLS)
_CALL_KINDS = (*COMPLETING, *_UNUSED_KINDS)
_WAITING = (MpiKind.WAIT_ALL, MpiKind.WAIT, MpiKind.WAIT_SOME)


@dataclass(frozen=True)
class CalledEvents(MpiEvents):
    """Events of MPI, each with the call that it happened in: ``start`` and ``end`` are those of the call."""

    start: Ints
    end: Ints
    thread: Ints


def events_with_calls(
    events: MpiEvents, calls: Visits, kind: Ints, operation: Ints, thread: int
) -> CalledEvents:
    """Return the events of a thread with the calls around them; an event outside of all takes no time.

    The calls that begin or complete operations are events of their own: those whose ``kind``, shape (calls,),
    is not `NO_NAME`. The ``operation`` of each is a text.
    """
    events = concatenate(MpiEvents, [events, _events_of_calls(calls, kind, operation)])
    row = np.searchsorted(calls.entered, events.position) - 1
    inside = row >= 0
    inside[inside] = events.position[inside] <= _last_rows(calls)[row[inside]]
    columns = {name: getattr(events, name) for name in MpiEvents.__match_args__}
    start, end = (
        np.where(inside, times[row], events.time) if len(calls) else events.time
        for times in (calls.start, calls.end)
    )
    return CalledEvents(**columns, start=start, end=end, thread=np.full(len(events), thread))


def kind_of_call(function: MpiFunction | None, name: str) -> int:
    """Return the `MpiKind` of the calls of a function of MPI, `NO_NAME` without one."""
    if function is None or function.persistent:
        return completion_kind(name) or NO_NAME
    if function.operation in POINT_TO_POINT:
        return MpiKind.CALL_MESSAGE
    return MpiKind.CALL_BEGIN_COLLECTIVE if function.nonblocking else MpiKind.CALL_COLLECTIVE


def _events_of_calls(calls: Visits, kind: Ints, operation: Ints) -> MpiEvents:
    chosen = np.flatnonzero(kind != NO_NAME)
    ends = np.isin(kind[chosen], COMPLETING)
    nothing, none = np.full(len(chosen), UNDEFINED), np.zeros(len(chosen), np.int64)
    return MpiEvents(
        kind=kind[chosen],
        position=calls.entered[chosen] + 1,
        time=np.where(ends, calls.end[chosen], calls.start[chosen]),
        peer=nothing,
        communicator=nothing,
        tag=operation[chosen],
        sent=none,
        received=none,
        request=none,
    )


def outermost(calls: Visits) -> Visits:
    """Return the calls, in the order of their starts, that no other call of their thread contains."""
    before = np.append(-1, np.maximum.accumulate(_last_rows(calls)))[:-1]
    return calls.take(calls.entered > before)


def _last_rows(calls: Visits) -> Ints:
    return np.where(calls.left >= 0, calls.left, np.iinfo(np.int64).max)


def communicators(archive: Archive, rank: int) -> tuple[list[Communicator], dict[int, int]]:
    """Return the communicators as a rank knows them, and the place of each by its reference.

    The last one stands for those without a reference: `UNKNOWN`, or all ranks in an archive without
    communicators. Communicators of the same ranks are distinguished by their order in the archive, which is
    the same for all ranks. In an intercommunicator, partners are ranks of the other group.
    """
    joined, place, count_by_name = list[Communicator](), dict[int, int](), Counter[str]()
    for reference, (name, groups) in sorted(archive.communicators().items()):
        sides = [np.array(group, np.int64) for group in groups or [[rank]]]
        side_of_rank = next((side for side in sides if rank in side), sides[0])
        other_side = next((side for side in sides if side is not side_of_rank), side_of_rank)
        text = " to ".join(map(ranks_in_short, sides))
        # Each rank has its own communicator of itself.
        number = 0 if groups is None else count_by_name[text]
        count_by_name[text] += 1
        at = np.flatnonzero(side_of_rank == rank)
        place[reference] = len(joined)
        joined.append(
            Communicator(
                WORLD if name == WORLD else numbered_text(text, number),
                int(at[0]) if len(at) else UNKNOWN.rank,
                sum(map(len, sides)),
                other_side,
            )
        )
    world = Communicator(WORLD, rank, len(archive.world), np.arange(len(archive.world)))
    return [*joined, UNKNOWN if joined else world], place


def _possible_communicator(comms: Sequence[Communicator], rank: int) -> Communicator:
    """Return the communicator of a rank's collectives that name none; with several, its name has them all.

    Communicators of the same ranks count once. The last one of ``comms`` stands for unknown ones.
    """
    several = {
        comm.members.tobytes(): comm
        for comm in reversed(comms)
        if comm.members is not None and len(comm.members) > 1 and rank in comm.members
    }
    if len(several) == 1:
        return next(iter(several.values()))
    names = [comm.name for comm in reversed(several.values()) if comm.name is not None]
    return Communicator(ALTERNATIVE.join(names)) if names else comms[-1]


def operations(
    events: CalledEvents, archive: Archive, rank: int, process: int, strings: StringTable
) -> tuple[MpiOperations, list[Loss]]:
    """Return the messages and collectives of a rank by thread and time, and say what is left out.

    A receive whose completion the writer does not record has neither partner, communicator, tag nor size.
    """
    comms, place = communicators(archive, rank)
    shared = [comm for comm in comms[:-1] if comm.members is not None and {rank} < {*comm.members.tolist()}]
    events, lost = _with_calls(events, strings, archive, len(shared) == 1)
    events, operation = _with_operations(events, strings)
    begin, end, unfinished = _spans(events)
    lost += unfinished
    # A message to or from no rank (MPI_PROC_NULL) is none.
    sent = ~np.isin(events.kind[begin], (*_SENDS, MpiKind.RECEIVE)) | (events.peer[begin] < _NO_RANKS)
    begin, end = begin[sent], end[sent]
    has_end = end >= 0
    last = np.where(has_end, end, begin)
    order = np.lexsort((begin, events.start[begin], events.thread[begin]))
    begin, last, has_end = begin[order], last[order], has_end[order]
    described = np.where(_describes(events, last), last, begin)
    described_events, kind = events.take(described), operation[described]
    message = ~np.isin(described_events.kind, _COLLECTIVE_KINDS)
    if len(comms) > 1:
        comms.insert(-1, _possible_communicator(comms, rank))
    number = _translate_ranks(described_events.communicator, place, len(comms) - 1)
    if len(comms) > 1:
        number[~message & (number == len(comms) - 1)] = len(comms) - 2
    size, rank_in = (np.array([getattr(c, name) for c in comms])[number] for name in ("size", "rank"))
    names = strings.add_all(comm.name for comm in comms)
    within = np.where(described_events.peer < _NO_RANKS, described_events.peer, NO_PEER)
    if archive.of_eztrace:
        passed, received = _argument_sizes(described_events, kind, message, size, rank_in == within, strings)
    else:
        passed, received = _sizes(described_events, kind, message, size, rank_in, strings)
    impossible = message & ((passed >= _MAX_BYTES) | (passed < NO_BYTES))
    passed[impossible] = NO_BYTES
    lost += losses(LossKind.FIELD, Subject.MPI_OPERATION, {"size": impossible.sum()}, len(begin))
    # The sizes of receives that record nothing follow from the messages of the other ranks.
    unnamed = {
        "communicator": np.count_nonzero(
            (number == len(comms) - 1) & (described_events.kind != MpiKind.BEGIN_RECEIVE)
        )
    }
    lost += losses(LossKind.FIELD, Subject.MPI_OPERATION, unnamed, len(begin))
    peer = np.where(message, within, NO_PEER)
    return MpiOperations(
        start=events.start[begin],
        end=events.end[last],
        process=np.full(len(begin), process),
        thread=events.thread[begin],
        operation=kind,
        communicator=names[number],
        ranks=size,
        peer=ranks_in_program(comms, number, peer),
        comm_peer=peer,
        root=np.where(message, NO_ROOT, within),
        tag=np.where(message & (described_events.tag < UNDEFINED), described_events.tag, NO_TAG),
        bytes=passed,
        received_bytes=received,
        begin_ns=np.maximum(events.end[begin] - events.start[begin], 0),
        wait_ns=np.where(has_end, np.maximum(events.end[last] - events.start[last], 0), NO_WAIT),
    ), lost


def _with_calls(
    events: CalledEvents, strings: StringTable, archive: Archive, one_communicator: bool
) -> tuple[CalledEvents, list[Loss]]:
    """Return the events without calls; with some, by time, if the writer records no completions or no events.

    The calls left complete requests, or are collectives without an event. The losses are calls without an
    event that are not.
    """
    recorded = ~np.isin(events.kind, _CALL_KINDS)
    by_time = np.lexsort((events.position, events.time))
    in_order = events.take(by_time[recorded[by_time]])
    call = numbered_rows(events.thread, events.start)[1]
    if len(in_order) and not archive.of_eztrace and not lacks_completions(in_order.kind, in_order.request):
        # A message to no rank has no record either.
        silent = np.isin(events.kind, _COLLECTIVE_CALLS) & ~np.isin(call, call[recorded])
        return events.take(recorded), _without_record(events.take(silent), strings)
    events, recorded, call = events.take(by_time), recorded[by_time], call[by_time]
    if archive.of_eztrace:
        # Their status may be that of another receive, or none, and they always name the communicator of all.
        waits = call[np.isin(events.kind, (MpiKind.WAIT_ALL, MpiKind.WAIT))]
        possible = (
            (events.peer < len(archive.world)) & (events.received < _MAX_BYTES) & (events.received >= 0)
        )
        possible &= one_communicator & np.isin(call, waits)
        has_call = (events.kind != MpiKind.END_RECEIVE) | possible
        events, recorded, call = events.take(has_call), recorded[has_call], call[has_call]
    described = np.isin(call, call[recorded])
    finished = np.isin(call, call[np.isin(events.kind, [*_BEGIN_KINDS])])
    kind = events.kind.copy()
    kind[finished & np.isin(kind, (MpiKind.WAIT, MpiKind.WAIT_SOME))] = MpiKind.TEST
    for described_call, meaning in (
        (MpiKind.CALL_COLLECTIVE, MpiKind.COLLECTIVE),
        (MpiKind.CALL_BEGIN_COLLECTIVE, MpiKind.BEGIN_COLLECTIVE),
    ):
        kind[~described & (kind == described_call)] = meaning
    lost = _without_record(events.take(~described & (kind == MpiKind.CALL_MESSAGE)), strings)
    if not np.isin(kind, [*_BEGIN_KINDS.values()]).any():
        waiting = {"record (what waits end, as persistent requests do)": np.isin(kind, _WAITING).sum()}
        lost += losses(LossKind.ROW, Subject.MPI_OPERATION, waiting)
    # Each call that begins a collective has a request of its own, which no program has.
    request = np.where(recorded, events.request, NO_NAME - np.arange(len(kind)))
    return replace(events, kind=kind, request=request).take(~np.isin(kind, _UNUSED_KINDS)), lost


def _without_record(events: CalledEvents, strings: StringTable) -> list[Loss]:
    """Return the losses of calls without an event, by their operations."""
    names = strings.array()[events.tag].tolist()
    begins = (events.kind == MpiKind.CALL_BEGIN_COLLECTIVE).tolist()
    details = Counter(
        f"record ({'nonblocking ' * begun}{name})" for name, begun in zip(names, begins, strict=True)
    )
    return losses(LossKind.ROW, Subject.MPI_OPERATION, details)


def _with_operations(events: CalledEvents, strings: StringTable) -> tuple[CalledEvents, Ints]:
    """Return the events without those that make communicators, and the operation of each."""
    functions = [mpi_function(f"MPI_{name}") for name in _COLLECTIVES]
    numbers = strings.add_all(item.operation if item else None for item in functions)
    in_call = events.communicator == UNDEFINED
    collective = np.isin(events.kind, (MpiKind.COLLECTIVE, MpiKind.END_COLLECTIVE)) & ~in_call
    has_operation = ~collective | (events.tag < len(numbers))
    events, in_call, collective = (
        events.take(has_operation),
        in_call[has_operation],
        collective[has_operation],
    )
    operation = np.where(np.isin(events.kind, _SENDS), strings.add("Send"), strings.add("Recv"))
    operation[collective] = numbers[events.tag[collective]]
    named = in_call & np.isin(events.kind, (MpiKind.COLLECTIVE, MpiKind.BEGIN_COLLECTIVE))
    operation[named] = events.tag[named]
    return events, operation


def _describes(events: CalledEvents, last: Ints) -> Mask:
    """Return a mask of the operations that their last events describe, and not those that begin them.

    The record of a completion without a partner describes nothing where the writer records none elsewhere.
    """
    kind = events.kind[last]
    nobody = (events.peer[last] >= _NO_RANKS) & np.any(np.isin(events.kind, COMPLETING))
    describing: Mask = ~np.isin(kind, (*COMPLETING, MpiKind.END_SEND)) & ~(
        (kind == MpiKind.END_RECEIVE) & nobody
    )
    return describing


def _spans(events: CalledEvents) -> tuple[Ints, Ints, list[Loss]]:
    """Return the events that begin and that end each operation, -1 where the archive has no end.

    A receive or a collective that does not end is left out, since only its request is known, and counted
    unless it was cancelled.
    """
    begins = np.flatnonzero(np.isin(events.kind, [*_BEGIN_KINDS.values()]))
    ends = np.flatnonzero(np.isin(events.kind, [*_BEGIN_KINDS]))
    at = latest_rows(
        (events.kind[begins], events.request[begins]),
        events.time[begins],
        (_translate_ranks(events.kind[ends], _BEGIN_KINDS, NO_NAME), events.request[ends]),
        events.time[ends],
    )
    end_of = np.full(len(begins), -1)
    # The first end counts.
    paired = np.flatnonzero(at >= 0)[::-1]
    end_of[at[paired]] = ends[paired]
    cancels = np.flatnonzero(events.kind == MpiKind.CANCEL)
    cancelled = latest_rows(
        (events.request[begins],), events.time[begins], (events.request[cancels],), events.time[cancels]
    )
    end_of[cancelled[cancelled >= 0]] = -1
    dropped = np.isin(np.arange(len(begins)), cancelled)
    if np.any(np.isin(events.kind, COMPLETING)):
        inferred = completions(events.kind, events.request, begins[dropped | (end_of >= 0)].tolist())[begins]
        end_of = np.where(dropped | (end_of >= 0), end_of, inferred)
    sends = events.kind[begins] == MpiKind.BEGIN_SEND
    has_end = ~dropped & (sends | (end_of >= 0))
    unfinished = {"completion": np.count_nonzero(~dropped & ~has_end)}
    alone = ends[(at < 0) & (events.kind[ends] != MpiKind.END_SEND)]
    whole = np.concatenate((np.flatnonzero(np.isin(events.kind, _BLOCKING_KINDS)), alone))
    lost = losses(LossKind.ROW, Subject.MPI_OPERATION, unfinished, len(whole) + len(begins))
    return np.concatenate((whole, begins[has_end])), np.concatenate((whole, end_of[has_end])), lost


def _sizes(
    events: MpiEvents, operation: Ints, message: Mask, ranks: Ints, rank_in: Ints, strings: StringTable
) -> tuple[Ints, Ints]:
    """Return the bytes that a rank sends or gives, and those that it gets from a collective."""
    unknown = events.kind == MpiKind.BEGIN_RECEIVE
    passed, obtained = np.where(message & ~unknown, events.sent, NO_BYTES), np.full(len(operation), NO_BYTES)
    texts = strings.array()
    sent = np.where(events.sent == 0, NULL, events.sent)
    received = np.where(events.received == 0, NULL, events.received)
    for key in distinct(operation[~message]).tolist():
        rows = np.flatnonzero((operation == key) & ~message)
        passed[rows], obtained[rows] = bytes_of_rank(
            texts[key], sent[rows], received[rows], ranks[rows], rank_in[rows]
        )
        if texts[key] != "Barrier":
            empty = (events.sent[rows] == 0) & (events.received[rows] == 0)
            empty = rows[empty & (events.communicator[rows] < UNDEFINED)]
            passed[empty] = obtained[empty] = 0
    return passed, obtained


def _argument_sizes(
    events: MpiEvents, operation: Ints, message: Mask, ranks: Ints, root: Mask, strings: StringTable
) -> tuple[Ints, Ints]:
    """Return the sizes of `_sizes` if the archive records the sizes of arguments, on all ranks alike.

    ``root`` is True where the rank is the root.
    """
    has_ranks = (events.communicator < UNDEFINED) & (ranks > 0)
    passed, obtained = (
        np.where(has_ranks, events.sent, NO_BYTES),
        np.where(has_ranks & ~message, events.received, NO_BYTES),
    )
    texts = strings.array()
    for key in distinct(operation[has_ranks & ~message]).tolist():
        rows = np.flatnonzero((operation == key) & ~message & has_ranks)
        name, is_root = texts[key], root[rows]
        if name == "Barrier":
            passed[rows] = obtained[rows] = NO_BYTES
        passed[rows] *= np.where(name in ("AlltoAll", "Scatter"), ranks[rows], 1)
        obtained[rows] *= np.where(name in ("AlltoAll", "AllGather", "Gather"), ranks[rows], 1)
        if name in FROM_ROOT:
            passed[rows[~is_root]] = 0
        if name in TO_ROOT or name == "Broadcast":
            obtained[rows[is_root == (name == "Broadcast")]] = 0
        if name == "ReduceScatter":
            obtained[rows] //= ranks[rows]
    return passed, obtained


def _translate_ranks(values: Ints, numbers: Mapping[int, int], otherwise: int) -> Ints:
    return map_unique(values, lambda key: numbers.get(key, otherwise))


_BEGINS = (MpiKind.BEGIN_SEND, MpiKind.BEGIN_RECEIVE, MpiKind.BEGIN_COLLECTIVE)
_WAITS = {"": MpiKind.WAIT, "all": MpiKind.WAIT_ALL, "any": MpiKind.WAIT_SOME, "some": MpiKind.WAIT_SOME}
_CALL = re.compile(r"MPI_(Wait|Test)(|all|any|some)")
_NEVER = int(np.iinfo(np.int64).max)


def completion_kind(function: str) -> MpiKind | None:
    """Return the kind of a function of MPI that completes requests, None for all others."""
    call = _CALL.fullmatch(function)
    if call is None:
        return None
    return MpiKind.TEST if call[1] == "Test" else _WAITS[call[2]]


def lacks_completions(kind: Ints, request: Ints) -> bool:
    """Return whether the writer of some events, in the order of their times, records no completions.

    A request is used again although its operation has not ended, or no send ends of several.
    """
    if np.any(kind == MpiKind.END_SEND):
        return False
    if np.any(kind == MpiKind.BEGIN_SEND):
        return True
    pending = set[int]()
    for event, number in zip(kind.tolist(), request.tolist(), strict=True):
        if event in _BEGINS:
            if number in pending:
                return True
            pending.add(number)
        elif event in (MpiKind.END_RECEIVE, MpiKind.CANCEL):
            pending.discard(number)
    return False


def completions(kind: Ints, request: Ints, recorded: Sequence[int]) -> Ints:
    """Return the position of the event that completes each operation; -1 for other events and without an end.

    The calls that wait and test follow from MPI's rules, for the operations that are pending when each
    returns, where the writer of an archive records no completions (EZTrace, most of them):

    1. ``MPI_Waitall`` completes all of them.
    2. ``MPI_Wait`` completes one: the operation whose request is used again first, else the oldest. So do
       ``MPI_Waitany`` and ``MPI_Waitsome``, with sends, which need no other rank, before others.
    3. A request that begins another operation was completed before: by the last call that waits or tests.
    4. An operation that no wait completes is completed by the last of the tests that first follow its begin.

    ``kind`` and ``request`` have the shape (n,), in the order of the times of their events. ``recorded`` are
    the positions of operations with a recorded completion.
    """
    kinds, requests = kind.tolist(), request.tolist()
    pending = _Pending(_next_uses(kinds, requests), {*np.flatnonzero(kind == MpiKind.BEGIN_SEND).tolist()})
    skipped = {*recorded}
    for place, (event, number) in enumerate(zip(kinds, requests, strict=True)):
        if event in _BEGINS:
            pending.reuse(number, None if place in skipped else place)
        elif event in COMPLETING:
            pending.complete(event, place)
        if event != MpiKind.TEST:
            pending.testing_since = -1
    return pending.over()


def _next_uses(kinds: Sequence[int], requests: Sequence[int]) -> list[int]:
    """Return for each operation the position of the next one that its request begins."""
    following, last = [_NEVER] * len(kinds), dict[int, int]()
    for place in range(len(kinds) - 1, -1, -1):
        if kinds[place] in _BEGINS:
            following[place] = last.get(requests[place], _NEVER)
            last[requests[place]] = place
    return following


class _Pending:
    """The operations that are pending while the events of a rank go by, by their requests."""

    def __init__(self, next_use: Sequence[int], sends: Container[int]) -> None:
        self._next_use = next_use
        self._sends = sends
        self._completed_by = np.full(len(next_use), -1)
        self._operations: dict[int, int] = {}
        self._tested: dict[int, int] = {}
        self._latest = -1
        self.testing_since = -1
        """The first of the tests that follow each other up to now, -1 without one."""

    def reuse(self, request: int, place: int | None) -> None:
        before = self._operations.pop(request, -1)
        if 0 <= before < self._latest:
            self._completed_by[before] = self._latest
        if place is not None:
            self._operations[request] = place

    def complete(self, event: int, place: int) -> None:
        completed: list[int] = []
        if event == MpiKind.WAIT_ALL:
            completed = [*self._operations]
        elif event in (MpiKind.WAIT, MpiKind.WAIT_SOME) and self._operations:
            completed = [
                min(self._operations, key=lambda handle: self._order(event, self._operations[handle]))
            ]
        elif event == MpiKind.TEST:
            self.testing_since = place if self.testing_since < 0 else self.testing_since
            for operation in self._operations.values():
                if self._tested.get(operation, place) >= self.testing_since:
                    self._tested[operation] = place
        for request in completed:
            self._completed_by[self._operations.pop(request)] = place
        self._latest = place

    def _order(self, event: int, operation: int) -> tuple[bool, int]:
        """Return a sort key: a wait completes sends first (MPI_Waitsome), then the operation used next."""
        return event == MpiKind.WAIT_SOME and operation not in self._sends, self._next_use[operation]

    def over(self) -> Ints:
        for operation in self._operations.values():
            self._completed_by[operation] = self._tested.get(operation, -1)
        return self._completed_by
