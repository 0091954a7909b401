"""The longest path through the hosts, streams and collectives of a run, which determines its step time."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.explain.host_activity import NONE, at
from hpcprof.analysis.explain.rank_edges import EdgeKind
from hpcprof.analysis.explain.replay import Replay
from hpcprof.profiles.timeline import Category, Ints

_KINDS = {
    EdgeKind.FIXED: "before",
    EdgeKind.HOST: "host",
    EdgeKind.CALL: "call",
    EdgeKind.LAUNCH: "launch",
    EdgeKind.STREAM: "gap",
    EdgeKind.EVENT: "dependency",
    EdgeKind.WAIT: "return",
    EdgeKind.ARRIVE: "collective",
    EdgeKind.TRANSFER: "communication",
    EdgeKind.MESSAGE: "communication",
    EdgeKind.RENDEZVOUS: "communication",
    EdgeKind.JOIN: "collective",
}
_OF_CALLS = (
    *(EdgeKind.HOST, EdgeKind.CALL, EdgeKind.WAIT),
    *(EdgeKind.MESSAGE, EdgeKind.RENDEZVOUS, EdgeKind.JOIN),
)
"""The edges whose row is a call; that of the others is an operation."""

_RUNS = {Category.COMP: "kernel", Category.COMM: "communication", Category.MEM: "copy"}


def critical_path(replay: Replay) -> pd.DataFrame:
    """Return the rows of ``critical_path``.

    ``kind`` is what takes the time: work of the ``host`` between calls, a ``call``, a ``launch``, a
    ``kernel``, a ``copy``, ``communication``, the ``gap`` between operations of a stream, the wait for
    another stream (``dependency``), or the ``return`` of a call that waited. ``ns_per_step`` is the median
    over the steps of the time on the path, and ``share_pct`` its share of the median wall step.
    """
    graph = replay.graph
    moments = replay.unchanged
    path = _path(replay, moments)
    edges = graph.edges.take(path)
    begin, end = moments[edges.source], moments[edges.target]
    last = graph.front[int(np.argmax(moments[graph.front[:, -1]]))]
    bounds = moments[last]
    of_call = np.isin(edges.kind, _OF_CALLS)
    row_call, row_work = np.where(of_call, edges.row, 0), np.where(of_call, NONE, edges.row)
    work = graph.work
    of_work = (graph.work_rank, work.place, work.name, work.category)
    work_rank, work_place, work_name, category = (at(column, row_work) for column in of_work)
    rank = np.where(of_call, graph.call_rank[row_call], work_rank)
    place = np.where(of_call, graph.calls.place[row_call], work_place)
    name = np.where(of_call, graph.calls.name[row_call], work_name)
    name[edges.kind == EdgeKind.HOST] = NONE
    rows = []
    for step in range(graph.steps):
        time = np.minimum(end, bounds[step + 1]) - np.maximum(begin, bounds[step])
        inside = time > 0
        rows.append(
            pd.DataFrame(
                {
                    "step": step,
                    "rank": rank[inside],
                    "kind": _kind_names(edges.kind[inside], category[inside]),
                    "name": name[inside],
                    "range": place[inside],
                    "ns": time[inside],
                }
            )
        )
    return _table(replay, pd.concat(rows), float(np.median(np.diff(bounds))))


def _kind_names(kind: Ints, category: Ints) -> NDArray[np.object_]:
    of_edge = np.array([_KINDS.get(one, "") for one in EdgeKind], object)[kind]
    of_work = np.array([_RUNS[one] for one in Category], object)[category]
    names: NDArray[np.object_] = np.where(kind == EdgeKind.RUN, of_work, of_edge)
    return names


def _path(replay: Replay, moments: Ints) -> Ints:
    """Return the edges of the path that ends at the end of the last step, the first one first."""
    graph = replay.graph
    edges = graph.edges
    slack = moments[edges.target] - moments[edges.source] - replay.lags(replay.measured, moments)
    # The edges are sorted by target: of each node, the edge with the least slack binds.
    order = np.lexsort((slack, edges.target))
    first = np.append(True, edges.target[order][1:] != edges.target[order][:-1])
    binding = np.full(len(graph.order), NONE)
    binding[edges.target[order[first]]] = order[first]
    node = int(graph.front[int(np.argmax(moments[graph.front[:, -1]])), -1])
    found = []
    while node and binding[node] != NONE:
        edge = int(binding[node])
        found.append(edge)
        node = int(edges.source[edge])
    # The edge from the zero of the clock is no time of the run.
    return np.array(found[-2::-1] if len(found) > 1 else [], np.int64)


def _table(replay: Replay, rows: pd.DataFrame, wall: float) -> pd.DataFrame:
    graph = replay.graph
    steps = range(graph.steps)
    keys = ["rank", "kind", "name", "range"]
    per_step = rows.groupby([*keys, "step"])["ns"].sum().unstack("step").reindex(columns=steps).fillna(0)
    median = per_step.median(axis=1)
    found = median[median > 0].sort_values(ascending=False, kind="stable").reset_index(name="ns_per_step")
    names, places = [*graph.names, None], [*graph.places, None]
    found["rank"] = [graph.ranks[one] for one in found["rank"]]
    found["name"] = pd.Series([names[one] for one in found["name"]], dtype=object)
    found["range"] = pd.Series([places[one] for one in found["range"]], dtype=object)
    found["ns_per_step"] = found["ns_per_step"].round().astype(np.int64)
    found["share_pct"] = (100 * found["ns_per_step"] / wall).round(3)
    result: pd.DataFrame = found
    return result
