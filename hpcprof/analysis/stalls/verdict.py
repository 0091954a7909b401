"""Finds the ranks that hold a run up, from the collectives that each rank has entered and from its process.

1. Ranks that entered different operations under one number of a group have lost step: the minority is to
   blame.
2. A rank in a collective waits for the ranks of its group that have not entered it. The edges form a wait-for
   graph. The culprits are its sinks; a graph without a sink has a cycle, a deadlock between groups.
3. If no rank is missing, the ranks inside the first complete collective are stuck in it.
4. Without records of collectives, the calls in which the ranks are decide, and then their places in the code.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hpcprof.analysis.stalls.evidence import (
    Place,
    ProcessState,
    RankEvidence,
    Side,
    Stall,
    StallKind,
    WaitedFor,
    counterpart_verb,
    meeting_call,
    place,
    place_name,
)
from hpcprof.common.grouping import grouped
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.collective_operations import operation as known_operation
from hpcprof.profiles.readers.flight_recorder import Entered, FlightRecord

_UNEVEN = re.compile(r"gather|scatter|all_?to_?all|coalesced", re.IGNORECASE)
"""Collectives whose tensors may have other sizes on other ranks."""

_MESSAGE = re.compile(r"(?P<kind>send|recv)\s+(?P<own>\d+)\s*(?:->|<-)\s*(?P<other>\d+)")

_LOST_STATES = (ProcessState.DEAD, ProcessState.UNREACHABLE)

_NumberedCollective = tuple[str, int]
"""A collective: the name of its group, and its number there."""


def judge(ranks: Mapping[int, RankEvidence]) -> Stall | None:
    """Return the verdict on a stalled run; None if nothing shows that any rank waits.

    ``ranks`` are all ranks of the run; those without evidence have an empty `RankEvidence`.
    """
    operations = _Operations(ranks)
    verdict = operations.mismatch() or _stall_by_waiting(ranks, operations)
    if not operations.unfinished and not operations.messages:
        verdict = _stall_by_calls(ranks) or verdict or _stall_by_places(ranks)
    if verdict is None:
        return None
    steps = [facts.last_step for facts in ranks.values() if facts.last_step is not None]
    files = [ranks[rank].file for rank in sorted(ranks) if ranks[rank].file]
    losses = [f"rank {rank}: {ranks[rank].loss}" for rank in sorted(ranks) if ranks[rank].loss]
    last = min(steps, default=None)
    calls = tuple(call for rank in verdict.ranks if rank in ranks for call in ranks[rank].last_calls)
    return replace(
        verdict,
        last_step=last,
        evidence=tuple(files),
        losses=tuple(losses),
        last_calls=calls,
        ended=tuple(sorted(rank for rank, facts in ranks.items() if facts.state is ProcessState.ENDED)),
    )


class _Operations:
    """The operations of all ranks that have not ended, and the ranks that are missing in them."""

    def __init__(self, ranks: Mapping[int, RankEvidence]) -> None:
        self._ranks = ranks
        self._records = {rank: facts.record for rank, facts in ranks.items() if facts.record is not None}
        self.members = _members(self._records)
        self.unfinished: dict[_NumberedCollective, dict[int, Entered]] = defaultdict(dict)
        self._entered: dict[_NumberedCollective, dict[int, Entered]] = defaultdict(dict)
        self.messages: list[tuple[int, Entered, int]] = []
        inside = {group: {*ranks_of} for group, ranks_of in self.members.items()}
        for rank, record in self._records.items():
            for operation in record.operations:
                if rank not in inside[operation.group]:
                    continue  # the dump of another program, or a forged one
                if operation.is_p2p:
                    other = self._partner(operation)
                    if other is not None and not operation.ended:
                        self.messages.append((rank, operation, other))
                    continue
                number = operation.group, operation.collective_seq_id
                self._entered[number][rank] = operation
                if not operation.ended:
                    self.unfinished[number][rank] = operation
        self._stuck = self._find_stuck()

    def _find_stuck(self) -> dict[tuple[str, int], int]:
        """Return the number of the collective that each stuck rank is in, by group and rank.

        Other ranks have ended it. The GPU of a stuck rank hangs or is lost, and begins no later collective of
        the group.
        """
        first: dict[tuple[str, int], Entered] = {}
        for (group, _), inside in sorted(self.unfinished.items()):
            for rank, operation in inside.items():
                first.setdefault((group, rank), operation)
        ended: Counter[str] = Counter()
        for rank, record in self._records.items():
            for group, last in record.entered.items():
                begun = first.get((group, rank))
                last = begun.collective_seq_id - 1 if begun is not None else last
                ended[group] = max(ended[group], 0 if record.damaged else last)
        return {
            place: operation.collective_seq_id
            for place, operation in first.items()
            if known_operation(operation.name) in WAITING and operation.collective_seq_id <= ended[place[0]]
        }

    def _partner(self, operation: Entered) -> int | None:
        """Return the rank at the other end of a message, from its position in the group in the name."""
        match = _MESSAGE.search(operation.profiling_name)
        members = self.members.get(operation.group, ())
        position = int(match["other"]) if match else len(members)
        return members[position] if position < len(members) else None

    def is_partly_unread(self, rank: int) -> bool:
        """Return whether a running rank may have entered more than the readable part of its dump shows."""
        rank_state = self._ranks.get(rank)
        if rank_state is None or rank_state.state is not ProcessState.RUNNING or not rank_state.loss:
            return False
        return rank_state.record is None or rank_state.record.damaged > 0

    def missing(self, number: _NumberedCollective) -> set[int]:
        """Return the members of a group that have not entered a collective, as far as could be read."""
        group, sequence_number = number
        members = set()
        for rank in self.members.get(group, ()):
            record = self._records.get(rank)
            entered = record.entered.get(group, 0) if record is not None else 0
            stuck = self._stuck.get((group, rank), sequence_number) < sequence_number
            if stuck or (
                rank not in self._entered[number]
                and entered < sequence_number
                and not self.is_partly_unread(rank)
            ):
                members.add(rank)
        return members

    def _may_lack_entries(self, number: _NumberedCollective) -> bool:
        """Return whether an unreadable dump hides if a rank has entered a collective."""
        entered = self._entered[number]
        return any(
            self.is_partly_unread(rank) and rank not in entered for rank in self.members.get(number[0], ())
        )

    def mismatch(self) -> Stall | None:
        """Return the verdict if ranks entered different operations under one number; otherwise None."""
        wrong = []
        for number, entered in self._entered.items():
            if number in self.unfinished and len(sides := _sides(entered)) > 1:
                first = min(operation.time_created_ns for operation in entered.values())
                wrong.append((first, number, sides))
        if not wrong:
            return None
        _, number, sides = min(wrong, key=lambda side: side[:2])
        smallest = min(len(side.ranks) for side in sides)
        culprits = sorted(rank for side in sides if len(side.ranks) == smallest for rank in side.ranks)
        largest = max(sides, key=lambda side: len(side.ranks))
        waited = WaitedFor(largest.name, number[1], self.title(number[0]), largest.sizes, tuple(sides))
        where = [side.where for side in sides if set(side.ranks) <= set(culprits)]
        return Stall(
            StallKind.DESYNCHRONIZED,
            tuple(culprits),
            self.held_up_ranks(culprits),
            waited,
            tuple(line for line in where if line is not None),
        )

    def title(self, group: str) -> str:
        """Return the description of a group, else its name."""
        for record in self._records.values():
            if description := record.descriptions.get(group):
                return description if description != "undefined" else group
        return group

    def held_up_ranks(self, culprits: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks with something unfinished, without the culprits."""
        inside = {rank for waits in self.unfinished.values() for rank in waits}
        return tuple(sorted((inside | {rank for rank, _, _ in self.messages}) - set(culprits)))

    def waits(self) -> dict[int, dict[int, WaitedFor]]:
        """Return the ranks that each rank waits for, and the collective; a stuck rank waits for none."""
        waits: dict[int, dict[int, WaitedFor]] = defaultdict(dict)
        # The first collective that a rank waits in counts, so the latest come first.
        numbered = sorted(self.unfinished.items(), key=lambda item: -_first_time(item[1].values()))
        for number, inside in numbered:
            missing = self.missing(number)
            for rank, operation in inside.items():
                for absent in missing:
                    waits[rank][absent] = self._find_waited_for(operation)
        for rank, operation, other in self.messages:
            if not self.is_partly_unread(other) and not self._has_counterpart(rank, operation, other):
                waits[rank][other] = self._find_waited_for(operation)
        for _, rank in self._stuck:
            waits.pop(rank, None)
        return waits

    def _has_counterpart(self, rank: int, operation: Entered, other: int) -> bool:
        """Return whether the other end of a message waits in a message with this rank too."""
        kind = "recv" if "send" in operation.profiling_name else "send"
        return any(
            who == other
            and whom == rank
            and kind in theirs.profiling_name
            and theirs.group == operation.group
            for who, theirs, whom in self.messages
        )

    def _find_waited_for(self, operation: Entered) -> WaitedFor:
        number = operation.p2p_seq_id if operation.is_p2p else operation.collective_seq_id
        return WaitedFor(operation.name, number, self.title(operation.group), _sizes(operation))

    def first_complete(self) -> tuple[list[int], WaitedFor] | None:
        """Return the ranks in the first operation that all of its ranks have entered; None without one."""
        complete = [
            inside
            for number, inside in self.unfinished.items()
            if not self.missing(number) and not self._may_lack_entries(number)
        ]
        if complete:
            first = min(complete, key=lambda inside: _first_time(inside.values()))
            # A rank holds the others up if its GPU has not begun a collective that their GPUs have begun.
            begun = {rank for rank, operation in first.items() if operation.state == "started"}
            late = sorted(first.keys() - begun) if begun else []
            return late or sorted(first), self._find_waited_for(next(iter(first.values())))
        messages = [message for message in self.messages if not self.is_partly_unread(message[2])]
        if messages:
            rank, operation, other = min(messages, key=lambda message: message[1].time_created_ns)
            return sorted({rank, other}), self._find_waited_for(operation)
        return None


def _first_time(operations: Iterable[Entered]) -> int:
    return min(operation.time_created_ns for operation in operations)


def _members(records: Mapping[int, FlightRecord]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group: those in most dumps or, if none has them, those that used it."""
    recorded: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    used: dict[str, set[int]] = defaultdict(set)
    for rank, record in records.items():
        for group, members in record.groups.items():
            recorded[group][members] += 1
        for operation in record.operations:
            used[operation.group].add(rank)
    members_of = {group: tuple(sorted(ranks)) for group, ranks in used.items()}
    return members_of | {group: max(lists, key=lists.__getitem__) for group, lists in recorded.items()}


def _sides(entered: Mapping[int, Entered]) -> list[Side]:
    """Return the operations that ranks entered under one number, by name and size; one side if they agree."""
    ranks_by_operation: dict[object, list[int]] = defaultdict(list)
    for rank, operation in sorted(entered.items()):
        uneven = _UNEVEN.search(operation.name)
        volume = None if uneven else [math.prod(shape) for shape in operation.input_sizes]
        ranks_by_operation[
            operation.name, str(volume), str(None if uneven else operation.input_dtypes)
        ].append(rank)
    return [
        Side(
            tuple(ranks),
            entered[ranks[0]].name,
            _sizes(entered[ranks[0]]),
            place(ranks[0], entered[ranks[0]].frames),
        )
        for ranks in ranks_by_operation.values()
    ]


def _sizes(operation: Entered) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in operation.input_sizes)


def _stall_by_waiting(ranks: Mapping[int, RankEvidence], operations: _Operations) -> Stall | None:
    waits = operations.waits()
    for rank, facts in ranks.items():
        # A rank that is stopped or gone waits for nobody, whatever it has entered.
        if facts.state is not ProcessState.RUNNING:
            waits.pop(rank, None)
    awaited = {absent for absentees in waits.values() for absent in absentees}
    if not awaited:
        return _without_absent(ranks, operations)
    culprits = awaited - waits.keys()
    if not culprits:
        cycle = _shortest_of_cycles(waits)
        waited = next(iter(waits[cycle[0]].values()))
        where = _places(cycle, ranks, waits_in=operations)
        return Stall(StallKind.CYCLE, tuple(cycle), operations.held_up_ranks(cycle), waited, where)
    kind, chosen = _kind_of_absence(culprits, ranks)
    waited = _find_most_awaited(waits, chosen)
    where = _places(chosen, ranks)
    if kind is StallKind.DESYNCHRONIZED:
        inside = operations.held_up_ranks(chosen)
        entered = next(iter(_places(inside, ranks, waits_in=operations)), None)
        sides = [Side(inside, waited.name, waited.sizes, entered)]
        calls = _ranks_by_name({rank: call for rank in chosen if (call := meeting_call(ranks[rank].stack))})
        for call, call_ranks in calls.items():
            sides.append(Side(tuple(call_ranks), call, (), next(iter(_places(call_ranks, ranks)), None)))
        waited = replace(waited, sides=tuple(sides))
    return Stall(kind, tuple(chosen), operations.held_up_ranks(chosen), waited, where)


def _kind_of_absence(culprits: set[int], ranks: Mapping[int, RankEvidence]) -> tuple[StallKind, list[int]]:
    """Return why the culprits are absent, and the ranks with that reason."""
    states = {rank: ranks[rank].state if rank in ranks else ProcessState.UNREACHABLE for rank in culprits}
    for kind, wanted in (
        (StallKind.DEAD, _LOST_STATES),
        (StallKind.STOPPED, (ProcessState.STOPPED,)),
        (StallKind.NEVER_CAME, (ProcessState.RUNNING,)),
    ):
        if chosen := sorted(rank for rank, state in states.items() if state in wanted):
            # They wait for the others themselves, as in the end of the group.
            if kind is StallKind.NEVER_CAME and all(meeting_call(ranks[rank].stack) for rank in chosen):
                kind = StallKind.DESYNCHRONIZED
            return kind, chosen
    # Their programs have ended without an error, after fewer operations than the others.
    return StallKind.DESYNCHRONIZED, sorted(culprits)


def _find_most_awaited(waits: Mapping[int, Mapping[int, WaitedFor]], culprits: Sequence[int]) -> WaitedFor:
    counts = Counter(
        waited for rank_waits in waits.values() for absent, waited in rank_waits.items() if absent in culprits
    )
    return counts.most_common(1)[0][0]


def _without_absent(ranks: Mapping[int, RankEvidence], operations: _Operations) -> Stall | None:
    """Return the verdict if no rank is missing in an operation: all are inside it, or some are gone."""
    lost = {rank for rank, facts in ranks.items() if facts.state in (*_LOST_STATES, ProcessState.STOPPED)}
    inside = operations.first_complete()
    if lost:
        kind, chosen = _kind_of_absence(lost, ranks)
        waiting = tuple(sorted(ranks.keys() - lost))
        return Stall(kind, tuple(chosen), waiting, inside[1] if inside else None, _places(chosen, ranks))
    if inside is None:
        return None
    chosen, waited = inside
    return Stall(
        StallKind.INSIDE,
        tuple(chosen),
        operations.held_up_ranks(chosen),
        waited,
        _places(chosen, ranks, waits_in=operations),
    )


def _stall_by_calls(ranks: Mapping[int, RankEvidence]) -> Stall | None:
    """Return the verdict from the library calls of the ranks; None if no rank is in one.

    Native stacks show calls of MPI, NCCL and CUDA; Python stacks show the calls of PyTorch in which ranks
    meet before the first collective. The communicators are unknown, so the ranks outside the most frequent
    call are to blame.
    """
    running = {rank: facts for rank, facts in ranks.items() if facts.state is ProcessState.RUNNING}
    calls = {rank: call for rank, facts in running.items() if (call := _call(facts))}
    if not calls:
        return None
    absent = ranks.keys() - running.keys()
    absent |= {rank for rank, facts in running.items() if rank not in calls and (facts.native or facts.stack)}
    # A rank that has not imported PyTorch yet, and that nothing can look into, has no stacks.
    absent = absent or running.keys() - calls.keys()
    ranks_by_call = _ranks_by_name(calls)
    most = max(ranks_by_call, key=lambda call: len(ranks_by_call[call]))
    waited = WaitedFor(most, 0, "", ())
    if absent:
        kind, chosen = _kind_of_absence(absent, ranks)
        return Stall(kind, tuple(chosen), tuple(sorted(calls)), waited, _places(chosen, ranks))
    if len(ranks_by_call) == 1:
        chosen = sorted(calls)
        kind = StallKind.CYCLE if counterpart_verb(most) else StallKind.INSIDE
        return Stall(kind, tuple(chosen), (), waited, _places(chosen, ranks))
    return _stall_of_minority(ranks_by_call, waited, ranks)


def _call(facts: RankEvidence) -> str:
    return (facts.native.call if facts.native else "") or meeting_call(facts.stack)


def _stall_by_places(ranks: Mapping[int, RankEvidence]) -> Stall | None:
    """Return the verdict from the places of the ranks in the user's code, if no rank is known to wait.

    If most are in one place, the others are to blame. If all are in one place, none waits for another. If no
    place is known, and some ranks have ended, the others are to blame.
    """
    places = {rank: places_of_rank[0] for rank in ranks if (places_of_rank := _places([rank], ranks))}
    ranks_by_place = _ranks_by_name({rank: place_name(frame) for rank, frame in places.items()})
    if not ranks_by_place:
        running = tuple(rank for rank, facts in ranks.items() if facts.state is ProcessState.RUNNING)
        return Stall(StallKind.NEVER_CAME, running, ()) if 0 < len(running) < len(ranks) else None
    most = max(ranks_by_place, key=lambda name: len(ranks_by_place[name]))
    waiting = ranks_by_place[most] if len(ranks_by_place) > 1 else []
    other_ranks = sorted(places.keys() - set(waiting))
    waited = WaitedFor(most, 0, "", ())
    if 0 < len(waiting) <= len(other_ranks):
        ranks_by_function = {
            places[ranks_of_place[0]].function: ranks_of_place for ranks_of_place in ranks_by_place.values()
        }
        return _stall_of_minority(
            ranks_by_function if len(ranks_by_function) == len(ranks_by_place) else ranks_by_place,
            waited,
            ranks,
        )
    where = tuple(places[rank] for rank in other_ranks)
    return Stall(StallKind.NEVER_CAME, tuple(other_ranks), tuple(waiting), waited if waiting else None, where)


def _ranks_by_name(names: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the ranks of each name."""
    groups = grouped((name, rank) for rank, name in sorted(names.items()))
    return groups


def _stall_of_minority(
    ranks_by_name: Mapping[str, list[int]], waited: WaitedFor, ranks: Mapping[int, RankEvidence]
) -> Stall:
    """Return the verdict on ranks in different calls or places: the smallest group is to blame."""
    sides = [
        Side(tuple(members), call, (), next(iter(_places(members[:1], ranks)), None))
        for call, members in ranks_by_name.items()
    ]
    fewest = min(map(len, ranks_by_name.values()))
    culprits = sorted(
        rank for members in ranks_by_name.values() if len(members) == fewest for rank in members
    )
    return Stall(
        StallKind.DESYNCHRONIZED,
        tuple(culprits),
        tuple(sorted({rank for members in ranks_by_name.values() for rank in members} - set(culprits))),
        replace(waited, sides=tuple(sides)),
        _places(culprits, ranks),
    )


def _places(
    culprits: Iterable[int], ranks: Mapping[int, RankEvidence], waits_in: _Operations | None = None
) -> tuple[Place, ...]:
    """Return the places of ranks by their stacks or, in an operation, by the frames that entered it."""
    entered: dict[int, Entered] = {}
    if waits_in is not None:
        for inside in waits_in.unfinished.values():
            for rank, operation in inside.items():
                if rank not in entered or operation.record_id < entered[rank].record_id:
                    entered[rank] = operation
    places = []
    for rank in culprits:
        facts = ranks.get(rank, RankEvidence())
        stack = facts.stack or ((facts.native.frame,) if facts.native and facts.native.frame else ())
        frames = stack or (tuple(entered[rank].frames) if rank in entered else ())
        places.append(place(rank, frames))
    return tuple(where for where in places if where is not None)


def _shortest_of_cycles(waits: Mapping[int, Mapping[int, WaitedFor]]) -> list[int]:
    """Return the ranks on a shortest cycle of waits, sorted; empty if there is none."""
    cycles = [cycle for start in sorted(waits) if (cycle := _shortest_cycle(waits, start))]
    shortest: list[int] = min(cycles, key=len, default=[])
    return sorted(shortest)


def _shortest_cycle(waits: Mapping[int, Mapping[int, WaitedFor]], start: int) -> list[int]:
    """Return the ranks on a shortest cycle through a rank, by breadth-first search; empty without one."""
    before = dict.fromkeys(waits[start], start)
    level = list(waits[start])
    while level:
        following = []
        for rank in level:
            if rank == start:
                path, at = [start], before[start]
                while at != start:
                    path.append(at)
                    at = before[at]
                return path
            for absent in waits.get(rank, ()):
                if absent not in before:
                    before[absent] = rank
                    following.append(absent)
        level = following
    return []
