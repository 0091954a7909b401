"""Host work: the step waits while a thread does something else for long, between two calls or in one."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.places import NONE, OUTSIDE
from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, PlaceRemedy, Trait, idle
from hpcprof.analysis.explain.causes.blocking_copy import copies_in
from hpcprof.analysis.explain.causes.late_rank import INPUT, LATE_RANK_HOST

_MIN_COPY_SHARE = 0.75
"""Minimum share of copies in the time of pauses and copies for copies to be the cause."""

_FIRST_LAUNCH = (
    "In {where}, the call of a launch itself takes long, as the first one of a kernel does to load its code: "
    "run such steps once before those that count."
)


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the long pauses and calls of each place, also joined with the copies of the place."""
    for place in scene.places:
        pauses, copies = pauses_in(scene, place), copies_in(scene, place)
        causes = [pauses]
        if min(pauses.own_ns, copies.own_ns) >= scene.least:
            causes.append(_pauses_and_copies(scene, pauses, copies))
        for cause in causes:
            yield scene.on_its_ranks(cause) if cause.has(Trait.LATE_RANK) else cause


def pauses_in(scene: Scene, place: str) -> Candidate:
    """Return the long pauses and calls of the host in a place; a rank that alone has them is late."""
    removals, pieces, calls = scene.removals, scene.graph.pieces, scene.graph.calls
    inside = removals.inside(place)
    chosen = np.flatnonzero(inside[pieces.place] & removals.long_gap[pieces.call])
    long = np.flatnonzero(inside[calls.place] & removals.long_call)
    call = np.concatenate((pieces.call[chosen], long))
    time = np.concatenate((pieces.length[chosen], removals.call_times[long]))
    remove = partial(removals.pauses, place=place)
    loading = removals.call_times[long[calls.kind[long] == CallKind.LAUNCH]].sum()
    advice = _FIRST_LAUNCH if loading > time.sum() / 2 else ""
    pauses = scene.candidate(HOST_WORK, place, remove, scene.graph.call_rank[call], time, advice=advice)
    late = pauses.only != NONE and scene.graph.is_coupled
    return replace(pauses, cause=LATE_RANK_HOST, ranks=(pauses.only,)) if late else pauses


def _pauses_and_copies(scene: Scene, pauses: Candidate, copies: Candidate) -> Candidate:
    """Return pauses and copies as one cause, such as a range that copies from the GPU and writes a file.

    Copies name the cause only if they take most of the time, because their remedy leaves the pauses.
    """
    only = pauses.only if pauses.only == copies.only else NONE
    larger = copies if copies.own_ns > _MIN_COPY_SHARE * (copies.own_ns + pauses.own_ns) else pauses
    return replace(
        larger,
        cause=HOST_WORK if larger is pauses and only == NONE else larger.cause,
        ranks=pauses.ranks if only != NONE else scene.ranks,
        remove=lambda times: copies.remove(pauses.remove(times)),
        own_ns=pauses.own_ns + copies.own_ns,
        only=only,
    )


HOST_WORK = CauseDeclaration(
    name="host_work",
    title="host work",
    meaning="the step waits for work of the host",
    about="the GPU starves because host code in a range takes long: data loading, Python, garbage "
    "collection, logging",
    remedy="Move the work of {where} off the step's path: prepare it in workers or a thread ahead of the "
    "step, or do it less often.",
    remedies={
        "cuda": "Do the work of {where} in a thread, while the GPU works on what was launched before, or "
        "less often."
    },
    place_remedies=(
        PlaceRemedy(
            INPUT,
            "Load ahead of the step: DataLoader(num_workers=…, prefetch_factor=…, persistent_workers=True), "
            "and do less per sample on the host.",
        ),
        PlaceRemedy(
            INPUT,
            "Load ahead of the step: workers of the loader (mp_prefetch of grain, prefetch of tf.data) or a "
            "thread, and jax.device_put of the next batch while this step runs; do less per sample on the "
            "host.",
            jax=True,
        ),
        PlaceRemedy(
            ("optimizer.step",),
            "Update all parameters in few calls: fused=True of torch.optim's optimizers (on a GPU also "
            "foreach=True), or fewer steps with larger batches.",
        ),
        PlaceRemedy(
            ("garbage collection",),
            "Leave out calls of gc.collect() in steps. Else call gc.freeze() once the model is made, so that "
            "its objects are not looked at, or gc.disable(), and collect every some hundred steps on all "
            "ranks at once.",
        ),
        PlaceRemedy(
            ("profilerstep#",),
            "Mark the parts of the step (torch.profiler.record_function), or record with --stacks, to see "
            "which one takes the time; then prepare it ahead of the step, or do it less often.",
            without_stacks=True,
        ),
        PlaceRemedy(
            (OUTSIDE,),
            "Mark the parts of the step (jax.profiler.TraceAnnotation) to see which one takes the time; then "
            "prepare it ahead of the step, or do it less often.",
            jax=True,
        ),
        PlaceRemedy(
            (OUTSIDE,),
            "Mark the parts of the step (ranges of NVTX or ROCTx, or torch.profiler.record_function for "
            "PyTorch's profiler), or record with --stacks, to see which one takes the time; then prepare it "
            "ahead of the step, or do it less often.",
            without_stacks=True,
        ),
    ),
    candidates=candidates,
    figures=(Figures("idle_causes", "idle_ns_per_step", idle("host")), Figures("step_account", "idle_ns")),
    traits=frozenset({Trait.ON_GPU, Trait.HIDES, Trait.MAY_BE_WAITING}),
    column="idle_ns",
)
