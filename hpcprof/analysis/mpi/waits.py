"""The waits inside MPI calls, and the ranks that cause them, by the definitions of Scalasca.

A call waits from its start until the last partner that it needs has come, but no longer than it lasts. The
rest of the call is transfer. If several operations end in a call, only the longest wait counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.clock_alignment import NEAR_NS
from hpcprof.analysis.mpi.declarations import BEFORE, BETWEEN
from hpcprof.analysis.mpi.matching import Calls, RunMpi, collective_tables
from hpcprof.analysis.mpi.run_lists import NONE
from hpcprof.profiles.collective_operations import FROM_ROOT, POINT_TO_POINT, PREFIX, TO_ROOT, mpi_function
from hpcprof.profiles.columns.joins import latest_rows
from hpcprof.profiles.columns.ordering import extremum_of_slices
from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.timeline import AFTER_ALL, LATEST, Ints, Mask, Table, concatenate

LATE_SENDER, LATE_RECEIVER, WRONG_ORDER, BARRIER, N_TO_N, EARLY_REDUCE, LATE_BROADCAST, COMPLETION = range(8)
PATTERNS = (
    "late sender",
    "late receiver",
    "wrong order of messages",
    "wait at barrier",
    "wait at N to N",
    "early reduce",
    "late broadcast",
    "completion",
)
"""The names of the patterns by their numbers."""

_TAKES_ANY = ("MPI_Waitany", "MPI_Waitsome")
"""Calls that return as soon as one of several messages is there."""

_UNUSUAL_PART = 10
"""Maximum ratio of a wait to the unusual time of its cause."""
_WAITS_FOR_OTHERS = re.compile(
    r"MPI_(?:Wait|Comm_(?:split|create|dup)|Cart_(?:create|sub)|Dist_graph_create)"
)
_MIN_REPEATED, _LONGEST_PAST = 0.9, 64
"""Minimum share of predictable receives of a rank that names the senders, and maximum number of receives
before each that may predict it."""

_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Waits(Table):
    """The w waits of calls; arrays of shape (w,)."""

    call: Ints
    """The position of the call that waits, which has at most one wait and one completion."""
    pattern: Ints
    """A position in `PATTERNS`."""
    length: Ints
    """In ns, above 0."""
    arrival: Ints
    """The call of the partner that came late, `NONE` for a completion."""


_NEARLY = 0.95
"""Minimum ratio of a send's duration to the time until its receive begins, for a send that waits for it."""


@dataclass(frozen=True)
class Causes(Table):
    """The cause of each wait; arrays of shape (w,)."""

    rank: Ints
    """The rank that delayed the others, also through waits of ranks in between; `NONE` if unknown."""
    before: Ints
    """The call before which that rank spent its time; plus the number of all calls, if inside the call;
    `NONE` if unknown.
    """


def find_waits(run: RunMpi) -> Waits:
    """Return the waits of a run whose calls are on the common clock."""
    waits = concatenate(Waits, (*_waits_of_messages(run), *_waits_of_collectives(run)))
    waits = waits.take(waits.length > 0)
    order = np.lexsort((-waits.length, waits.call))
    longest = waits.take(order)
    longest = longest.take(np.diff(longest.call, prepend=NONE) != 0)
    return concatenate(Waits, (longest, *_completions(run, longest)))


def blocked_sends(run: RunMpi) -> Ints:
    """Return the sends whose call ends after the receive has begun: a rendezvous.

    A long call that ends nearly then is one too: clocks are aligned to some microseconds.
    """
    ops, calls = run.operations, run.calls
    sends = ops.matched_sends
    call = ops.completes[sends]
    waited = calls.start[ops.begin[ops.partner[sends]]] - calls.start[call]
    return sends[(waited > 0) & (calls.length[call] > _NEARLY * waited)]


def _scan_predecessors(run: RunMpi, rows: Ints) -> tuple[Ints, Ints]:
    """Return the operations of scans, paired with that of the previous rank and the latest of earlier ranks.

    ``rows``, of shape (m, n), are as in `collective_tables`, which has the ranks of a communicator in their
    order.
    """
    start = run.calls.start[run.operations.begin[rows]]
    latest_start = np.maximum.accumulate(start, axis=1)[:, :-1]
    place = np.where(start[:, :-1] == latest_start, np.arange(rows.shape[1] - 1), 0)
    last = np.take_along_axis(rows, np.maximum.accumulate(place, axis=1), axis=1)
    waiters = np.concatenate([rows[:, 1:].ravel()] * 2)
    return waiters, np.concatenate([rows[:, :-1].ravel(), last.ravel()])


class CollectiveNeeds(NamedTuple):
    """The operations that wait in the collectives of one operation and communicator; by position."""

    op: str
    together: Ints
    """The collectives in which some ranks wait until all have begun; shape (m, n)."""
    waits: Mask
    """The operations of ``together`` that wait; shape (m, n)."""
    waiters: Ints
    awaited: Ints
    """The operations that wait for one other operation to begin, and these; shape (p,)."""


def collective_needs(run: RunMpi, inside: Mask | None = None) -> Iterator[CollectiveNeeds]:
    """Yield the operations that wait in collectives: for all ranks, for those before them, or for the root.

    ``inside`` is a mask of the calls: collectives with other calls are left out.
    """
    ops, calls = run.operations, run.calls
    for op, rows in collective_tables(run):
        if inside is not None:
            rows = rows[(inside[ops.begin[rows]] & inside[ops.completes[rows]]).all(axis=1)]
        name = ops.ops[op]
        if run.waits_for_all(op, rows):
            yield CollectiveNeeds(name, rows, np.ones(rows.shape, bool), _NO_ROWS, _NO_ROWS)
        elif name in PREFIX:
            none = rows[:0]
            yield CollectiveNeeds(name, none, none != NONE, *_scan_predecessors(run, rows))
        elif name in FROM_ROOT | TO_ROOT:
            is_root = ops.rank[rows] == ops.root[rows[:, :1]]
            has_root = is_root.any(axis=1)
            rows, is_root = rows[has_root], is_root[has_root]
            root = np.broadcast_to(rows[is_root][:, np.newaxis], rows.shape)
            waiters, root = rows[~is_root], root[~is_root]
            if name in FROM_ROOT:
                yield CollectiveNeeds(name, rows[:0], is_root[:0], waiters, root)
                continue
            # Like a send, an operation that gives data waits if these are not buffered.
            arrival, call = calls.start[ops.begin[root]], ops.completes[waiters]
            held = (arrival > calls.start[call]) & (calls.end[call] > arrival)
            yield CollectiveNeeds(name, rows, is_root, waiters[held], root[held])


def _waits_between(run: RunMpi, call: Ints, pattern: Ints | int, arrival: Ints) -> Waits:
    """Return the waits of calls until the begin of other calls (``arrival``)."""
    start = run.calls.start
    length = np.clip(start[arrival] - start[call], 0, run.calls.length[call])
    return Waits(call, np.broadcast_to(pattern, call.shape), length, arrival)


def _waits_of_messages(run: RunMpi) -> Iterator[Waits]:
    ops, start = run.operations, run.calls.start
    receives = ops.matched_receives
    sent = ops.begin[ops.partner[receives]]
    call = ops.completes[receives]
    # A later call of the rank receives what was sent before this message.
    wrong = np.zeros(len(receives), bool)
    order, sequence = exchangeable_receives(run)
    earliest = _earliest_later_sends(sequence, call[order], start[sent][order])
    wrong[order] = earliest < start[sent][order]
    yield _waits_between(run, call, np.where(wrong, WRONG_ORDER, LATE_SENDER), sent)
    sends = blocked_sends(run)
    yield _waits_between(run, ops.completes[sends], LATE_RECEIVER, ops.begin[ops.partner[sends]])
    yield from (
        _until_progress(run, ends, ops.partner[ends], pattern)
        for ends, pattern in ((receives, LATE_SENDER), (ops.matched_sends, LATE_RECEIVER))
    )


def exchangeable_receives(run: RunMpi) -> tuple[Ints, Ints]:
    """Return the places in `matched_receives` of those that could change places, and their sequences.

    These are receives of one message each, in their order, without a send or a collective in between.
    """
    ops, calls = run.operations, run.calls
    receives = ops.matched_receives
    call = ops.completes[receives]
    begun = np.bincount(ops.begin[ops.sends | ~ops.is_of(POINT_TO_POINT)], minlength=len(calls)) > 0
    takes_any = np.array([name in _TAKES_ANY for name in calls.names], bool)
    alone = (np.bincount(call, minlength=len(calls))[call] == 1) & ~begun[call] & ~takes_any[calls.name[call]]
    places = np.flatnonzero(alone & ~np.isin(ops.rank[receives], receives_what_comes(run)))
    places = places[np.argsort(call[places], kind="stable")]
    _, sequence = numbered_rows(calls.sequence[call[places]], np.cumsum(begun, dtype=np.int64)[call[places]])
    return places, sequence


def receives_what_comes(run: RunMpi) -> Ints:
    """Return the ranks that receive from any source, since the order of their senders and tags is random.

    Traces record the sender even if the program named none. A rank names its senders if its last 1, 2, 4, …
    receives predict the next one in nearly all cases (`_MIN_REPEATED`).
    """
    ops = run.operations
    rows = ops.matched_receives
    rows = rows[np.lexsort((ops.begin[rows], ops.rank[rows]))]
    _, kind = numbered_rows(ops.rank[rows], ops.comm[rows], ops.peer[rows], ops.tag[rows])
    before = np.flatnonzero(np.diff(ops.rank[rows]) == 0)
    rank, follow = ops.rank[rows][before], np.bincount(ops.rank[rows][before])
    repeats = follow == 0
    past, length = kind, 1
    while not repeats.all() and length <= _LONGEST_PAST:
        pairs, pair = numbered_rows(rank, past[before], kind[before + 1])
        count = np.bincount(pair, minlength=len(pairs))
        pasts, number = numbered_rows(pairs[:, 0], pairs[:, 1])
        usual = np.zeros(len(pasts))
        np.maximum.at(usual, number, count)
        # A receive that follows once on several others does not tell the usual one.
        usual[np.bincount(number, count) < min(length, 2)] = 0
        share = np.bincount(pasts[:, 0], usual) / np.maximum(follow - length + 1, 1)
        repeats |= (share >= _MIN_REPEATED) & (follow >= 2 * (length - 1))
        _, past = numbered_rows(np.concatenate([np.full(length, NONE), past])[: len(past)], past)
        length *= 2
    return np.flatnonzero(~repeats)


def _until_progress(run: RunMpi, ends: Ints, other: Ints, pattern: int) -> Waits:
    call, back = stalled_calls(run, ends, other)
    return _waits_between(run, call, pattern, back)


def stalled_calls(run: RunMpi, ends: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return the calls whose ``ends`` wait for a partner outside MPI, and the calls by which it comes back.

    Without a progress thread or an offloading network card, the data of a large message, or of a collective,
    move only while both ranks are inside MPI. A partner may begin an operation (``other``), even late, and
    leave MPI before it ended. The end then waits for a later call of the partner, and ends sooner after the
    begin of that call than it had waited for it.
    """
    ops, calls = run.operations, run.calls
    call, begin = ops.completes[ends], ops.begin[other]
    # Calls of a thread follow each other, and so do their starts.
    tolerance = np.minimum(((1 - _NEARLY) * calls.length[call]).astype(np.int64), NEAR_NS)
    back = np.minimum(_next_calls(run, begin, calls.end[call] + tolerance) - 1, ops.completes[other])
    since = np.maximum(calls.start[call], calls.end[np.maximum(back - 1, 0)])
    away, until_end = calls.start[back] - since, calls.end[call] - calls.start[back]
    rows = np.flatnonzero((back > begin) & (away > tolerance) & (until_end < away))
    return call[rows], back[rows]


def _next_calls(run: RunMpi, call: Ints, moment: Ints) -> Ints:
    """Return the first call after a moment on the thread of each call, or that of the next thread."""
    sequence = run.calls.sequence
    keys, number = sequence[call], np.arange(len(run.calls))
    last = latest_rows((sequence,), run.calls.start, (keys,), moment)
    return np.where(last == NONE, np.searchsorted(sequence, keys), number[last] + 1)


def _earliest_later_sends(sequence: Ints, call: Ints, sent: Ints) -> Ints:
    """Return the moment of the earliest send among the messages of later calls of the same sequence."""
    result = np.full(len(sequence), AFTER_ALL)
    for _, rows in rows_by_key(sequence):
        after = np.append(np.minimum.accumulate(sent[rows][::-1])[::-1], AFTER_ALL)
        result[rows] = after[np.searchsorted(call[rows], call[rows], side="right")]
    return result


def _waits_of_collectives(run: RunMpi) -> Iterator[Waits]:
    ops = run.operations
    for need in collective_needs(run):
        rows, gives = need.together, need.op in TO_ROOT
        for_all = EARLY_REDUCE if gives else BARRIER if need.op == "Barrier" else N_TO_N
        for_one = LATE_RECEIVER if gives else LATE_BROADCAST if need.op in FROM_ROOT else N_TO_N
        latest = run.calls.start[ops.begin[rows]].argmax(axis=1)[:, np.newaxis]
        last = np.broadcast_to(np.take_along_axis(rows, latest, axis=1), rows.shape)[need.waits]
        yield _waits_between(run, ops.completes[rows[need.waits]], for_all, ops.begin[last])
        yield _waits_between(run, ops.completes[need.waiters], for_one, ops.begin[need.awaited])
    for pattern, ends, other in completion_needs(run):
        yield _until_progress(run, ends, other, pattern)


def completion_needs(run: RunMpi) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield patterns of waits, the operations of nonblocking collectives that may wait so, and for which.

    All wait for the last rank to complete the collective. With a root, it and the others wait for each other.
    """
    ops = run.operations
    for op, rows in collective_tables(run):
        rows, name = rows[(ops.begin[rows] != ops.completes[rows]).all(axis=1)], ops.ops[op]
        if run.waits_for_all(op, rows):
            place, backward = run.calls.start[ops.completes[rows]].argmax(axis=1), NONE
            forward = BARRIER if name == "Barrier" else N_TO_N
        elif name in FROM_ROOT | TO_ROOT:
            rows = rows[(ops.rank[rows] == ops.root[rows]).any(axis=1)]
            place = (ops.rank[rows] == ops.root[rows]).argmax(axis=1)
            forward, backward = LATE_RECEIVER, EARLY_REDUCE
            if name in FROM_ROOT:
                forward, backward = LATE_BROADCAST, LATE_RECEIVER
        else:
            continue
        single = np.broadcast_to(np.take_along_axis(rows, place[:, np.newaxis], axis=1), rows.shape)
        other = rows != single
        yield forward, rows[other], single[other]
        if backward != NONE:
            yield backward, single[other], rows[other]


def _completions(run: RunMpi, waits: Waits) -> Iterator[Waits]:
    """Yield the delay of each rank's return from a synchronizing collective after the first return."""
    ops, calls = run.operations, run.calls
    waited = np.zeros(len(calls), np.int64)
    waited[waits.call] = waits.length
    for op, rows in collective_tables(run):
        if not run.waits_for_all(op, rows):
            continue
        rows = rows[(ops.begin[rows] == ops.end[rows]).all(axis=1)]
        begins = ops.begin[rows]
        begun = np.maximum(calls.end[begins].min(axis=1), calls.start[begins].max(axis=1))[:, None]
        unblocked = np.clip(calls.end[begins] - begun, 0, calls.length[begins] - waited[begins]).ravel()
        pattern, arrival = np.full((2, len(unblocked)), [[COMPLETION], [NONE]])
        yield Waits(begins.ravel(), pattern, unblocked, arrival).take(unblocked > 0)


def causes_of(run: RunMpi, waits: Waits) -> Causes:
    """Return the cause of each wait, by the delay propagation of Scalasca.

    1. Find the last synchronization of both ranks before the wait, and compare them from the moment when the
       first of them left it.
    2. If the late rank worked longer than the waiting one, it caused the wait.
    3. If it waited longer instead, the cause of its longest wait is the cause of this one.
    """
    rank, before = np.full(len(waits.call), NONE), np.full(len(waits.call), NONE)
    rows = np.flatnonzero(waits.arrival != NONE)
    if not len(rows):
        return Causes(rank, before)
    calls, call, arrival = run.calls, waits.call[rows], waits.arrival[rows]
    gap, end = calls.gap, calls.end
    waited = np.zeros(len(calls), np.int64)
    waited[call] = waits.length[rows]
    own_from, other_from = _last_synchronization(run, call, arrival)
    since = np.minimum(end[own_from], end[other_from])
    waiter, other = (_Since(run, gap, waited, calls_of_side, since) for calls_of_side in (call, arrival))
    more_work, more_wait = other.worked - waiter.worked, other.waited - waiter.waited
    longest_wait = _call_of_maximum(waited, other.first + 1, arrival)
    departure = np.where(other.first < arrival, other.left, 0)
    longest_wait = np.where(
        departure > np.where(longest_wait == NONE, 0, waited[longest_wait]), other.first, longest_wait
    )
    wait_of_call = np.full(len(calls), NONE)
    wait_of_call[call] = np.arange(len(rows))
    parent = np.where(longest_wait == NONE, NONE, wait_of_call[longest_wait])
    indirect = (parent != NONE) & (more_wait > np.maximum(more_work, 0))
    # Clocks are not exact: a cause ends before its effect.
    indirect &= end[call[parent]] < end[call]
    root = np.where(indirect, parent, np.arange(len(rows)))
    while np.any(root[root] != root):
        root = root[root]
    rank[rows] = calls.rank[arrival[root]]
    before[rows] = _places_of_delay(run, other.first, arrival, since, waits.length[rows])[root]
    # A rank in a call without operations that waits for others is not the cause.
    is_call = np.flatnonzero(before >= len(calls))
    waits_too = np.array([*map(_waits_for_others, calls.names)], bool)
    unknown = is_call[waits_too[calls.name[before[is_call] - len(calls)]]]
    rank[unknown] = before[unknown] = NONE
    return Causes(rank, before)


def _waits_for_others(call: str) -> bool:
    """Return whether a function of MPI waits for other ranks."""
    function = mpi_function(call)
    at_once = function is not None and not function.nonblocking and not function.persistent
    return at_once or _WAITS_FOR_OTHERS.match(call) is not None


def _places_of_delay(run: RunMpi, first: Ints, arrival: Ints, since: Ints, wait: Ints) -> Ints:
    """Return the place of the longest unusual time from ``since`` in the calls ``first`` to ``arrival``.

    It is the call after the longest time outside MPI or, plus the number of all calls, a call without
    operations (such as ``MPI_Init``) that took longer. If less than a tenth of ``wait`` was unusual, all time
    counts, and then that before the first call of the thread.
    """
    calls, ops = run.calls, run.operations
    kind = delaying_ranges(run, np.arange(len(calls)))[1]
    alone = np.ones(len(calls), bool)
    alone[ops.begin], alone[ops.end[ops.end != NONE]] = False, False
    gap, inside = calls.gap, np.where(alone, calls.length, 0)
    left = np.clip(calls.end[first] - since, 0, inside[first])
    place, most = np.full(len(first), NONE), wait // _UNUSUAL_PART
    place, most = np.where(left > most, first + len(calls), place), np.maximum(left, most)
    for outer, inner in (
        (_more_than_usual(calls, kind, gap), _more_than_usual(calls, calls.name, inside)),
        (gap, inside),
    ):
        for time, offset, low, high in (
            (outer, 0, first + 1, arrival + 1),
            (inner, len(calls), first + 1, arrival),
        ):
            call = _call_of_maximum(time, low, high)
            is_longer = (call != NONE) & (time[call] > most)
            place, most = np.where(is_longer, call + offset, place), np.where(is_longer, time[call], most)
        most = np.where(place == NONE, 0, LATEST)
    return np.where((place == NONE) & (arrival == first) & np.isin(first, calls.first), first, place)


def _more_than_usual(calls: Calls, kind: Ints, time: Ints) -> Ints:
    """Return the excess time of each call over the median of the ranks' medians for its kind.

    A rank without calls of a kind has a median of 0: work of few ranks is unusual as a whole.
    """
    medians = pd.Series(time).groupby([kind, calls.rank]).median().unstack(fill_value=0.0)
    usual = medians.quantile(0.5, axis=1, interpolation="lower")
    more: Ints = np.maximum(time - usual.loc[kind].to_numpy(np.int64), 0)
    return more


def delaying_ranges(run: RunMpi, before: Ints) -> tuple[list[str | None], Ints]:
    """Return the names of places, and the place of each number of `Causes.before`.

    The name is that of the range before the call, else the calls around the time before it, or the call.
    """
    calls = run.calls
    has_place = before != NONE
    inside = before >= len(calls)
    at = np.where(has_place, before - len(calls) * inside, 0)
    ranges = np.where(has_place & ~inside, calls.before[at], NONE)
    unnamed = has_place & (ranges == NONE)
    previous = np.where(unnamed & ~inside & ~np.isin(at, calls.first), calls.name[at - 1], NONE)
    keys, number = numbered_rows(
        ranges, inside.astype(np.int64), previous, np.where(unnamed, calls.name[at], NONE)
    )

    def name_of(where: int, is_inside: int, first: int, second: int) -> str | None:
        if second == NONE:
            return calls.ranges[where]
        name = calls.names[second]
        return name if is_inside else between_calls(calls.names[first] if first != NONE else None, name)

    return [name_of(*key) for key in keys.tolist()], number


def between_calls(previous: str | None, other: str | None) -> str:
    """Return the name of the place between two calls of MPI, either of which may be unknown."""
    if previous is None or other is None:
        return f"{BEFORE}{other}" if other else f"after {previous}"
    return f"{BETWEEN}{previous} and {other}"


class _Since:
    """The work and the waits of threads from some moments until each begins a call; arrays of shape (n,).

    ``first`` is the last call that begins before the moment, else the first one of the thread. ``worked`` and
    ``waited`` are in ns; the wait in the call itself, which may be for another partner, does not count.
    ``left`` is the wait in the first call after the moment.
    """

    def __init__(self, run: RunMpi, gap: Ints, waited: Ints, call: Ints, moment: Ints) -> None:
        calls, bounds = run.calls, run.calls.first
        begins = bounds[np.searchsorted(bounds, call, side="right") - 1]
        self.first = first = np.clip(_next_calls(run, call, moment) - 1, begins, call)
        worked, idle = np.cumsum(gap), np.cumsum(waited)
        after = np.maximum(moment - calls.end[first], 0)
        self.worked = np.maximum(worked[call] - worked[first] - after, 0)
        self.left = np.clip(calls.start[first] + waited[first] - moment, 0, waited[first])
        outside = idle[call] - waited[call] - idle[first] + self.left
        self.waited = np.where(first < call, np.maximum(outside, 0), 0)


def _last_synchronization(run: RunMpi, call: Ints, arrival: Ints) -> tuple[Ints, Ints]:
    """Return the calls of the last common message or collective of two ranks before one waits for the other.

    Without any, these are the first calls of both threads.
    """
    calls = run.calls
    bounds = calls.first
    first = np.repeat(bounds[:-1], np.diff(bounds))
    begin, other = first[call], first[arrival]
    for waiter, partner in (_last_message(run, call, arrival), *_last_collectives(run, call, arrival)):
        later = (waiter > begin) | ((waiter == begin) & (partner > other))
        later &= (partner >= first[arrival]) & (partner < arrival)
        begin, other = np.where(later, waiter, begin), np.where(later, partner, other)
    return begin, other


def _last_message(run: RunMpi, call: Ints, arrival: Ints) -> tuple[Ints, Ints]:
    """Return the calls of both ranks in which the last message between them ended before the waits."""
    ops, calls = run.operations, run.calls
    rows = np.flatnonzero(ops.partner != NONE)
    partners = ops.partner[rows]
    # A send is over when its call returns, a receive when the message is there.
    ended_at = np.where(ops.sends, ops.begin, ops.completes)
    pairs, wanted = (ops.rank[rows], ops.rank[partners]), (calls.rank[call], calls.rank[arrival])
    # A message that ends in the call that waits is not before it.
    last = latest_rows(pairs, ended_at[rows], wanted, call - 1)
    has_last = np.flatnonzero(last != NONE)
    waiter, other = np.full(len(call), NONE), np.full(len(call), NONE)
    waiter[has_last], other[has_last] = ended_at[rows[last[has_last]]], ended_at[partners[last[has_last]]]
    return waiter, other


def _last_collectives(run: RunMpi, call: Ints, arrival: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the calls of both ranks in the last collective before the waits, for each kind of collective."""
    ops, calls = run.operations, run.calls
    waits_of_rank = {rank: places for (rank,), places in rows_by_key(calls.rank[call])}
    for op, rows in collective_tables(run):
        if not run.waits_for_all(op, rows):
            continue
        members = ops.rank[rows[0]]
        completing_call = ops.completes[rows]
        waiter, other = np.full(len(call), NONE), np.full(len(call), NONE)
        for column, rank in enumerate(members.tolist()):
            if rank not in waits_of_rank:
                continue
            waits = waits_of_rank[rank]
            partner = np.minimum(np.searchsorted(members, calls.rank[arrival[waits]]), len(members) - 1)
            place = np.searchsorted(completing_call[:, column], call[waits]) - 1
            is_member = (members[partner] == calls.rank[arrival[waits]]) & (place >= 0)
            waits, place, partner = waits[is_member], place[is_member], partner[is_member]
            waiter[waits], other[waits] = completing_call[place, column], completing_call[place, partner]
        yield waiter, other


def _call_of_maximum(values: Ints, low: Ints, high: Ints) -> Ints:
    """Return the first call with the greatest value from ``low`` to below ``high``, `NONE` if all are 0."""
    padded, none = np.append(values, 0), len(values)

    def larger(call: Ints, other: Ints) -> Ints:
        is_tie = padded[call] == padded[other]
        return np.where((padded[call] > padded[other]) | (is_tie & (call < other)), call, other)

    calls = extremum_of_slices(larger, np.arange(none), low, high, none)
    return np.where(padded[calls] > 0, calls, NONE)
