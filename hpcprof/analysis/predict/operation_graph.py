"""The dependency graph of the operations of a job, inferred from their times alone.

1. Steps with the same operations are one graph; times are arrays of shape (operations, steps).
2. A send and a receive are one message if they name each other as peers, whatever their names are; else if
   their ends coincide best.
3. A collective waits for the ranks of its group. If the table names none, it is the widest set of ranks (all,
   one stage, one replica) in which none ends before the last one begins, and whose ends are about as close
   together as in the narrowest such set. An operation that claims to compute is a collective too if its ranks
   wait and end together.
4. On a rank, computing is one sequence. A collective begins after the computing before it; computing waits
   for a collective that ends while the rank computes nothing. A send waits for the operation that computes
   what it sends, and a receive holds up the operation that needs it: the n-th of the same direction
   (``forward-recv`` and ``forward-compute``), else the one that begins after it. Without such names, a
   message follows the computing, the collective or the message of its kind after which it begins with the
   steadiest delay.
5. The own time of communication is what remains after the last peer has begun. The rest is waiting.

The what-if analysis of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
OSDI 2025, has the same own times.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
import pandas as pd

from hpcprof.analysis.statistics.components import component_numbers
from hpcprof.common.errors import HpcprofError
from hpcprof.common.grouping import grouped
from hpcprof.profiles.timeline import Floats, Ints

MESSAGES = ("send", "recv")
COMMUNICATION = ("collective", *MESSAGES)
_NO_GROUP = -1
_DIRECTION = re.compile(r"[-_ .]?(?:send|recv|receive)[-_ .]?", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]+")
_MAX_OVERLAP = 0.05
"""Maximum overlap of operations that follow each other, over the median duration of the shorter name."""
RESOLUTION = 1e-6
"""Resolution of times, over the length of a step: seconds in single precision are 8 digits."""
_MIN_WAITING_SHARE = 0.97
"""Minimum share of the instances of a collective whose ranks all wait for the last."""
_MAX_END_SPREAD = 0.1
"""Maximum spread of the ends over that of the starts, where an operation that claims to compute waits."""
MAX_KINDS = 500
"""Maximum kinds of steps, by their operations, that are replayed: each takes milliseconds to build."""
_MAX_SPREAD_RATIO = 5.0
"""Maximum spread of the ends in a group over that in the group whose ends are closest."""


def topological_order(waits: Mapping[int, Collection[int]]) -> list[int]:
    """Return operations in topological order; raises HpcprofError if their waits form a cycle."""
    try:
        return [*TopologicalSorter(waits).static_order()]
    except CycleError:
        raise HpcprofError("the operations of a step cannot be replayed: they wait in a circle.") from None


@dataclass(frozen=True, eq=False)
class OperationGraph:
    """Steps with the same operations on the same ranks."""

    steps: Ints
    """Shape (steps,)."""
    rows: pd.DataFrame
    """One row per operation of a step: rank, name, kind, stage, microbatch, chunk, replica."""
    start: Floats
    end: Floats
    """Measured times in ns, from the first start of the step; shape (operations, steps)."""
    before: Sequence[Ints]
    """The predecessors of each operation, by position."""
    group: Ints
    """The number of the operations that wait for each other, -1 for others; shape (operations,)."""

    @cached_property
    def members(self) -> list[Ints]:
        """The operations of each group."""
        order = np.argsort(self.group, kind="stable")
        order = order[np.searchsorted(self.group[order], 0) :]
        return np.split(order, np.flatnonzero(np.diff(self.group[order])) + 1) if len(order) else []

    @cached_property
    def own(self) -> Floats:
        """Time in ns of each operation after the last of its group has begun; shape (operations, steps)."""
        begin = self.start.copy()
        for rows in self.members:
            begin[rows] = begin[rows].max(axis=0)
        lengths: Floats = np.maximum(self.end - begin, 0.0)
        return lengths

    @cached_property
    def _order(self) -> list[tuple[list[int], list[Ints]]]:
        """Operations and groups with their predecessors, in topological order."""
        unit = {row: rows.tolist() for rows in self.members for row in rows.tolist()}
        first = [unit.get(row, [row])[0] for row in range(len(self.group))]
        waits: dict[int, set[int]] = {row: set() for row in first}
        for row, rows in enumerate(self.before):
            waits[first[row]] |= {first[other] for other in rows.tolist()}
        order = [unit.get(row, [row]) for row in topological_order(waits)]
        return [(rows, [self.before[row] for row in rows if len(self.before[row])]) for rows in order]

    def moments(self, lengths: Floats) -> Floats:
        """Return the ends of operations that take ``lengths``, in ns, shape (operations, steps)."""
        end: Floats = lengths.copy()
        for rows, waits in self._order:
            if not waits:
                continue
            before = waits[0] if len(waits) == 1 else np.concatenate(waits)
            arrival = end[before[0]] if len(before) == 1 else end[before].max(axis=0)
            for row in rows:
                end[row] += arrival
        return end

    def walls(self, lengths: Floats) -> Floats:
        """Return the time of each step in ns, shape (steps,), if the operations take ``lengths``."""
        wall: Floats = self.moments(lengths).max(axis=0)
        return wall

    @property
    def measured(self) -> Floats:
        """Measured time of each step in ns, shape (steps,)."""
        wall: Floats = self.end.max(axis=0) - self.start.min(axis=0)
        return wall


def operation_graphs(table: pd.DataFrame) -> list[OperationGraph]:
    """Return the graphs of a table of operations (`hpcprof.profiles.readers.operations.table`).

    Steps that lack a rank are left out, and so are kinds of steps beyond `MAX_KINDS`, the rarest first.
    """
    ranks = table.groupby("step")["rank"].transform("nunique")
    rows = table[ranks == table["rank"].nunique()]
    if not len(rows):
        return []
    rows = rows.assign(number=rows.groupby(["step", "rank", "name"]).cumcount())
    rows = rows.sort_values(["step", "rank", "name", "number"], kind="stable", ignore_index=True)
    code = rows.groupby(["rank", "name"]).ngroup().to_numpy()
    kinds = defaultdict(list)
    bounds = np.flatnonzero(np.diff(rows["step"].to_numpy())) + 1
    for begin, codes in zip([0, *bounds.tolist()], np.split(-code, bounds), strict=True):
        kinds[tuple(codes.tolist())].append(begin)
    frequent = heapq.nlargest(MAX_KINDS, kinds, key=lambda codes: len(kinds[codes]))
    return [_graph(rows, np.asarray(kinds[codes]), len(codes)) for codes in sorted(frequent)]


def most_frequent_graph(table: pd.DataFrame) -> OperationGraph | None:
    """Return the graph with the most steps; None if no step has operations of all ranks."""
    return max(operation_graphs(table), key=lambda graph: len(graph.steps), default=None)


def _graph(rows: pd.DataFrame, begin: Ints, count: int) -> OperationGraph:
    at = begin[:, None] + np.arange(count)
    start = rows["start_ns"].to_numpy(float)[at].T
    end = start + rows["duration_ns"].to_numpy(float)[at].T
    zero = start.min(axis=0)
    building = _Building(rows.iloc[at[0]].reset_index(drop=True), start - zero, end - zero)
    group = building.groups()
    steps = rows["step"].to_numpy()[begin]
    return OperationGraph(steps, building.rows, building.start, building.end, building.before(group), group)


class _Building:
    """The graph of some steps while it is built."""

    def __init__(self, rows: pd.DataFrame, start: Floats, end: Floats) -> None:
        self.rows, self.start, self.end = rows, start, end
        self._first, self._last = np.median(start, axis=1), np.median(end, axis=1)
        typical = pd.Series(self._last - self._first).groupby(rows["name"]).transform("median")
        self._tolerance = np.maximum(_MAX_OVERLAP * typical.to_numpy(), RESOLUTION * float(self._last.max()))
        self._kind, self._name = rows["kind"].to_numpy(), rows["name"].to_numpy()
        names = rows["name"].unique()
        direction = {name: _DIRECTION.sub("", name) for name in names}
        self._direction = rows["name"].map(direction).to_numpy()
        self._word = rows["name"].map({name: _first_word(direction[name]) for name in names}).to_numpy()
        ordered = [np.lexsort((self._last, self._first))]
        ranks = rows["rank"].to_numpy()[ordered[0]]
        self._of_rank = {rank: ordered[0][ranks == rank] for rank in np.unique(ranks).tolist()}
        self._computes = {
            rank: {row: at for at, row in enumerate(self._select(at_rank, "compute"))}
            for rank, at_rank in self._of_rank.items()
        }
        self._partner = self._links()

    def _select(self, rows: Ints, *kinds: str) -> list[int]:
        chosen: list[int] = rows[np.isin(self._kind[rows], kinds)].tolist()
        return chosen

    def _links(self) -> dict[int, int | None]:
        """Return the operation that sends or needs each message, where the order of its direction tells it.

        None marks a message that was recorded and not sent: beyond the ends of the pipeline.
        """
        links: dict[int, int | None] = {}
        chunk = self.rows["chunk"].to_numpy()
        for rank, rows in self._of_rank.items():
            messages = grouped(
                ((self._kind[row], self._word[row]), row) for row in self._select(rows, *MESSAGES)
            )
            for (kind, word), ones in messages.items():
                computing = [row for row in self._computes[rank] if self._word[row] == word]
                outer = {("send", True): chunk.max(), ("recv", True): chunk.min()}
                # Backward messages run through the chunks the other way.
                backward = word.lower().startswith("b")
                end = outer["recv" if (kind == "send") == backward else "send", True]
                inner = [row for row in computing if chunk[row] != end or end < 0]
                if len(ones) == len(computing):
                    pairs = zip(ones, computing, strict=True)
                    links |= {row: other if other in inner else None for row, other in pairs}
                elif len(ones) == len(inner):
                    links |= dict(zip(ones, inner, strict=True))
        return links

    def groups(self) -> Ints:
        """Return the number of the group of each operation; -1 where it waits for no other."""
        group = np.full(len(self.rows), _NO_GROUP)
        number = 0
        for sent, received in self._messages():
            group[[sent, received]] = number
            number += 1
        replica = self._replicas(group)
        self.rows["replica"] = replica
        for rows in self._collectives(replica):
            group[rows] = number
            number += 1
        return group

    def _messages(self) -> Iterator[tuple[int, int]]:
        """Yield the send and the receive of each message."""
        peer, rank = self.rows["peer"].to_numpy(), self.rows["rank"].to_numpy(np.int64)
        sends, receives = (
            [row for rows in self._of_rank.values() for row in self._select(rows, kind)] for kind in MESSAGES
        )
        # Messages beyond the ends of the pipeline were recorded and not sent.
        sends, receives = (
            [row for row in rows if self._partner.get(row, row) is not None] for rows in (sends, receives)
        )
        sent, received = defaultdict(list), defaultdict(list)
        for row in sends:
            sent[int(peer[row])].append(row)
        for row in receives:
            received[int(rank[row])].append(row)
        matched = set()
        for receiver in sorted(sent.keys() - {-1}):
            for message in self._messages_to(sent[receiver], received[receiver]):
                matched.add(message[1])
                yield message
        unnamed = [row for row in sends if peer[row] < 0], [row for row in receives if row not in matched]
        sides = ({}, {})  # type: tuple[dict[tuple[str, int], list[int]], dict[tuple[str, int], list[int]]]
        for side, rows in zip(sides, unnamed, strict=True):
            for row in rows:
                side.setdefault((self._direction[row], int(rank[row])), []).append(row)
        yield from self._messages_by_ends(*sides)

    def _messages_to(self, sends: Sequence[int], receives: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the messages to a rank whose senders name it, and whose receives may name no sender.

        Both ends may name different directions: a message to the right comes from the left.
        """
        peer, rank = self.rows["peer"].to_numpy(), self.rows["rank"].to_numpy()
        from_peer = grouped((int(peer[row]), row) for row in receives)
        unnamed, left = from_peer.pop(-1, []), []
        for row in sends:
            matching = from_peer.get(int(rank[row]), [])
            if not matching:
                left.append(row)
                continue
            alike = (other for other in matching if self._direction[other] == self._direction[row])
            receive = next(alike, matching[0])
            matching.remove(receive)
            yield row, receive
        if left and unnamed:
            from scipy.optimize import linear_sum_assignment
            from scipy.spatial.distance import cdist

            apart = cdist(self.end[left], self.end[unnamed], "cityblock")
            for first, second in zip(*linear_sum_assignment(apart), strict=True):
                yield left[first], unnamed[second]

    def _messages_by_ends(
        self, sends: Mapping[tuple[str, int], list[int]], receives: Mapping[tuple[str, int], list[int]]
    ) -> Iterator[tuple[int, int]]:
        """Yield the messages whose sends name no peer, by direction and rank, whose ends coincide best."""
        stage, peer = self.rows["stage"].to_numpy(), self.rows["peer"].to_numpy()
        replica = self.rows["replica"].to_numpy()
        for (direction, rank), rows in sends.items():
            best, distance = None, np.inf
            for (name, other), matching in receives.items():
                if name != direction or other == rank or len(matching) != len(rows):
                    continue
                if stage[rows[0]] == stage[matching[0]] >= 0 or replica[rows[0]] != replica[matching[0]]:
                    continue
                if peer[matching[0]] not in (-1, rank):
                    continue
                apart = float(np.abs(self.end[rows] - self.end[matching]).mean())
                if apart < distance:
                    best, distance = matching, apart
            yield from zip(rows, best or [], strict=False)

    def _replicas(self, group: Ints) -> Ints:
        """Return the pipeline of each operation: that of the table, else the ranks that messages connect."""
        recorded = self.rows["replica"].to_numpy()
        if (recorded >= 0).all():
            return recorded
        ranks, position = np.unique(self.rows["rank"].to_numpy(), return_inverse=True)
        rows = np.flatnonzero(group >= 0)
        pairs = position[rows[np.argsort(group[rows], kind="stable")]].reshape(-1, 2)
        return component_numbers(np.unique(pairs, axis=0).tolist(), len(ranks))[position]

    def _collectives(self, replica: Ints) -> Iterator[Ints]:
        """Yield the operations of each collective that several ranks wait in."""
        recorded = self.rows["group"].to_numpy()
        stage = self.rows["stage"].to_numpy()
        everywhere = np.zeros_like(stage)
        for name in self.rows["name"].unique():
            rows = np.flatnonzero(self._name == name)
            kind = self._kind[rows[0]]
            if kind in MESSAGES or kind == "wait":
                continue
            number = self.rows["number"].to_numpy()[rows]
            if (recorded[rows] != "").all():
                yield from _blocks(rows, pd.factorize(recorded[rows])[0], number)
                continue
            widest = [list(_blocks(rows, key[rows], number)) for key in (everywhere, stage, replica)]
            spreads = [self._spread(blocks, kind == "collective") for blocks in widest]
            least = min(spreads)
            if least < np.inf:
                yield from next(
                    blocks
                    for blocks, spread in zip(widest, spreads, strict=True)
                    if spread <= _MAX_SPREAD_RATIO * least
                )

    def _spread(self, blocks: Sequence[Ints], claims: bool) -> float:
        """Return the typical spread in ns of the ends of collectives, infinite if their ranks do not wait.

        No rank may end before the last begins, in nearly all steps. Operations that do not claim to be a
        collective have to end together too.
        """
        widest = 0.0
        for rows in blocks:
            slack = self.end[rows].min(axis=0) - self.start[rows].max(axis=0)
            ends, starts = (float(np.median(np.ptp(times[rows], axis=0))) for times in (self.end, self.start))
            waits = np.mean(slack >= -self._tolerance[rows[0]]) >= _MIN_WAITING_SHARE
            if not waits or not (claims or ends < _MAX_END_SPREAD * starts):
                return np.inf
            widest = max(widest, ends)
        return widest if blocks else np.inf

    def before(self, group: Ints) -> list[Ints]:
        """Return the operations that each one waits for."""
        before: list[set[int]] = [set() for _ in range(len(self.rows))]
        for rank, rows in self._of_rank.items():
            self._chain(rows, group, before)
            self._attach_messages(rank, rows, before)
        return [np.array(sorted(needed), np.int64) for needed in before]

    def _chain(self, rows: Ints, group: Ints, before: list[set[int]]) -> None:
        """Add the edges between computations, and between computations and collectives."""
        lanes: dict[bool, list[int]] = {True: [], False: []}
        for row in rows[~np.isin(self._kind[rows], MESSAGES)].tolist():
            talks = self._kind[row] == "collective"
            same, other = (self._find_last_ended(lanes[lane], row) for lane in (talks, not talks))
            before[row] |= _known_rows(same)
            if other is not None and (talks or same is None or self._holds_up(other, same, row)):
                before[row].add(other)
            lanes[talks].append(row)

    def _holds_up(self, collective: int, same: int, row: int) -> bool:
        """Return whether computing waits for a collective, from when it begins after the computing before it.

        A collective that computing usually hides shows in the steps in which it came late.
        """
        if self._last[collective] > self._last[same]:
            return True
        tolerance = min(self._tolerance[same], self._tolerance[row])
        late = self.start[row] - self.end[same] > tolerance
        behind = self.start[row] - self.end[collective]
        return bool(late.any() and (behind >= -tolerance).all() and (behind[late] <= tolerance).mean() > 0.5)

    def _find_last_ended(self, rows: Sequence[int], row: int) -> int | None:
        """Return the last of some operations that has ended when another one begins; None without one."""
        first, tolerance = self._first[row], self._tolerance
        ended = (
            prior
            for prior in reversed(rows)
            if self._last[prior] <= first + min(tolerance[prior], tolerance[row])
        )
        return next(ended, None)

    def _attach_messages(self, rank: int, rows: Ints, before: list[set[int]]) -> None:
        computing = list(self._computes[rank])
        collectives = self._select(rows, "collective")
        previous: dict[str, list[int]] = {}
        messages = {kind: self._select(rows, kind) for kind in MESSAGES}
        for row in self._select(rows, *MESSAGES):
            name = self._name[row]
            before[row] |= _known_rows(self._find_last_ended(previous.get(name, []), row))
            previous.setdefault(name, []).append(row)
            partner = self._partner.get(row)
            # Exchanges in one direction may follow those in another.
            alike = [other for other in messages[self._kind[row]] if self._last[other] <= self._first[row]]
            exchange = max(alike, key=self._last.__getitem__, default=None)
            if self._kind[row] == "send":
                sender = self._find_last_ended(computing, row) if partner is None else partner
                before[row] |= _known_rows(sender)
                if partner is None:
                    collective = self._find_last_ended(collectives, row)
                    before[row] |= _known_rows(self._steadiest(row, [sender, collective, exchange]))
                continue
            limit = self._last[row] - self._tolerance[row]
            needing = (
                next((work for work in computing if self._first[work] >= limit), None)
                if partner is None
                else partner
            )
            if needing is not None and needing != self._find_last_ended(computing, row):
                before[needing].add(row)
            # A receive whose name tells its direction follows the computing of that direction.
            posting = [
                work for work in computing if needing is None or self._word[work] == self._word[needing]
            ]
            posted = [
                self._find_last_ended(candidates, row) for candidates in (posting, computing, collectives)
            ]
            named = needing is not None and self._word[row] == self._word[needing]
            before[row] |= _known_rows(posted[0] if named else self._steadiest(row, [*posted, exchange]))

    def _steadiest(self, row: int, candidates: Sequence[int | None]) -> int | None:
        """Return the operation after which another one begins with the steadiest delay; the first of equals.

        None stands for the begin of the step.
        """
        delays = [
            self.start[row] - (0.0 if candidate is None else self.end[candidate]) for candidate in candidates
        ]
        spread = [max(float(np.std(delay)) - float(self._tolerance[row]), 0.0) for delay in delays]
        return candidates[int(np.argmin(spread))]


def _known_rows(row: int | None) -> set[int]:
    return set() if row is None else {row}


def _first_word(name: str) -> str:
    match = _WORD.search(name)
    return match[0] if match else name


def _blocks(rows: Ints, key: Ints, number: Ints) -> Iterator[Ints]:
    table = pd.Series(rows).groupby([key, number])
    yield from (block.to_numpy() for _, block in table if len(block) > 1)
