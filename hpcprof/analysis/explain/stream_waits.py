"""Kernels of one stream that wait for those of another, which no profile shows the need of."""

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.explain.explanation import LEAST_ESTIMATE_PCT, NotJudged
from hpcprof.analysis.explain.rank_edges import EdgeKind
from hpcprof.analysis.explain.replay import Replay
from hpcprof.common.units import format_ns
from hpcprof.profiles.timeline import Category

SUBJECT = "waits between streams"


def waits_between_streams(replay: Replay) -> Iterator[NotJudged]:
    """Yield what a step would gain at most if kernels did not wait for those of other streams, if it is much.

    Whether they could run at once depends on the data that they need and on how much of the GPU they fill.
    """
    graph = replay.graph
    work, edges = graph.work, graph.edges
    waits = np.flatnonzero(edges.kind == EdgeKind.EVENT)
    row, source = edges.row[waits], (edges.source[waits] - graph.work_start(np.zeros(1, np.int64))) // 2
    kernels = (work.category[row] == Category.COMP) & (work.category[source] == Category.COMP)
    waits, row, source = waits[kernels], row[kernels], source[kernels]
    if not len(waits):
        return
    before = float(replay.elapsed(replay.unchanged).mean())
    apart = replay.moments(replay.measured.without(waits))
    gained = before - float(replay.elapsed(apart).mean())
    if 100 * gained < LEAST_ESTIMATE_PCT * before:
        return
    own = work.before[row]
    begin = np.maximum(work.start[source], np.where(own == NONE, work.start[source], work.end[own]))
    held = np.bincount(work.name[source], (work.end[source] - begin).clip(min=0))
    kernel = int(held.argmax())
    places = work.place[source[work.name[source] == kernel]]
    # `NONE` is -1.
    place = int(np.bincount(places + 1).argmax()) - 1
    inside = "" if place == NONE else f" in {graph.places[place]}"
    yield NotJudged(
        SUBJECT,
        f"kernels wait for those of another stream, most for {graph.names[kernel]}{inside}. If they ran at "
        f"once, a step would take up to {format_ns(gained)} less. No profile records whether their data and "
        "the GPU allow that",
    )
