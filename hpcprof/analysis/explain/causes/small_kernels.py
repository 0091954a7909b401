"""Small kernels: a place spends its time in many short kernels and the gaps between them."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.places import NONE
from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, PlaceRemedy, Trait, idle
from hpcprof.analysis.explain.edge_kinds import EdgeKind

if TYPE_CHECKING:
    import pandas as pd

_SHORT_KERNEL_NS = 10_000
"""Length below which a kernel takes no longer than its launch."""

_GRAPH_GAP_NS = 1_000
"""The time between two kernels of a CUDA graph, on an H200: 0.06 µs in a row of equal kernels, 0.55 to 1.9
in programs."""

_OPTIMIZERS = ("optim", "step_update", "adam", "sgd")
"""Words in the names of places and kernels of optimizers, which others fuse to few kernels."""

_MIN_SHORT_SHARE, _MIN_KERNELS = 0.5, 20
"""Minimum share of short kernels, and minimum number of kernels in a step, of a place with small kernels."""


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the places most of whose kernels are short."""
    yield from (_short_kernels(scene, place) for place in scene.places if is_short(scene, place))


def is_short(scene: Scene, place: str) -> bool:
    """Return whether most kernels of a place are short."""
    work = scene.graph.work
    is_inside = work.is_compute & scene.removals.inside(place)[work.place]
    count = int(is_inside.sum())
    short = int((is_inside & (work.time < _SHORT_KERNEL_NS)).sum())
    return count >= _MIN_KERNELS * scene.graph.steps * len(scene.ranks) and short >= _MIN_SHORT_SHARE * count


def _short_kernels(scene: Scene, place: str) -> Candidate:
    work = scene.graph.work
    is_inside = scene.removals.inside(place)[work.place] & work.is_compute
    turn = np.where(work.before == NONE, work.start, np.minimum(work.end[work.before], work.start))
    # A long pause is another cause.
    since = np.maximum(turn, work.start - 10 * _SHORT_KERNEL_NS)
    short = np.flatnonzero(is_inside & (work.time < _SHORT_KERNEL_NS))
    names = [scene.graph.names[number].lower() for number in np.unique(work.name[short]).tolist()]
    fuses = any(word in text for text in (place.lower(), *names) for word in _OPTIMIZERS)
    remove = partial(_launch_together, scene, place, fuses)
    rank, time = scene.graph.work_rank[short], (work.end - since)[short]
    return scene.candidate(SMALL_KERNELS, place, remove, rank, time)


def _launch_together(scene: Scene, place: str, fuses: bool, times: Times) -> Times:
    """Launch the work of a place at once, as one graph, or with its short kernels fused into the others.

    The kernels of a graph follow each other, each in its own time.
    """
    removals, graph, work = scene.removals, scene.graph, scene.graph.work
    is_chosen = removals.inside(place)[work.place]
    short = work.is_compute & (work.time < _SHORT_KERNEL_NS)
    rows = np.flatnonzero(is_chosen & short) if fuses else np.flatnonzero(is_chosen)
    gaps = (graph.edges.kind == EdgeKind.STREAM) & np.isin(graph.edges.row, rows)
    launches = removals.calls_in(place, (CallKind.LAUNCH,))
    most = np.minimum(times.lag[gaps], 0 if fuses else _GRAPH_GAP_NS)
    launched = removals.at_once(times.set_lag(gaps, most), launches)
    return launched.without_work(rows) if fuses else launched


def _short_rows(kernels: "pd.DataFrame", _: str) -> Any:
    times = kernels[["total_ns", "instances"]].astype(float)
    return times["total_ns"] < _SHORT_KERNEL_NS * times["instances"]


SMALL_KERNELS = CauseDeclaration(
    name="small_kernels",
    title="small kernels",
    meaning="many short kernels, and the gaps between them",
    about="a range spends its time in many short kernels and the gaps between them. The saving assumes a "
    "CUDA graph, which leaves the kernels and 1 µs between two of them; in an optimizer it assumes a fused "
    "one",
    remedy="Launch less in {where}: torch.compile or CUDA graphs (torch.cuda.make_graphed_callables, "
    "mode='reduce-overhead'), or larger batches.",
    remedies={
        "cuda": "Launch {where} as one CUDA graph (cudaStreamBeginCapture, cudaGraphLaunch), or fuse its "
        "kernels.",
        "graph": "Put the kernels of {where} that are launched one by one into the CUDA graph that the "
        "program replays, or fuse them.",
        "jax": "Let XLA fuse more in {where}: jit all of it together, jax.lax.scan over layers of one "
        "shape, or larger batches.",
    },
    place_remedies=(
        PlaceRemedy(
            _OPTIMIZERS,
            "Use the fused optimizer, such as AdamW(fused=True), or foreach=True; torch.compile fuses "
            "others.",
        ),
    ),
    candidates=candidates,
    figures=(
        Figures("idle_causes", "idle_ns_per_step", idle("host", "launch")),
        Figures("kernels", "instances", _short_rows),
    ),
    traits=frozenset({Trait.ON_GPU}),
    spread=0.5,
    column="idle_ns",
)
