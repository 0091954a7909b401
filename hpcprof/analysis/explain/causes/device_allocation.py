"""Device allocation: memory of GPUs, or pinned memory, is allocated or freed inside steps."""

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.account.call_kinds import ALLOCATING, STREAM_ORDERED, CallKind
from hpcprof.analysis.account.places import WHOLE_STEP
from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, idle, named
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.explain.removals import CALL_NS

_ONE_STEP = (
    "A single step does not tell steady allocations from the set-up of the program, whose first calls "
    "also load its libraries: profile later steps. If these allocate too, allocate the memory of {where} "
    "once, and keep it."
)
_PINNED = (
    "Allocate the pinned memory of {where} once, before the loop, and reuse it: each of its pages is locked "
    "and unlocked. A pool of buffers serves sizes that vary."
)


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the calls that allocate and free memory in each place, and in the whole step."""
    yield from (_allocations(scene, place) for place in (*scene.places, WHOLE_STEP))


def _allocations(scene: Scene, place: str) -> Candidate:
    graph, calls, removals = scene.graph, scene.graph.calls, scene.removals
    chosen = removals.calls_in(place, ALLOCATING)
    time = calls.time[chosen]
    # A pool that maps its memory in each step gives it back while the host waits for the GPU.
    waits = chosen[:0]
    if graph.is_named(calls.name[chosen], STREAM_ORDERED.search).any():
        waits = removals.calls_in(WHOLE_STEP, (CallKind.WAIT,))
    returns = np.flatnonzero((graph.edges.kind == EdgeKind.WAIT) & np.isin(graph.edges.row, waits))
    where = place
    if place == WHOLE_STEP and len(chosen):
        # Memory freed in one place has to be allocated again elsewhere: the former is the cause.
        freed = np.where(calls.kind[chosen] == CallKind.FREE, time, 0)
        where = scene.mostly(calls.place[chosen], freed if freed.any() else time)

    pinned = 2 * time[graph.is_named(calls.name[chosen], lambda name: "Host" in name)].sum() > time.sum()
    advice = _ONE_STEP if graph.steps == 1 else _PINNED if pinned else ""

    def remove(times: Times) -> Times:
        free = removals.call_time(removals.calls_at_once(times, chosen), waits)
        return free.set_lag(returns, np.minimum(free.lag[returns], CALL_NS))

    time = np.concatenate((time, removals.call_times[waits], graph.edges.lag[returns]))
    rank = graph.call_rank[np.concatenate((chosen, waits, graph.edges.row[returns]))]
    return scene.candidate(DEVICE_ALLOCATION, where, remove, rank, time, advice=advice)


DEVICE_ALLOCATION = CauseDeclaration(
    name="device_allocation",
    title="memory allocation",
    meaning="memory of the GPU, or pinned memory, is allocated or freed inside steps",
    about="`cudaMalloc` or `cudaFree` in steady steps, or their counterparts for pinned memory "
    "(`cudaHostAlloc`), or `cudaMallocAsync` where its pool maps memory in each step",
    remedy="Let the caching allocator keep its memory: no torch.cuda.empty_cache() in {where}, tensors of "
    "steady sizes, and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if it fragments.",
    remedies={
        "cuda": "Allocate the memory of {where} once, before the loop, and keep it; or use cudaMallocAsync "
        "with a pool that keeps its memory (cudaMemPoolAttrReleaseThreshold), or the pool allocator of "
        "the framework.",
        "jax": "Let XLA keep its memory: leave XLA_PYTHON_CLIENT_PREALLOCATE on, donate the buffers that "
        "{where} replaces (donate_argnums), and keep shapes steady.",
    },
    candidates=candidates,
    figures=(
        Figures("idle_causes", "idle_ns_per_step", idle("allocation")),
        Figures("api", "total_ns", named("Malloc|Alloc|Free|MemCreate|MemMap")),
    ),
    traits=frozenset({Trait.ON_GPU, Trait.HIDES}),
    spread=0.5,
    column="idle_ns",
    calls="Malloc|Alloc|Free|MemCreate|MemMap|MemUnmap|HostRegister",
)
