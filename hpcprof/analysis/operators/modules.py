"""The modules of a PyTorch program (``nn.Module``): their calls, and the work that these cause on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import number_texts
from hpcprof.analysis.operators.nesting import (
    NO_OPERATOR,
    Nesting,
    first_launches,
    launching_operators,
    nest,
    nesting,
    open_at,
)
from hpcprof.analysis.operators.operators import percent
from hpcprof.analysis.steps.streams import OperationTimes
from hpcprof.profiles.timeline import NO_LINK, Ints, Timeline


def modules(timeline: Timeline) -> Outcome:
    """Summarize the calls of each module: time on the host and the GPU, with that of the modules inside.

    ``gpu_ns`` is the time of the operations that its thread launched during the calls, and
    ``backward_gpu_ns`` that of the operators which compute the gradients of those executed in the calls.
    ``gpu_pct`` is the sum of both in percent of all work on the GPU.
    """
    table = timeline.modules
    if not len(table):
        file = timeline.origin.path.name
        return no_rows(f"no modules in {file}: PyTorch records them with with_stack=True")
    tree = nest(table)
    host = (table.end - table.start)[tree.order]
    names, name = number_texts(timeline, table.name[tree.order])

    def total(value: Ints) -> Ints:
        sums = np.zeros(len(names), np.int64)
        np.add.at(sums, name, value)
        return sums

    done = timeline.columns_of_operations(OperationTimes)
    launched, forward = _forward(timeline, tree, done.end - done.start)
    gpu, backward = total(tree.inside(forward)), total(tree.inside(_backward(timeline, tree)))
    own = total(tree.own(host))
    rows: dict[str, Any] = {
        "name": names,
        "calls": np.bincount(name, minlength=len(names)),
        "host_ns": total(host),
        "self_host_ns": own,
        "host_pct": percent(own, int(own.sum())),
        "gpu_ops": total(tree.inside(launched)),
        "gpu_ns": gpu,
        "backward_gpu_ns": backward,
        "gpu_pct": percent(gpu + backward, int((done.end - done.start).sum())),
    }
    return Outcome(rows)


def _forward(timeline: Timeline, tree: Nesting, time: Ints) -> tuple[Ints, Ints]:
    """Return the number and the time of the operations that each call launched itself, by position."""
    operation, call = first_launches(timeline)
    calls = timeline.calls
    place = open_at(tree, timeline.modules, calls.process[call], calls.thread[call], calls.start[call])
    inside = place != NO_OPERATOR
    spent = np.zeros(len(tree.order), np.int64)
    np.add.at(spent, place[inside], time[operation[inside]])
    return np.bincount(place[inside], minlength=len(spent)), spent


def _backward(timeline: Timeline, tree: Nesting) -> Ints:
    """Return the time on the GPU of the gradients of the operators that each call executed itself."""
    table, of_operators = timeline.operators, nesting(timeline)
    done = timeline.columns_of_operations(OperationTimes)
    operation, operator = launching_operators(timeline)
    spent = np.zeros(len(table), np.int64)
    np.add.at(spent, operator, (done.end - done.start)[operation])
    spent = of_operators.inside(spent)
    start, link = (column[of_operators.order] for column in (table.start, table.link))
    linked = np.flatnonzero(link != NO_LINK)
    linked = linked[np.lexsort((start[linked], link[linked]))]
    # Of the two operators of a link, the forward one begins first.
    first = np.flatnonzero(link[linked][1:] == link[linked][:-1])
    forward, backward = linked[first], linked[first + 1]
    rows = of_operators.order[forward]
    place = open_at(tree, timeline.modules, table.process[rows], table.thread[rows], table.start[rows])
    inside = place != NO_OPERATOR
    result = np.zeros(len(tree.order), np.int64)
    np.add.at(result, place[inside], spent[backward[inside]])
    return result
