"""The MPI calls and operations of all ranks in little memory, in independent windows of the run.

A window ends where all ranks leave a collective, no request is pending, and no message or collective is
under way: the next window does not depend on it. The analyses of a long run thus need memory for one window,
and for 30 to 60 bytes a call.

The ends of windows are found without a match of all messages:

1. Each operation has a random weight. The weights of both ends of a message, and of all ranks of a
   collective, add up to 0 modulo 2 to the 64.
2. The sum over the operations that all ranks have begun is 0 only if none is under way (up to chance).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.mpi.unnamed_collectives import UnnamedCollectives, named_communicators
from hpcprof.analysis.mpi.unnamed_receives import RankMessages, messages_of_unnamed
from hpcprof.profiles.collective_operations import POINT_TO_POINT, WAITING
from hpcprof.profiles.columns.unique import numbered_rows, position_in_group
from hpcprof.profiles.readers.communicators import ALTERNATIVE
from hpcprof.profiles.timeline import AFTER_ALL, BEFORE_ALL, Ints, Mask

if TYPE_CHECKING:
    import pandas as pd

NONE = -1
"""Stands for no call, no partner and no match."""

MAX_CALLS = 250_000
"""Maximum calls of all ranks in a usual window, which takes some 200 MB."""

START_CALLS = frozenset({"MPI_Init", "MPI_Init_thread"})
_SENDS = frozenset({"Send"})
_Column = NDArray[np.signedinteger[Any]]


class NumberedTexts:
    """Texts by their numbers; `NONE` stands for no text."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the texts in the order of their numbers."""
        return iter(self._number)

    def numbers(self, column: pd.Series) -> Ints:
        """Return the numbers of texts; new ones are added."""
        import pandas as pd

        codes, values = pd.factorize(column)
        # The code of a missing text, -1, selects the last one.
        return np.append(self.add_all(map(str, values)), NONE)[codes]

    def add_all(self, texts: Iterable[str | None]) -> Ints:
        """Return the number of each text, `NONE` of None; new ones are added."""
        numbers = [
            NONE if text is None else self._number.setdefault(text, len(self._number)) for text in texts
        ]
        return np.array(numbers, np.int64)

    def chosen(self, names: frozenset[str]) -> Ints:
        """Return the numbers of the texts in ``names``."""
        return np.array([place for place, text in enumerate(self._number) if text in names], np.int64)


@dataclass(frozen=True)
class _RankRows:
    """The rows of a rank; columns of numbers, as small as their values allow.

    The ``end`` of an operation is the number of calls from its ``begin`` to its end, or `NONE`. ``threads``
    has the position of the first call of each thread, and the number of calls.
    """

    calls: Mapping[str, _Column]
    operations: Mapping[str, _Column]
    threads: Ints

    def wide(self, *names: str) -> tuple[Ints, ...]:
        """Return columns of the operations as int64."""
        return tuple(self.operations[name].astype(np.int64) for name in names)

    def with_operations(self, columns: Mapping[str, Ints]) -> _RankRows:
        """Return the rows with other columns of operations."""
        return replace(self, operations={**self.operations, **_shrink_columns(columns)})

    def ends(self, chosen: Ints) -> Ints:
        """Return when the calls that end some operations end, in ns on the clock of the rank."""
        begin, end = (column[chosen] for column in self.wide("begin", "end"))
        last = np.where(end == NONE, begin, begin + end)
        return (self.calls["start"][last].astype(np.int64) + self.calls["length"][last]).astype(np.int64)


class Communicators(msgspec.Struct, frozen=True):
    """The communicators of a run: their names, the ranks that use each, and their sizes, `NONE` if unknown.

    The last one stands for all that are not known.
    """

    names: Sequence[str | None]
    members: Sequence[Ints]
    sizes: Ints

    def complete(self, number: int) -> bool:
        """Return whether a communicator is known, and all of its ranks have a profile."""
        is_named = self.names[number] is not None
        return is_named and bool(self.sizes[number] <= len(self.members[number]))

    def in_program(self, comm: Ints, within: Ints) -> Ints:
        """Return the ranks in the program for ranks ``within`` communicators, `NONE` if unknown."""
        result = np.full(len(within), NONE)
        for number in np.unique(comm).tolist() if len(comm) else []:
            ranks = self.members[number]
            if len(ranks) and self.sizes[number] in (NONE, len(ranks)):
                inside = np.flatnonzero((comm == number) & (within >= 0) & (within < len(ranks)))
                result[inside] = ranks[within[inside]]
        return result


def _communicators(names: NumberedTexts, rows: Mapping[int, _RankRows]) -> Communicators:
    texts: list[str | None] = [*names, None]
    sizes = np.full(len(texts), NONE)
    members: list[list[int]] = [[] for _ in texts]
    for rank, rows_of_rank in rows.items():
        comm, ranks = rows_of_rank.wide("comm", "ranks")
        np.maximum.at(sizes, comm, ranks)
        for number in np.unique(comm).tolist():
            members[number].append(rank)
    return Communicators(texts, [np.array(sorted(numbers), np.int64) for numbers in members], sizes)


def _world_communicator(communicators: Communicators, rows: Mapping[int, _RankRows]) -> int | None:
    """Return the communicator of all ranks with the most operations; None if there is none."""
    every = [
        number
        for number, members in enumerate(communicators.members[:-1])
        if len(members) == len(rows) and communicators.sizes[number] in (NONE, len(members))
    ]
    counts = {
        number: sum(int(np.count_nonzero(item.operations["comm"] == number)) for item in rows.values())
        for number in every
    }
    return max(counts, key=lambda number: counts[number]) if counts else None


def _messages(
    rows: _RankRows, comms: Communicators, world: int | None, message: Ints, sends: Ints
) -> RankMessages:
    op, comm, peer, within, tag, begin = rows.wide("op", "comm", "peer", "within", "tag", "begin")
    sent, is_message = np.isin(op, sends), np.isin(op, message)
    peer = np.where(peer == NONE, comms.in_program(comm, within), peer)
    start = rows.calls["start"][begin].astype(np.int64)
    together, end = ~is_message & (comm == world), rows.ends(np.arange(len(op)))
    return RankMessages(comm, peer, tag, sent, is_message & ~sent, together, start, end)


def _with_messages(rows: _RankRows, places: Ints, comm: Ints, peer: Ints, tag: Ints) -> _RankRows:
    columns = dict(zip(("comm", "peer", "tag"), rows.wide("comm", "peer", "tag"), strict=True))
    for name, values in (("comm", comm), ("peer", peer), ("tag", tag)):
        columns[name][places] = values
    return rows.with_operations(columns)


class RunLists(msgspec.Struct, dict=True):
    """The rows of ``mpi_call_list`` and ``mpi_operation_list`` of all ranks, added in their order."""

    most_calls: int = MAX_CALLS
    """Usual number of calls of all ranks in a window, if the program lets it end there."""
    names: NumberedTexts = msgspec.field(default_factory=NumberedTexts)
    ranges: NumberedTexts = msgspec.field(default_factory=NumberedTexts)
    ops: NumberedTexts = msgspec.field(default_factory=NumberedTexts)
    comms: NumberedTexts = msgspec.field(default_factory=NumberedTexts)
    """The texts of calls, of the ranges around and before them, of operations and of communicators."""
    _added: dict[int, _RankRows] = msgspec.field(default_factory=dict)

    def add(self, rank: int, calls: pd.DataFrame, operations: pd.DataFrame) -> None:
        """Add the rows of a rank, if it has calls."""
        if not len(calls):
            return
        start = _ints(calls, "start_ns")
        thread = _ints(calls, "thread")
        call_columns = {
            "call": self.names.numbers(calls["call"]),
            "range": self.ranges.numbers(calls["range"]),
            "before": self.ranges.numbers(calls["range_before"]),
            "start": start,
            "length": _ints(calls, "end_ns") - start,
        }
        operation_columns = {
            "op": self.ops.numbers(operations["op"]),
            "comm": self.comms.numbers(operations["comm_id"]),
            **{name: _ints(operations, column) for name, column in _OPERATION_COLUMNS.items()},
        }
        # Most operations end soon after they begin.
        begin, end = operation_columns["begin"], operation_columns["end"]
        operation_columns["end"] = np.where(end == NONE, NONE, end - begin)
        bounds = np.append(np.flatnonzero(np.diff(thread, prepend=NONE)), len(start))
        self._added[rank] = _RankRows(
            _shrink_columns(call_columns), _shrink_columns(operation_columns), bounds
        )

    @property
    def ranks(self) -> list[int]:
        """The ranks with MPI calls."""
        return [*self._added]

    @cached_property
    def _rows(self) -> dict[int, _RankRows]:
        """The rows of each rank, with what receives and nonblocking collectives lack where it follows."""
        rows = self._with_communicators()
        groups = _communicators(self.comms, rows)
        world = _world_communicator(groups, rows)
        message, sends = self.ops.chosen(POINT_TO_POINT), self.ops.chosen(_SENDS)
        messages = messages_of_unnamed(
            {rank: _messages(item, groups, world, message, sends) for rank, item in rows.items()}
        )
        return rows | {rank: _with_messages(rows[rank], *columns) for rank, columns in messages.items()}

    def _with_communicators(self) -> dict[int, _RankRows]:
        """Return the rows with the communicators of collectives that may belong to several."""
        alternatives = {
            number: text.split(ALTERNATIVE) for number, text in enumerate(self.comms) if ALTERNATIVE in text
        }
        places = {
            rank: np.flatnonzero(np.isin(rows.operations["comm"], [*alternatives]))
            for rank, rows in self._added.items()
        }
        unnamed = {
            rank: UnnamedCollectives(
                alternatives[int(self._added[rank].operations["comm"][chosen[0]])],
                self._added[rank].operations["op"][chosen].astype(np.int64),
                self._added[rank].ends(chosen),
            )
            for rank, chosen in places.items()
            if len(chosen)
        }
        rows = dict(self._added)
        for rank, names in named_communicators(unnamed).items():
            (comm,) = rows[rank].wide("comm")
            comm[places[rank]] = self.comms.add_all(names)
            rows[rank] = rows[rank].with_operations({"comm": comm})
        return rows

    @cached_property
    def communicators(self) -> Communicators:
        """The communicators of the run."""
        return _communicators(self.comms, self._rows)

    @cached_property
    def started(self) -> Ints:
        """The ranks that recorded ``MPI_Init``; the counts of other ranks may lack their first calls."""
        wanted = self.names.chosen(START_CALLS)
        ranks = [rank for rank, rows in self._rows.items() if np.isin(rows.calls["call"], wanted).any()]
        return np.array(ranks, np.int64)

    @cached_property
    def peers(self) -> Mapping[int, _Column]:
        """The partner of each message of a rank by its rank in the program, `NONE` if it matches nothing.

        The messages with a tag from one rank to another match in their order. If one side has more messages,
        the surplus matches nothing; without ``MPI_Init`` on both ranks, no message matches.
        """
        peers = {
            rank: _shrink_columns({"peer": self._partners(rows)})["peer"] for rank, rows in self._rows.items()
        }
        counted = []
        for rank, rows in self._rows.items():
            addressed = np.flatnonzero(peers[rank] != NONE)
            columns = self._message_columns(rank, rows, peers[rank], addressed)
            keys, number = numbered_rows(*columns)
            counted.append(np.column_stack((keys, np.bincount(number, minlength=len(keys)))))
        every = np.concatenate([*counted, np.empty((0, 6), np.int64)])
        keys, number = numbered_rows(*every[:, :4].T)
        count = np.zeros((len(keys), 2), np.int64)
        np.add.at(count, (number, every[:, 4]), every[:, 5])
        least = count.min(axis=1) if len(keys) else np.empty(0, np.int64)
        whole = np.isin(keys[:, 1], self.started) & np.isin(keys[:, 2], self.started)
        usable = np.where(whole | (count[:, 0] == count[:, 1]), least, 0) if len(keys) else least
        if np.any(count != usable[:, None]):
            self._drop_left_over(peers, keys, usable)
        return peers

    def _partners(self, rows: _RankRows) -> Ints:
        message = np.isin(rows.operations["op"], self.ops.chosen(POINT_TO_POINT))
        comm, peer, within = rows.wide("comm", "peer", "within")
        peer = np.where(peer == NONE, self.communicators.in_program(comm, within), peer)
        return np.where(message & np.isin(peer, self.ranks), peer, NONE)

    def _message_columns(self, rank: int, rows: _RankRows, peer: _Column, chosen: Ints) -> tuple[Ints, ...]:
        """Return communicator, sender, receiver, tag of some messages, and whether they are sent."""
        comm, tag = (column[chosen] for column in rows.wide("comm", "tag"))
        sends = np.isin(rows.operations["op"][chosen], self.ops.chosen(_SENDS))
        ranks, other = np.full(len(chosen), rank), peer[chosen]
        return comm, np.where(sends, ranks, other), np.where(sends, other, ranks), tag, sends.astype(np.int64)

    def _drop_left_over(self, peers: dict[int, _Column], keys: Ints, usable: Ints) -> None:
        for rank, rows in self._rows.items():
            addressed = np.flatnonzero(peers[rank] != NONE)
            *columns, sends = self._message_columns(rank, rows, peers[rank], addressed)
            both = np.concatenate((keys, np.column_stack(columns)))
            _, number = numbered_rows(*both.T)
            limit = np.zeros(int(number.max(initial=NONE)) + 1, np.int64)
            limit[number[: len(keys)]] = usable
            key_number = number[len(keys) :]
            surplus = position_in_group(key_number * 2 + sends) >= limit[key_number]
            peers[rank] = peers[rank].copy()
            peers[rank][addressed[surplus]] = NONE

    @cached_property
    def limits(self) -> Ints:
        """The number of collectives of each communicator that match, by their order on each rank."""
        communicators = self.communicators
        counts: list[list[int]] = [[] for _ in communicators.names]
        for rows in self._rows.values():
            message = np.isin(rows.operations["op"], self.ops.chosen(POINT_TO_POINT))
            (comm,) = rows.wide("comm")
            collectives = np.bincount(comm[~message & (comm != NONE)], minlength=len(communicators.names))
            for number in np.unique(comm).tolist():
                counts[number].append(int(collectives[number]))
        return np.array([self._limit(number, by_rank) for number, by_rank in enumerate(counts)], np.int64)

    def _limit(self, number: int, counts: Sequence[int]) -> int:
        communicators = self.communicators
        if not counts or not communicators.complete(number):
            return 0
        is_equal = min(counts) == max(counts)
        return min(counts) if is_equal or np.isin(communicators.members[number], self.started).all() else 0

    def _unmatched_collectives(self, rows: _RankRows) -> Mask:
        """Return a mask of the collectives without a counterpart; shape (operations,)."""
        message = np.isin(rows.operations["op"], self.ops.chosen(POINT_TO_POINT))
        (comm,) = rows.wide("comm")
        collective = np.flatnonzero(~message)
        result = np.zeros(len(comm), bool)
        result[collective] = position_in_group(comm[collective] + 1) >= self.limits[comm[collective]]
        return result

    def windows(self) -> Iterator[RowWindow]:
        """Yield the windows of the run; all of it is one if nothing divides it."""
        for begin, end in pairwise((None, *self._cuts, None)):
            yield self._window(begin, end)

    def _window(self, begin: dict[int, int] | None, end: dict[int, int] | None) -> RowWindow:
        calls: list[dict[str, Ints]] = []
        operations: list[dict[str, Ints]] = []
        sequence, count = 0, 0
        for rank, rows in self._rows.items():
            starts = rows.calls["start"]
            position = np.full(len(starts) + 1, NONE)
            for thread, (low, high) in enumerate(zip(rows.threads[:-1], rows.threads[1:], strict=True)):
                own_starts = starts[low:high]
                first = low if begin is None else low + int(np.searchsorted(own_starts, begin[rank]))
                last = high if end is None else low + int(np.searchsorted(own_starts, end[rank]))
                # The collective before the window is in it too: there the ranks were together.
                repeated = int(begin is not None and thread == 0)
                part = slice(first - repeated, last)
                length = last - first + repeated
                if length:
                    position[part] = count + np.arange(length)
                    columns = {name: values[part].astype(np.int64) for name, values in rows.calls.items()}
                    columns |= {
                        "rank": np.full(length, rank),
                        "sequence": np.full(length, sequence),
                        "main": np.full(length, int(thread == 0)),
                        "counted": (np.arange(length) >= repeated).astype(np.int64),
                    }
                    calls.append(columns)
                    count += length
                sequence += 1
            began = position[rows.operations["begin"]]
            begun = np.flatnonzero(began != NONE)
            ops = {name: values[begun].astype(np.int64) for name, values in rows.operations.items()}
            ops["begin"], ops["end"] = began[begun], position[_ends(ops)]
            ops["peer"] = self.peers[rank][begun].astype(np.int64)
            ops["left"] = self._unmatched_collectives(rows)[begun].astype(np.int64)
            ops["root"] = self.communicators.in_program(ops["comm"], ops["root"])
            operations.append({"rank": np.full(len(begun), rank), "row": begun, **ops})
        return RowWindow(_join_columns(calls), _join_columns(operations), end is None)

    @cached_property
    def _cuts(self) -> list[dict[int, int]]:
        """The moments of each rank, on its clock, at which the windows but the last one end."""
        if sum(len(rows.calls["start"]) for rows in self._rows.values()) <= self.most_calls:
            return []
        world = _world_communicator(self.communicators, self._rows)
        if world is None:
            return []
        weights = _Weights(self.communicators)
        every = [self._state_at_collectives(rank, rows, world, weights) for rank, rows in self._rows.items()]
        moments, op, sums, quiet, completed = zip(*every, strict=True)
        count = min(map(len, moments))
        together = np.array([values[:count] for values in op])
        same = np.logical_and.accumulate((together == together[0]).all(axis=0))
        possible = same & np.isin(together[0], self.ops.chosen(WAITING))
        possible &= np.array([values[:count] for values in quiet]).all(axis=0)
        possible &= np.add.reduce([values[:count] for values in sums]) == 0
        places = np.flatnonzero(possible)
        whole = np.add.reduce([values[:count] for values in completed])[places]
        cuts, last = [], 0
        for number, place in enumerate(places.tolist()):
            following = whole[number + 1] if number + 1 < len(places) else AFTER_ALL
            if following - last > self.most_calls and whole[number] > last:
                cuts.append({rank: int(moments[row][place]) for row, rank in enumerate(self._rows)})
                last = int(whole[number])
        return cuts

    def _state_at_collectives(
        self, rank: int, rows: _RankRows, world: int, weights: _Weights
    ) -> tuple[Ints, Ints, NDArray[np.uint64], Mask, Ints]:
        """Return the state of a rank at its return from each collective of a communicator.

        The arrays are the moment, the operation, the sum of the weights of the operations so far, a mask of
        the returns without pending operations, and the number of calls so far.
        """
        ops = {name: values.astype(np.int64) for name, values in rows.operations.items()}
        ops["end"] = _ends(ops)
        start, end = rows.calls["start"], rows.calls["start"] + rows.calls["length"]
        message = np.isin(ops["op"], self.ops.chosen(POINT_TO_POINT))
        in_world = np.flatnonzero((ops["comm"] == world) & ~message)
        begun = start[ops["begin"]]
        finished = np.where(ops["end"] == NONE, begun, start[np.maximum(ops["end"], ops["begin"])])
        order = np.argsort(begun, kind="stable")
        peer = self.peers[rank].astype(np.int64)
        weight = np.where(message, self._message_weight(rank, ops, peer), weights.of(rank, ops["comm"]))
        weight[~message & ((ops["comm"] == world) | self._unmatched_collectives(rows))] = 0
        so_far = np.concatenate(([np.uint64(0)], np.cumsum(weight[order], dtype=np.uint64)))
        latest = np.concatenate(([BEFORE_ALL], np.maximum.accumulate(finished[order])))
        main = slice(0, rows.threads[1])
        # A nonblocking collective, or one of another thread, divides nothing.
        usable = (ops["end"] == ops["begin"])[in_world] & (ops["begin"][in_world] < rows.threads[1])
        moment = end[ops["begin"][in_world]]
        place = np.searchsorted(begun[order], moment)
        quiet = usable & (latest[place] < moment)
        following = np.searchsorted(start[main], moment)
        # The next call of this thread begins later, and the one before it is the collective.
        quiet &= following == ops["begin"][in_world] + 1
        calls = np.searchsorted(np.sort(start), moment)
        return moment, ops["op"][in_world], so_far[place], quiet, calls

    def _message_weight(self, rank: int, ops: Mapping[str, Ints], peer: Ints) -> NDArray[np.uint64]:
        sends = np.isin(ops["op"], self.ops.chosen(_SENDS))
        sender, receiver = np.where(sends, rank, peer), np.where(sends, peer, rank)
        mixed = _hash_rows(ops["comm"], sender, receiver, ops["tag"])
        return np.where(peer == NONE, np.uint64(0), np.where(sends, mixed, -mixed))


_OPERATION_COLUMNS = {
    "ranks": "comm_ranks",
    "peer": "peer",
    "within": "comm_peer",
    "root": "root",
    "tag": "tag",
    "sent": "bytes",
    "received": "received_bytes",
    "begin": "begin_call",
    "end": "end_call",
}


class RowWindow(msgspec.Struct, frozen=True):
    """The rows of a window: columns of calls and operations, and whether it is the last one."""

    calls: Mapping[str, Ints]
    operations: Mapping[str, Ints]
    last: bool


class _Weights:
    """Random weights for the ranks of each communicator, whose sum is 0 modulo 2 to the 64.

    The sum over the ranks that took part in an operation is 0 only if all of them did.
    """

    def __init__(self, communicators: Communicators) -> None:
        self._members = [
            ranks if communicators.complete(number) else np.empty(0, np.int64)
            for number, ranks in enumerate(communicators.members)
        ]

    def of(self, rank: int, comm: Ints) -> NDArray[np.uint64]:
        """Return the weight of a rank in each communicator; 0 if it does not belong to it."""
        result = np.zeros(len(comm), np.uint64)
        for number in np.unique(comm).tolist():
            ranks = self._members[number]
            place = int(np.searchsorted(ranks, rank))
            if place < len(ranks) and ranks[place] == rank:
                every = _hash_rows(np.full(len(ranks), number), ranks)
                every[-1:] = -np.add.reduce(every[:-1], keepdims=True)
                result[comm == number] = every[place]
        return result


def _hash_rows(*columns: Ints) -> NDArray[np.uint64]:
    """Return a number for each row that looks random (the mixing function of SplitMix64)."""
    result = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    for column in columns:
        result = (result ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        result = (result ^ (result >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        result = (result ^ (result >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result ^= result >> np.uint64(31)
    return result


def _ints(rows: pd.DataFrame, name: str) -> Ints:
    return rows[name].to_numpy(np.int64)


def _ends(operations: Mapping[str, Ints]) -> Ints:
    return np.where(operations["end"] == NONE, NONE, operations["begin"] + operations["end"])


def _shrink_columns(columns: Mapping[str, Ints]) -> dict[str, _Column]:
    """Return columns in the smallest types that hold their values; equal values take no memory."""
    bounded: dict[str, _Column] = {}
    for name, values in columns.items():
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        kinds = (np.int8, np.int16, np.int32)
        kind = next((k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max), np.int64)
        shrunk = values.astype(kind)
        bounded[name] = np.broadcast_to(shrunk[0], shrunk.shape) if low == high and len(shrunk) else shrunk
    return bounded


def _join_columns(parts: Sequence[Mapping[str, Ints]]) -> dict[str, Ints]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
