"""Host synchronization: the host waits for the GPU inside the step, and the GPU runs dry after it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.places import NONE
from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, idle, named
from hpcprof.analysis.explain.causes.blocking_copy import (
    FROM_HOST,
    MIN_SMALL_COPIES,
    TO_HOST,
    consecutive_copies,
    removal,
    small_copies,
)
from hpcprof.profiles.columns.unique import ends_run
from hpcprof.profiles.timeline import Ints

_UPLOADS = (
    "The host waits in {where} for its own copies to the GPU, and so for all work before them. Create "
    "the values on the GPU, or copy them from pinned memory without waiting (PyTorch: device=..., or "
    "pin_memory() and non_blocking=True)."
)


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the calls of each place that wait for the GPU, with the copies that wait for other work."""
    is_upload = scene.removals.with_host & scene.named(lambda name: re.search(FROM_HOST, name))
    for place in scene.places:
        yield _waiting_calls(scene, place, scene.graph.work.call[is_upload])
        yield from _repeated_reads(scene, place)
        yield from consecutive_copies(scene, place, small_copies(scene, to_host=True), HOST_SYNC)


def _waiting_calls(scene: Scene, place: str, to_gpu: Ints) -> Candidate:
    removals, graph, held_calls = scene.removals, scene.graph, scene.held_calls
    # Where ranks wait for each other, a pause until the GPU has run dry may be a wait for them.
    waits = (CallKind.WAIT,) if graph.is_coupled else (CallKind.WAIT, CallKind.PAUSE)
    is_held = removals.inside(place)[graph.calls.place[held_calls]]
    waiting = np.union1d(removals.calls_in(place, waits), held_calls[is_held])
    held = np.intersect1d(waiting, graph.blocked)
    time = graph.calls.time[held]
    uploads = np.isin(held, to_gpu) | np.isin(graph.calls.before[held], to_gpu)
    launching = 2 * time[graph.calls.kind[held] == CallKind.LAUNCH].sum() > time.sum()
    cause = _BLOCKING_LAUNCHES if launching else HOST_SYNC
    advice = _UPLOADS if 2 * time[uploads].sum() > time.sum() else ""
    remove = partial(removals.waits, calls=waiting)
    return scene.candidate(cause, place, remove, graph.call_rank[held], time, advice=advice)


def _repeated_reads(scene: Scene, place: str) -> Iterator[Candidate]:
    """Yield the repeated reads of small values on the host in a place, except the last read of a step.

    A read is its copy and wait, the kernels whose results are used for nothing else, and the long pause of
    the host before its next launch.
    """
    removals, graph, work = scene.removals, scene.graph, scene.graph.work
    small = small_copies(scene, to_host=True)
    copies = np.flatnonzero(small & removals.inside(place)[work.place])
    last = ends_run(graph.work_rank[copies], work.step[copies])
    often = len(copies) >= MIN_SMALL_COPIES * graph.steps * len(scene.ranks)
    copies = copies[~last]
    calls = np.intersect1d(work.call[copies], graph.blocked)
    if not often or not len(calls):
        return
    feeding = work.before[copies]
    feeding = feeding[(feeding != NONE) & work.is_compute[feeding]]
    other_kernels = np.setdiff1d(np.flatnonzero(work.is_compute), work.before[small])
    feeding = feeding[~np.isin(work.name[feeding], work.name[other_kernels])]
    pauses = np.flatnonzero(np.isin(graph.calls.before, calls) & removals.long_gap)
    if not len(pauses) and not len(feeding):
        return
    removed_pause = np.where(np.isin(np.arange(len(graph.calls)), pauses), graph.calls.gap, 0)
    removed_work = np.concatenate((copies, feeding))

    count = round((len(copies) + int(last.sum())) / graph.steps / len(scene.ranks))
    rank = np.concatenate((graph.call_rank[calls], graph.call_rank[pauses]))
    time = np.concatenate((graph.calls.time[calls], removed_pause[pauses]))
    advice = (
        f"In {{where}}, a small value is copied to the host and waited for {count} times in each step. "
        "Check once in a step, or every few steps; let the GPU decide, or read the value of an earlier check."
    )
    remove = removal(scene, calls, removed_pause, removed_work)
    yield scene.candidate(HOST_SYNC, place, remove, rank, time, advice=advice)


HOST_SYNC = CauseDeclaration(
    name="host_sync",
    title="host synchronization",
    meaning="the host waits for the GPU inside the step, and the GPU runs dry",
    about="the host waits for the GPU inside a step (`.item()`, a synchronization, a copy back), and the "
    "GPU runs dry after it. If a step reads small values three times or more, all reads but the last count, "
    "with the kernels that only they need and the long pauses of the host after them. "
    "Launches that return only with their kernels (`CUDA_LAUNCH_BLOCKING=1`) wait too",
    remedy="Avoid .item(), .cpu() and synchronize() in {where}: keep values on the GPU, and read them once "
    "every few steps, or with non_blocking=True and an event.",
    remedies={
        "cuda": "Let the host run ahead in {where}: events instead of cudaDeviceSynchronize, "
        "cudaMemcpyAsync into pinned memory, and a value of an earlier step, or of every few steps, where "
        "the host decides.",
        "jax": "Avoid float(), .item(), np.asarray() and block_until_ready() in {where}: keep values on the "
        "device, and read those of an earlier step, once every few steps.",
    },
    candidates=candidates,
    figures=(
        Figures("idle_causes", "idle_ns_per_step", idle("sync", "copy")),
        Figures("memops", "count", lambda table, _: table["operation"].str.contains(TO_HOST)),
        Figures("api", "total_ns", named("Synchronize")),
    ),
    traits=frozenset({Trait.ON_GPU, Trait.SYNCHRONIZES}),
    spread=0.5,
    column="idle_ns",
    calls="Synchronize|Memcpy",
)

_BLOCKING_LAUNCHES = replace(
    HOST_SYNC,
    remedy="Let launches in {where} return at once: each waits for its kernel, as with "
    "CUDA_LAUNCH_BLOCKING=1 or another setting for debugging. Unset it, also where the program sets it.",
    remedies={},
    figures=(Figures("api", "total_ns", named("Launch")),),
)
