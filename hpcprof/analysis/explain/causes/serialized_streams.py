"""Serialized streams: they wait for each other by way of CUDA's legacy default stream."""

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.explain.rank_activity import grid_blocks
from hpcprof.analysis.explain.rank_edges import DEFAULT_STREAM, MAX_BESIDE_SHARE
from hpcprof.profiles.columns.intervals import length
from hpcprof.profiles.timeline import NO_STREAM

_MIN_STREAMS, _BLOCKS_AT_ONCE = 3, 2
"""Minimum number of other streams, and number of blocks that a multiprocessor runs in the time of one."""


def _serialized(scene: Scene) -> Iterator[Candidate]:
    """Yield the waits of kernels for the default stream, on ranks whose other streams never run at once.

    Waits that the program asks for are its own, so no recorded event may be of the default stream. Without
    the waits, kernels that follow it on other streams share the multiprocessors.
    """
    graph, work = scene.graph, scene.graph.work
    units = scene.multiprocessors
    number = np.zeros(len(work), np.int64)
    stream_waits = np.flatnonzero(graph.calls.kind == CallKind.STREAM_WAIT)
    for rank, name in enumerate(graph.ranks):
        on_rank, timeline = graph.work_rank == rank, scene.timelines[name]
        (stream,) = timeline.of_operations("stream")
        number[on_rank] = stream[work.row[on_rank]]
        waits = timeline.synchronizations
        elsewhere = waits.correlation[~np.isin(waits.source_stream, (NO_STREAM, DEFAULT_STREAM))]
        calls = graph.calls.row[stream_waits[graph.call_rank[stream_waits] == rank]]
        if not np.isin(timeline.calls.correlation[calls], elsewhere).all():
            return
    # Other interfaces number their streams differently.
    by_cuda = graph.is_named(graph.calls.name, lambda name: name.startswith("cu"))[work.call]
    kernels = by_cuda & work.is_compute
    edges = graph.edges.of(EdgeKind.EVENT)
    row, source = graph.edges.row[edges], (graph.edges.source[edges] - graph.work_start(0)) // 2
    held = kernels[row] & (number[row] != DEFAULT_STREAM) & (number[source] == DEFAULT_STREAM)
    edges, row = edges[held], row[held]
    rows = np.unique(row)
    time = work.time[rows]
    streams = len(np.unique(work.stream[rows]))
    by_rank = [rows[graph.work_rank[rows] == rank] for rank in range(len(graph.ranks))]
    beside = time.sum() - sum(length(work.start[part], work.end[part]) for part in by_rank)
    if not units or streams < _MIN_STREAMS * len(scene.ranks) or beside > MAX_BESIDE_SHARE * time.sum():
        return
    share = np.minimum(grid_blocks(work.grid[rows]) / units / _BLOCKS_AT_ONCE, 1.0)

    def remove(times: Times) -> Times:
        return times.without(edges).scale_alone(rows, 1 + share * (streams / len(scene.ranks) - 1))

    where = scene.mostly(work.place[rows], time)
    yield scene.candidate(SERIALIZED_STREAMS, where, remove, graph.work_rank[rows], time)


SERIALIZED_STREAMS = CauseDeclaration(
    name="serialized_streams",
    title="serialized streams",
    meaning="kernels of several streams run one after another, as each waits for the legacy default stream",
    about="kernels of three streams or more never run at once, as each waits for work of CUDA's legacy "
    "default stream, which waits for all streams that are not created as non-blocking. The saving is that of "
    "kernels that share the GPU; it assumes that a multiprocessor runs two blocks in the time of one",
    remedy="Launch each kernel of {where} on the stream of its data: one without a stream waits for all "
    "others. Or create the streams as non-blocking (cudaStreamNonBlocking).",
    candidates=_serialized,
    figures=(Figures("kernels", "total_ns"),),
    traits=frozenset({Trait.ON_GPU, Trait.ALL_RANKS, Trait.UNCERTAIN}),
    spread=0.7,
    column="compute_ns",
    operations="compute",
)
