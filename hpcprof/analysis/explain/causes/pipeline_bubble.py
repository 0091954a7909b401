"""Pipeline imbalance: the stages of a pipeline wait for the one with most work."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, PlaceRemedy, Trait, delays
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.explain.removals import stage_medians
from hpcprof.analysis.statistics.grouped import quotient, sums_by
from hpcprof.profiles.timeline import Floats, Ints


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the slowest stage of a pipeline of GPUs."""
    graph, measured = scene.graph, scene.replay.measured
    if len(scene.ranks) < 2 or not graph.is_coupled or not graph.is_pipeline:
        return
    compute = graph.work.is_compute
    total = np.bincount(graph.work_rank, measured.alone * compute, len(scene.ranks)) / graph.steps
    usual = stage_medians(total, graph.stage)
    slowest = np.flatnonzero(graph.stage == usual.argmax())
    is_slowest = np.isin(graph.work_rank, slowest) & compute
    yield Candidate(
        PIPELINE_BUBBLE,
        scene.mostly(graph.work.place[is_slowest], measured.alone[is_slowest]),
        tuple(slowest.tolist()),
        partial(_balance_stages, scene),
        float(usual.max() - usual.mean()),
    )


def _balance_stages(scene: Scene, times: Times) -> Times:
    """Give every stage of a pipeline as much work in a step as the mean of the stages.

    The work of a stage is its median rank's; a slower rank stays slower. The host's time to launch the work
    moves with it.
    """
    graph, work = scene.graph, scene.graph.work
    rows = np.flatnonzero(work.is_compute)
    ratio = _ratio_to_mean(work.step[rows], graph.work_rank[rows], times.alone[rows], graph.stage)
    scaled = times.scale_alone(rows, ratio)
    edges = graph.edges.of(EdgeKind.HOST, EdgeKind.CALL)
    call = graph.edges.row[edges]
    host_lag = times.lag[edges].astype(float)
    ratio = _ratio_to_mean(graph.calls.step[call], graph.call_rank[call], host_lag, graph.stage)
    return scaled.scale_lag(edges, ratio)


def _ratio_to_mean(step: Ints, rank: Ints, time: Floats, stage: Ints) -> Floats:
    steps, number = np.unique(step, return_inverse=True)
    usual = stage_medians(sums_by((len(steps), len(stage)), (number, rank), time), stage)
    return quotient(usual.mean(axis=1, keepdims=True), usual, 1.0)[number, stage[rank]]


_IN_MPI = (
    "Balance the stages: give {ranks} less of the work of {where}, or send smaller blocks, so that others "
    "begin earlier."
)

PIPELINE_BUBBLE = CauseDeclaration(
    name="pipeline_bubble",
    title="pipeline imbalance",
    meaning="pipeline stages wait for a slower stage",
    about="stages wait in send and receive for a slower stage; `ranks` is the slower one",
    remedy="Balance the stages: move layers away from the stage of {ranks}, or use more microbatches, or an "
    "interleaved schedule.",
    remedies={"mpi": _IN_MPI},
    place_remedies=(PlaceRemedy(("mpi_",), _IN_MPI),),
    candidates=candidates,
    figures=(Figures("mpi_waits", "wait_ns", delays), Figures("step_account", "exposed_comm_ns")),
    traits=frozenset({Trait.ALL_RANKS, Trait.DELAYS_OTHERS, Trait.LIKE_WAITING}),
    spread=0.3,
    column="exposed_comm_ns",
    operations="communication",
)
