"""Time of the GPU that a step does not need: layers computed twice, kernels run to be timed, other programs.

- **Recomputation**: PyTorch launches the backward pass on a thread of its own. Layers whose activations are
  not kept (activation checkpointing) are computed again there: sequences of kernels of the forward pass, by
  their names and grids, run among those of the gradients, while the thread of the forward pass
  waits. Source: T. Chen et al., "Training deep nets with sublinear memory cost", 2016.
- **Tuning**: a tuner runs a kernel several times between two events, fills a buffer before each run, which
  empties the caches, and waits for the GPU. A program that times its own kernels fills none. Source: Triton,
  ``do_bench``.
- **A shared GPU** works for its processes in turns, by time slices of one length, also within a kernel. They
  lengthen some launches of a step. A step with more work, such as a longer batch, takes longer in all.
"""

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.places import NONE
from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait
from hpcprof.profiles.columns import unique
from hpcprof.profiles.timeline import Ints

_SEQUENCE, _MIN_DIFFERENT = 6, 4
"""Number of kernels of a sequence that shows recomputation, and how many of them have to be different."""

_MAX_AGAIN_SHARE = 0.5
"""Maximum share of a thread's kernels that are repeated: a thread that serves requests as another one does
has no gradients beside them."""

_MAX_MEANWHILE_SHARE = 0.1
"""Maximum share of these sequences during which the thread of the forward pass launches kernels: it waits for
the backward pass."""


def _recomputed(scene: Scene) -> Iterator[Candidate]:
    """Yield the kernels of forward passes that run again in backward passes, as one cause."""
    graph, work, calls = scene.graph, scene.graph.work, scene.graph.calls
    kernels = np.flatnonzero(work.is_compute & (work.call != NONE))
    if len(kernels) < _SEQUENCE:
        return
    kernels = kernels[np.lexsort((calls.start[work.call[kernels]], graph.work_rank[kernels]))]
    thread = calls.thread[work.call[kernels]]
    _, step = unique.numbered_rows(graph.work_rank[kernels], work.step[kernels])
    _, first = np.unique(step, return_index=True)
    is_forward = thread == thread[first][step]
    order = np.argsort(thread, kind="stable")
    forward_launches = np.cumsum(is_forward)[order]
    kernels, thread, is_forward = kernels[order], thread[order], is_forward[order]
    _, kind = unique.numbered_rows(work.name[kernels], work.grid[kernels])
    sequences, threads = (
        np.lib.stride_tricks.sliding_window_view(column, _SEQUENCE) for column in (kind, thread)
    )
    different = np.count_nonzero(np.diff(np.sort(sequences, axis=1), axis=1), axis=1) + 1
    rows = np.flatnonzero((threads[:, 0] == threads[:, -1]) & (different >= _MIN_DIFFERENT))
    _, number = unique.numbered_rows(*sequences[rows].T)
    forward = is_forward[rows]
    again = rows[~forward & np.isin(number, number[forward])]
    meanwhile = forward_launches[again + _SEQUENCE - 1] > forward_launches[again]
    if np.count_nonzero(meanwhile) > _MAX_MEANWHILE_SHARE * len(again):
        return
    is_again = np.zeros(len(kernels), bool)
    is_again[again[:, None] + np.arange(_SEQUENCE)] = True
    time = work.time[kernels]
    beside = ~is_forward & np.isin(thread, thread[is_again])
    if time[is_again].sum() <= _MAX_AGAIN_SHARE * time[beside].sum():
        yield from scene.of_operations(RECOMPUTATION, kernels[is_again])


_MIN_RUNS, _MAX_TIMED_KERNELS = 4, 2
"""Minimum number of runs of a step that are timed, and maximum number of kernels between two events: a kernel
and the one that fills a buffer before each run."""

_FILL, _MIN_FILL_NS = re.compile("FillFunctor"), 10_000
"""PyTorch's kernel that fills a tensor, and the minimum time in ns for one that is larger than the caches."""

_MIN_TUNING_STEPS = 3
"""Minimum number of steps that tune, half of them in the second half of the steps: tuning once is usual."""


def _tuned(scene: Scene) -> Iterator[Candidate]:
    """Yield the runs of kernels between events for which the host waits, if steps keep doing so."""
    graph, work = scene.graph, scene.graph.work
    calls = graph.calls
    order = np.lexsort((calls.start, graph.call_rank))
    kind, rank = calls.kind[order], graph.call_rank[order]
    timed = (kind[1:] == CallKind.WAIT) & (kind[:-1] == CallKind.RECORD) & (rank[1:] == rank[:-1])
    ranks = np.unique(rank[1:][timed]).tolist()
    if not ranks:
        return
    rows = np.concatenate([_timed_runs(scene, each) for each in ranks])
    steps = np.unique(work.step[rows])
    late = np.count_nonzero(2 * (steps - work.step.min()) >= graph.steps)
    if len(steps) >= _MIN_TUNING_STEPS and 2 * late >= _MIN_TUNING_STEPS:
        yield from scene.of_operations(KERNEL_TUNING, rows)


def _timed_runs(scene: Scene, rank: int) -> Ints:
    """Return the kernels that a rank runs to time them, with their like before the last of these in a step.

    The host records an event, launches one kernel again and again, each after one that fills a buffer,
    records another event and waits for all work.
    """
    graph, work, calls = scene.graph, scene.graph.work, scene.graph.calls
    own_calls = np.flatnonzero((graph.call_rank == rank) & (calls.kind != CallKind.PAUSE))
    own_calls = own_calls[np.argsort(calls.start[own_calls], kind="stable")]
    waits = np.flatnonzero(calls.kind[own_calls] == CallKind.WAIT)
    kernels = np.flatnonzero(work.is_compute & (graph.work_rank == rank) & (work.call != NONE))
    kernels = kernels[np.argsort(calls.start[work.call[kernels]], kind="stable")]
    launched = calls.start[work.call[kernels]]
    timed: list[Ints] = []
    before = 0
    for wait in waits.tolist():
        events = before + np.flatnonzero(calls.kind[own_calls[before:wait]] == CallKind.RECORD)
        before = wait + 1
        if len(events) < 2 or events[-1] != wait - 1:
            continue
        begin, end = calls.start[own_calls[events[[0, -1]]]]
        timed.append(kernels[np.searchsorted(launched, begin) : np.searchsorted(launched, end)])
    return _repeated_runs(scene, kernels, [group for group in timed if len(group)])


def _repeated_runs(scene: Scene, kernels: Ints, timed: list[Ints]) -> Ints:
    """Return the kernels of steps up to the last of ``timed`` that have the names of these."""
    work, repeated = scene.graph.work, [np.empty(0, np.int64)]
    fills = scene.named(_FILL.search) & (work.time >= _MIN_FILL_NS)
    by_step: dict[int, list[Ints]] = {}
    for group in timed:
        if len(np.unique(work.name[group])) <= _MAX_TIMED_KERNELS:
            by_step.setdefault(int(work.step[group[0]]), []).append(group)
    for step, groups in by_step.items():
        rows = np.concatenate(groups)
        if fills[rows].sum() >= _MIN_RUNS and len(np.unique(work.name[rows])) <= _MAX_TIMED_KERNELS:
            earlier = kernels[(work.step[kernels] == step) & (work.call[kernels] <= work.call[rows].max())]
            repeated.append(earlier[np.isin(work.name[earlier], work.name[rows])])
    return np.concatenate(repeated)


_MIN_STRETCHED, _MIN_STRETCHED_KERNELS = 8, 3
"""Minimum number of launches that take longer, and of kernels with such launches."""

_MIN_SLICE_NS, _MIN_STRETCH = 200_000, 1.5
"""Minimum time that such a launch takes longer, in ns, and its ratio to the kernel's usual time."""

_MAX_SLICE_SPREAD = 0.25
"""Maximum spread of these times, the interquartile range over the median: slices are of one length."""

_MAX_STRETCHED_SHARE = 0.75
"""Maximum share of such launches, in a step that has any, among those that take longer in some step."""


def _stretched_launches(scene: Scene) -> Iterator[Candidate]:
    """Yield the time by which launches take one time slice or more longer than their like in other steps.

    The like of a launch is the one at the same place among the launches of its kernel in another step: equal
    kernels may compute products of other inner sizes.
    """
    graph, work = scene.graph, scene.graph.work
    compute = np.flatnonzero(work.is_compute)
    _, kind = unique.numbered_rows(graph.work_rank[compute], work.name[compute], work.grid[compute])
    compute = compute[np.lexsort((work.start[compute], work.step[compute], kind))]
    kind, time = np.sort(kind), work.time[compute].astype(float)
    _, in_step = unique.numbered_rows(kind, work.step[compute])
    place = np.arange(len(compute)) - np.flatnonzero(np.diff(in_step, prepend=-1))[in_step]
    _, like = unique.numbered_rows(kind, place)
    order = np.lexsort((time, like))
    begins = np.flatnonzero(np.diff(like[order], prepend=-1))
    usual = time[order][begins + np.diff(begins, append=len(order)) // 4][like]
    longer = time - usual
    stretched = (longer >= _MIN_SLICE_NS) & (time >= _MIN_STRETCH * usual)
    if stretched.sum() < _MIN_STRETCHED or len(np.unique(kind[stretched])) < _MIN_STRETCHED_KERNELS:
        return
    low, middle, high = np.quantile(longer[stretched], [0.25, 0.5, 0.75])
    _, rank_step = unique.numbered_rows(graph.work_rank[compute], work.step[compute])
    count, sometimes = (np.bincount(rank_step, rows) for rows in (stretched, np.isin(like, like[stretched])))
    share = np.median(count[rank_step[stretched]] / sometimes[rank_step[stretched]])
    if high - low <= _MAX_SLICE_SPREAD * middle and share <= _MAX_STRETCHED_SHARE:
        yield from scene.of_operations(SHARED_GPU, compute[stretched], longer[stretched])


_declare = partial(
    CauseDeclaration,
    traits=frozenset({Trait.ON_GPU, Trait.ALL_RANKS}),
    column="compute_ns",
    operations="compute",
    spread=0.3,
)

RECOMPUTATION = _declare(
    name="recomputation",
    title="layers that are computed again",
    meaning="the backward pass computes layers again, as their activations were not kept",
    about="PyTorch's backward pass runs six kernels in a row, or more, that the forward pass has run, on the "
    "same grids: layers whose activations were not kept (activation checkpointing). The saving is their time",
    remedy="Keep the activations of {where} where memory allows: checkpoint fewer layers, or only the parts "
    "that are cheap to compute (torch.utils.checkpoint.create_selective_checkpoint_contexts).",
    remedies={
        "jax": "Keep the activations of {where} where memory allows: jax.checkpoint on fewer layers, or "
        "with a policy such as jax.checkpoint_policies.dots_saveable."
    },
    candidates=_recomputed,
    figures=(Figures("kernels", "total_ns"),),
    without="with kept activations",
)

KERNEL_TUNING = _declare(
    name="kernel_tuning",
    title="tuning of kernels",
    meaning="kernels are run again and again in steady steps to find the fastest one",
    about="a kernel runs several times between two events, with a buffer filled before each run, and the "
    "host waits for it, in at least three steps, also in the second half of the capture, as Triton tunes",
    remedy="Tune once for {where}: a key of triton.autotune that does not change in each step, such as a "
    "size rounded up to a power of two, or fixed settings.",
    candidates=_tuned,
    figures=(Figures("kernels", "total_ns"),),
)

SHARED_GPU = _declare(
    name="shared_gpu",
    title="another program on the GPU",
    meaning="another program uses the GPU in turns: launches of equal kernels take a time slice longer",
    about="launches of several kernels take longer than in a quarter of the steps by about the same time, "
    "0.2 ms or more, whatever the kernel takes, beside others that do not: the GPU works for another process "
    "meanwhile, in time slices",
    remedy="Ask for a GPU of your own, and look for what else runs there (nvidia-smi, hpcprof doctor); ranks "
    "that share a GPU on purpose run beside each other with MPS (--option mps=true).",
    candidates=_stretched_launches,
    figures=(Figures("kernels", "total_ns"),),
    without="without another program on the GPU",
)
