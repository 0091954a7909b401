"""Completions of nonblocking operations in archives whose writer records none (EZTrace, most of them).

The calls that wait and test follow from MPI's rules, for the operations that are pending when each returns:

1. ``MPI_Waitall`` completes all of them.
2. ``MPI_Wait`` completes one: the operation whose request is used again first, else the oldest. So do
   ``MPI_Waitany`` and ``MPI_Waitsome``, with sends, which need no other rank, before others.
3. A request that begins another operation was completed before: by the last call that waits or tests.
4. An operation that no wait completes is completed by the last of the tests that first follow its begin.
"""

import re
from collections.abc import Container, Sequence

import numpy as np

from hpcprof.profiles.readers.otf2.events import MpiKind
from hpcprof.profiles.timeline import Ints

COMPLETING = (MpiKind.WAIT_ALL, MpiKind.WAIT, MpiKind.WAIT_SOME, MpiKind.TEST)
"""The kinds of calls that complete requests."""

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
