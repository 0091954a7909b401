"""Nesting of operators, and the GPU work that each launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.timeline import Ints, Operators, Ranges, Timeline

NO_OPERATOR = -1


@dataclass(frozen=True)
class Nesting:
    """The operators of a timeline, or its modules, as trees; all arrays of shape (operators,)."""

    order: Ints
    """The rows of the table by thread, each operator before those inside it. The positions below are
    positions in this order.
    """
    parent: Ints
    """The position of the innermost operator around each one, or `NO_OPERATOR`."""
    after: Ints
    """The position after the last operator inside each one."""

    def inside(self, value: Ints) -> Ints:
        """Return the sum of ``value``, given by position, over each operator and all those inside it."""
        until = np.concatenate(([0], np.cumsum(value)))
        total: Ints = until[self.after] - until[:-1]
        return total

    def own(self, value: Ints) -> Ints:
        """Return ``value``, given by position, without that of the operators directly inside."""
        nested = np.flatnonzero(self.parent != NO_OPERATOR)
        rest: Ints = value.copy()
        np.subtract.at(rest, self.parent[nested], value[nested])
        return rest


@computed_once
def nesting(timeline: Timeline) -> Nesting:
    """Find the operator around each operator, as PyTorch's ``key_averages()`` does."""
    return nest(timeline.operators)


def nest(table: Operators | Ranges) -> Nesting:
    """Find the row around each row of a table.

    One is inside another one if it begins before the other one ends and ends no later.
    """
    order = np.lexsort((-table.end, table.start, table.thread, table.process))
    _, number = numbered_rows(table.process, table.thread)
    threads, starts, ends = (column[order].tolist() for column in (number, table.start, table.end))
    parent: list[int] = []
    after = [len(order)] * len(order)
    around: list[int] = []
    for at, (thread, start, end) in enumerate(zip(threads, starts, ends, strict=True)):
        while around:
            outer = around[-1]
            if start < ends[outer] and end <= ends[outer] and threads[outer] == thread:
                break
            after[around.pop()] = at
        parent.append(around[-1] if around else NO_OPERATOR)
        around.append(at)
    return Nesting(order, np.array(parent, np.int64), np.array(after, np.int64))


@computed_once
def launching_operators(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the operations on the GPU that an operator launched.

    Returns
    -------
    operation : ndarray of int64
        Rows of ``timeline.operations()``, each once.
    operator : ndarray of int64
        The position in `Nesting.order` of the innermost operator that was open on the thread of the launch
        call when the call began.
    """
    operation, call = first_launches(timeline)
    calls = timeline.calls
    of_call = (calls.process[call], calls.thread[call], calls.start[call])
    found = open_at(nesting(timeline), timeline.operators, *of_call)
    launched = found != NO_OPERATOR
    return operation[launched], found[launched]


def first_launches(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of the operations whose launch was recorded, each once, and the row of its call."""
    operation, call = launch_pairs(timeline)
    # Calls inside a call share its correlation id.
    first = np.flatnonzero(np.diff(operation, prepend=-1))
    return operation[first], call[first]


def open_at(tree: Nesting, table: Operators | Ranges, process: Ints, thread: Ints, moment: Ints) -> Ints:
    """Return the position of the innermost row that is open on a thread at each moment, or `NO_OPERATOR`."""
    start, end = table.start[tree.order], table.end[tree.order]
    found = np.full(len(moment), NO_OPERATOR, np.int64)
    threads = {
        tuple(key): rows for key, rows in rows_by_key(table.process[tree.order], table.thread[tree.order])
    }
    for key, rows in rows_by_key(process, thread) if len(moment) else []:
        if (own := threads.get(tuple(key))) is None:
            continue
        when = moment[rows]
        before = np.searchsorted(start[own], when, side="right") - 1
        at = np.where(before < 0, NO_OPERATOR, own[before])
        # The last operator that began may have ended; one around it may be open.
        while len(ended := np.flatnonzero((at != NO_OPERATOR) & (end[at] < when))):
            at[ended] = tree.parent[at[ended]]
        found[rows] = at
    return found
