"""Repeated compilation: kernels are compiled and loaded again and again in steady steps."""

import re
from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.places import NONE
from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, named
from hpcprof.profiles.columns import unique
from hpcprof.profiles.timeline import Ints, Mask

_LOADS = r"(?:Module|Library)Load|LinkComplete|rtcCompileProgram"
"""Calls of the drivers that load or link new kernels."""

_MIN_LOADING_STEPS = 3
"""Minimum number of steps that load kernels, half of them in the second half of the steps.

Drivers load what a program has once, at its first use."""

_ATTENTION_OF_CUDNN = re.compile(r"cudnn_generated\w*_sdpa_|cudnn::fusion::")
"""Kernels of fused attention for which cuDNN builds a plan; source: kernel names of cuDNN 9 under PyTorch."""

_MIN_ATTENTION_SHARE = 0.5
"""Minimum share of the loading time before such kernels for advice about them."""


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the pauses in which the host loads new kernels, if steps keep doing so."""
    graph, removals = scene.graph, scene.removals
    calls = np.concatenate([_calls_while_loading(scene, rank) for rank in scene.ranks])
    gaps, inside = calls[removals.long_gap[calls]], calls[removals.long_call[calls]]
    both = np.concatenate((gaps, inside))
    steps = np.unique(graph.calls.step[both]) - graph.first_step
    if len(steps) < _MIN_LOADING_STEPS or 2 * np.count_nonzero(2 * steps >= graph.steps) < _MIN_LOADING_STEPS:
        return
    less = np.where(np.isin(np.arange(len(graph.calls)), gaps), graph.calls.gap, 0)

    def remove(times: Times) -> Times:
        return removals.call_time(removals.less_before(times, less), inside)

    time = np.concatenate((less[gaps], removals.call_times[inside]))
    advice = _PLANS if time[_before_attention(scene, both)].sum() >= _MIN_ATTENTION_SHARE * time.sum() else ""
    where = scene.mostly(graph.calls.place[both], time)
    yield scene.candidate(RECOMPILATION, where, remove, graph.call_rank[both], time, advice=advice)


def _before_attention(scene: Scene, calls: Ints) -> Mask:
    """Return a mask of the calls whose next kernel on the rank is attention of cuDNN, shape (calls,)."""
    graph, work = scene.graph, scene.graph.work
    attention = scene.named(_ATTENTION_OF_CUDNN.search)
    order = np.flatnonzero(work.is_compute)
    if not len(order):
        return np.zeros(len(calls), bool)
    order = order[np.argsort(work.call[order], kind="stable")]
    following = order[np.searchsorted(work.call[order], calls).clip(max=len(order) - 1)]
    mask: Mask = attention[following] & (graph.work_rank[following] == graph.call_rank[calls])
    return mask


def _calls_while_loading(scene: Scene, rank: int) -> Ints:
    """Return the calls of a rank from the first load of kernels in each step to the last one."""
    graph, timeline = scene.graph, scene.timelines[scene.graph.ranks[rank]]
    calls, api = graph.calls, timeline.calls
    loads = np.flatnonzero(unique.name_matches(timeline, api.name, re.compile(_LOADS).search))
    own_calls = np.flatnonzero(
        (graph.call_rank == rank) & (calls.kind != CallKind.PAUSE) & (calls.row < len(api))
    )
    own_calls = own_calls[calls.before[own_calls] != NONE]
    if not len(loads) or not len(own_calls):
        return np.empty(0, np.int64)
    end = api.end[calls.row[own_calls]]
    order = np.argsort(end, kind="stable")
    # The first call that ends after a load is the one that has it, or that follows it.
    at = np.searchsorted(end[order], api.start[loads])
    following = own_calls[order[at[at < len(order)]]]
    # From the first load of a step to its last one, a compiler prepares the next kernels.
    steps, number = unique.numbered(calls.step[following])
    first, last = (np.full(len(steps), edge) for edge in (calls.start.max(), calls.start.min()))
    np.minimum.at(first, number, calls.start[following])
    np.maximum.at(last, number, calls.start[following])
    place = np.searchsorted(steps, calls.step[own_calls]).clip(max=len(steps) - 1)
    inside = (steps[place] == calls.step[own_calls]) & (calls.start[own_calls] >= first[place])
    compiling: Ints = own_calls[inside & (calls.start[own_calls] <= last[place])]
    return compiling


_PLANS = (
    "cuDNN builds a plan of its attention for each new shape in {where}: choose another backend "
    "(torch.backends.cuda.enable_cudnn_sdp(False)), or pad inputs to few lengths."
)

RECOMPILATION = CauseDeclaration(
    name="recompilation",
    title="repeated compilation",
    meaning="kernels are compiled and loaded anew in steady steps",
    about="the host compiles, and loads new kernels, in at least three steps, also in the "
    "second half of the capture: shapes or values that a compiler takes for constants change. So does cuDNN "
    "where it builds a plan for each shape",
    remedy="Find what changes in {where}: TORCH_LOGS=recompiles names the guard that fails. Pad inputs to "
    "few shapes, mark them dynamic (torch.compile(dynamic=True)), and pass changing numbers as tensors; "
    "leave torch.backends.cudnn.benchmark off where sizes vary.",
    remedies={
        "jax": "Find what changes in {where}: jax.config.update('jax_log_compiles', True) names it. Pad "
        "inputs to few shapes, and pass changing numbers as arrays, not as static arguments."
    },
    candidates=candidates,
    figures=(Figures("api", "total_ns", named(_LOADS)), Figures("step_account", "idle_ns")),
    traits=frozenset({Trait.ON_GPU, Trait.TELLING}),
    spread=0.5,
    column="idle_ns",
)
