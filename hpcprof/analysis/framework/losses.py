"""Analyses that a loss of a profile affects.

This is the one place that says so; an analysis that is not listed is touched by every loss of its profiles.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.losses import Loss, LossKind, Subject, in_short
from hpcprof.profiles.readers.declaration import ProfileContent

_OPERATIONS = frozenset({Subject.KERNEL, Subject.MEMORY, Subject.COPY, Subject.SET, Subject.GRAPH})
_RANGES = frozenset({Subject.RANGE, Subject.EVENT})
_CALLS = frozenset({Subject.CALL, Subject.EVENT})
_KERNELS = frozenset({Subject.KERNEL, Subject.EVENT})
_IN_RANGES = _OPERATIONS | _RANGES | _CALLS
# Without a GPU, operators are the work.
_WORK = _IN_RANGES | {Subject.OPERATOR}

_READS: dict[str, frozenset[Subject]] = {
    "kernels": _KERNELS,
    "kernels_by_shape": _KERNELS,
    "memops": frozenset({Subject.MEMORY, Subject.COPY, Subject.SET, Subject.EVENT}),
    "launches": _KERNELS | _CALLS,
    "api": _CALLS,
    "ranges": _RANGES,
    "range_gpu": _IN_RANGES,
    "memory_usage": frozenset({Subject.ALLOCATION, Subject.EVENT}),
    "phases": _IN_RANGES,
    "phase_times": _IN_RANGES,
    "step_times": _IN_RANGES,
    "breakdown": _OPERATIONS | {Subject.EVENT},
    "device_breakdown": _OPERATIONS | {Subject.EVENT},
    "overlap": _OPERATIONS | {Subject.EVENT},
    "kernel_classes": _OPERATIONS | {Subject.EVENT},
    "idle": _OPERATIONS | _CALLS,
    "queue_length": _OPERATIONS | _CALLS,
    "hta_breakdown": _OPERATIONS | _RANGES | {Subject.MARK},
    "slowdown": _OPERATIONS | _RANGES,
    "slowdown_pairs": _IN_RANGES,
    "slowdown_by_overlap": _IN_RANGES,
    "rank_collectives": _WORK | {Subject.COLLECTIVE},
    "step_ranges": _RANGES,
    "step_parts": _WORK,
    "exposed_communication": _OPERATIONS | {Subject.EVENT, Subject.RANGE, Subject.OPERATOR},
    "idle_causes": _WORK,
    "critical_path": _WORK | {Subject.COLLECTIVE},
    **dict.fromkeys(
        ("operators", "operators_by_shape", "operator_kernels"),
        _OPERATIONS | _CALLS | {Subject.OPERATOR},
    ),
    "idle_threads": _WORK,
    "modules": _OPERATIONS | _CALLS | {Subject.OPERATOR, Subject.ARROW, Subject.MODULE},
}
"""Events that analyses read; those that are computed from others list these (``Analysis.computed_from``)."""

_LAUNCHED = frozenset(
    {"launches", "range_gpu", "phases", "step_times", "idle", "queue_length", "rank_collectives"}
    | {"phase_times", "step_parts", "idle_causes", "critical_path"}
    | {"operators", "operators_by_shape", "operator_kernels", "modules"}
)
"""The analyses that join operations with the calls that launched them."""

_SHAPED = frozenset({"kernels_by_shape", "slowdown", "slowdown_pairs", "slowdown_by_overlap"})

_FIELDS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("correlation", "correlationId", "globalPid", "globalTid"), _LAUNCHED),
    **dict.fromkeys(("bytes",), frozenset({"memops"})),
    **dict.fromkeys(("srcKind", "dstKind", "memKind"), frozenset[str]()),
    **dict.fromkeys(("grid", "gridX", "gridY", "gridZ", "block", "blockX", "blockY", "blockZ"), _SHAPED),
}
"""The analyses that read a field, where those are not all that read its rows."""

_STEPS = frozenset(
    {"phases", "phase_times", "step_times", "step_parts", "idle_causes", "idle_threads", "critical_path"}
)

_WORDS = {
    "CUDA": _OPERATIONS | {Subject.CALL},
    "CUPTI": _OPERATIONS | {Subject.CALL},
    "GPU": _OPERATIONS,
    "NVTX": frozenset({Subject.RANGE, Subject.COLLECTIVE}),
}
"""The subject of a sentence of the profiler, by the words in it."""


def losses_of(analysis: Analysis, losses: Iterable[tuple[int, Loss]]) -> tuple[str, ...]:
    """Return sentences about those of the losses, given with their ranks, that touch an analysis."""
    return tuple(in_short((rank, loss) for rank, loss in losses if touches(loss, analysis)))


def touches(loss: Loss, analysis: Analysis) -> bool:
    """Return whether the figures of an analysis can differ from those without this loss."""
    if any(touches(loss, ANALYSES[other]) for other in analysis.computed_from):
        return True
    if analysis.computed_from:
        return False
    if loss.kind is LossKind.STEP:
        return analysis.name in _STEPS
    return _concerns(loss, analysis) and bool(_subjects(loss) & _read(analysis))


def _concerns(loss: Loss, analysis: Analysis) -> bool:
    """Return whether an analysis reads what is missing of the rows, if it reads the rows."""
    if loss.kind is LossKind.LAUNCH:
        return analysis.name in _LAUNCHED or analysis.name not in _READS
    if loss.kind is LossKind.FIELD and loss.detail in _FIELDS and analysis.name in _READS:
        return analysis.name in _FIELDS[loss.detail]
    return True


def _subjects(loss: Loss) -> frozenset[Subject]:
    """Return what a loss is about."""
    if loss.kind in (LossKind.MERGED, LossKind.NUMBERED):
        return frozenset(Subject)
    if loss.kind is LossKind.DIAGNOSTIC:
        return frozenset().union(*(about for word, about in _WORDS.items() if word in loss.detail))
    # The kernels of a graph that was traced as a whole are missing among the kernels too.
    return frozenset({loss.subject, Subject.KERNEL} if loss.kind is LossKind.GRAPH else {loss.subject})


def _read(analysis: Analysis) -> frozenset[Subject]:
    if analysis.reads is ProfileContent.KERNEL_REPORT:
        return frozenset({Subject.METRIC})
    return _READS.get(analysis.name, frozenset(Subject) - {Subject.METRIC})
