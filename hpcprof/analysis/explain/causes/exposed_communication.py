"""Communication that costs time: exposed, or in contention with the kernels beside it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpcprof.analysis.account.places import WHOLE_STEP
from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, PlaceRemedy, Trait, call_rows
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.statistics.grouped import quotient
from hpcprof.profiles.columns.unique import ends_run, numbered_rows
from hpcprof.profiles.timeline import Category, Floats

_FEW_COLLECTIVES = 4
"""In a step with fewer collectives, each is assumed to be sent in this number of parts."""

_USUAL_SLOWDOWN = 0.12
"""Assumed slowdown of compute beside communication, where the profile has no overlap."""


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the communication of GPUs by place, the transfer of MPI by call, and all of each."""
    if not scene.graph.is_of_host:
        work = scene.graph.work
        used = map(scene.place, np.unique(work.place[work.is_communication]).tolist())
        yield from (_on_gpu(scene, place) for place in sorted({*used, WHOLE_STEP}))
    yield from _in_mpi(scene)


def _on_gpu(scene: Scene, place: str) -> Candidate:
    work = scene.graph.work
    chosen = np.flatnonzero(work.is_communication & scene.removals.inside(place)[work.place])
    return scene.candidate(
        EXPOSED_COMMUNICATION,
        place,
        lambda times: _hide_communication(scene, times, place),
        scene.graph.work_rank[chosen],
        work.time[chosen],
    )


def _hide_communication(scene: Scene, times: Times, place: str) -> Times:
    """Hide the communication of a place, except the last collective of each step.

    In a step with few collectives (`_FEW_COLLECTIVES`), only the last part of the last one is exposed.
    """
    graph, work = scene.graph, scene.graph.work
    chosen = work.is_communication & scene.removals.inside(place)[work.place]
    factor = np.where(chosen, 0.0, 1.0)
    rows = np.flatnonzero(chosen)
    _, group = numbered_rows(graph.work_rank[rows], work.step[rows])
    order = np.lexsort((work.start[rows], group))
    last = order[ends_run(group[order])]
    few = np.bincount(group, minlength=1)[group[last]] < _FEW_COLLECTIVES
    factor[rows[last]] = np.where(few, 1 / _FEW_COLLECTIVES, 1.0)
    return _slow_overlap(scene, scene.removals.communication(times, factor), factor, place)


def _slow_overlap(scene: Scene, times: Times, factor: Floats, place: str) -> Times:
    """Lengthen the compute of a place by the slowdown that the newly hidden communication causes."""
    graph, work = scene.graph, scene.graph.work
    hidden = scene.once(_exposed_transfer) * (1 - factor)
    lost = scene.replay.lost
    share = float(np.average(scene.replay.slowdown, weights=lost)) if lost.any() else _USUAL_SLOWDOWN
    compute = work.is_compute & scene.removals.inside(place)[work.place]
    both = np.concatenate((np.flatnonzero(factor < 1), np.flatnonzero(compute)))
    _, group = numbered_rows(graph.work_rank[both], work.step[both])
    first, compute_group = np.split(group, [int((factor < 1).sum())])
    rows = both[len(first) :]
    longer = share * np.bincount(first, hidden[both[: len(first)]], int(group.max(initial=-1)) + 1)
    total = np.bincount(compute_group, times.alone[rows], len(longer))
    return times.scale_alone(rows, 1 + quotient(longer, total)[compute_group])


def _exposed_transfer(scene: Scene) -> Floats:
    """Return the exposed transfer time of each operation: without waits and without overlapping compute."""
    graph, work = scene.graph, scene.graph.work
    edges = graph.edges
    exposed = np.zeros(len(work))
    rows = edges.of(EdgeKind.TRANSFER, EdgeKind.RUN)
    exposed[edges.row[rows]] = edges.lag[rows]
    begin = np.where(work.is_communication, work.end - exposed.astype(np.int64), work.start)
    exposed -= graph.beside(begin, work.end, Category.COMM, Category.COMP)
    return np.where(work.is_communication, exposed, 0.0)


def _in_mpi(scene: Scene) -> Iterator[Candidate]:
    """Yield the transfer that nothing hides, of the calls of each name and of all."""
    mpi, graph = scene.mpi, scene.graph
    if mpi is None:
        return
    name = graph.calls.name
    numbers = np.unique(name[mpi.exposed > 0]).tolist()
    parts = [(graph.names[number], np.where(name == number, mpi.exposed, 0)) for number in numbers]
    for where, less in [*parts, *([(WHOLE_STEP, mpi.exposed)] if len(parts) > 1 else [])]:
        remove = partial(mpi.less_transfer, less=less)
        yield scene.candidate(EXPOSED_COMMUNICATION, where, remove, graph.call_rank, less)


_IN_MPI = (
    "Begin the communication of {where} before work that does not need its data, with nonblocking calls, and "
    "wait for it after that work; or send less."
)

EXPOSED_COMMUNICATION = CauseDeclaration(
    name="exposed_communication",
    title="exposed communication",
    meaning="communication that no compute hides",
    about="communication that no compute hides and no rank delays",
    remedy="Overlap the communication of {where} with compute: start it asynchronously, as soon as its data "
    "is ready.",
    remedies={
        "cuda": "Overlap the communication of {where} with compute: start it as soon as its data is ready, "
        "asynchronously on a stream of its own.",
        "jax": "Overlap the communication of {where} with compute: on GPUs with "
        "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true; or shard so that less moves.",
        "mpi": _IN_MPI,
    },
    place_remedies=(
        PlaceRemedy(("mpi_",), _IN_MPI),
        PlaceRemedy(
            ("backward",),
            "Let the gradients' all-reduces run beside the backward pass: DistributedDataParallel with "
            "buckets (bucket_cap_mb, gradient_as_bucket_view=True) instead of reducing after it.",
        ),
    ),
    candidates=candidates,
    figures=(Figures("mpi_calls", "transfer_ns", call_rows), Figures("step_account", "exposed_comm_ns")),
    traits=frozenset({Trait.ALL_RANKS, Trait.LIKE_WAITING}),
    spread=0.3,
    column="exposed_comm_ns",
    operations="communication",
)


def _contended(scene: Scene) -> Iterator[Candidate]:
    """Yield the time that kernels lose to the communication beside them."""
    remove = partial(replace, contended=False)
    yield scene.candidate(CONTENTION, "", remove, scene.graph.work_rank, scene.replay.lost)


CONTENTION = CauseDeclaration(
    name="contention",
    title="contention with communication",
    meaning="communication slows the kernels beside it",
    remedy="Leave the communication fewer SMs (NCCL_MAX_CTAS, NCCL_NTHREADS), or overlap it with kernels "
    "that are bound by something else.",
    candidates=_contended,
    figures=(Figures("slowdown", "slowdown", lambda table, _: table["slowdown"].astype(float) > 1),),
    traits=frozenset({Trait.ON_GPU, Trait.ALL_RANKS}),
    operations="compute",
)
