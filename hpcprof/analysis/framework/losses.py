"""Analyses that a loss of a profile affects.

An analysis declares the events that it reads (`hpcprof.analysis.framework.declaration.Events`). One that
declares none is affected by every loss of its profiles.
"""

from collections.abc import Iterable

from hpcprof.analysis.framework.declaration import OPERATIONS, Analysis, Events
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.losses import LAUNCH_KINDS, Loss, LossKind, Subject, short_sentences
from hpcprof.profiles.readers.declaration import ProfileContent

_WORDS = {
    "CUDA": OPERATIONS | {Subject.CALL},
    "CUPTI": OPERATIONS | {Subject.CALL},
    "GPU": OPERATIONS,
    "kernel": OPERATIONS,
    "activity": OPERATIONS,
    "buffer": OPERATIONS | {Subject.CALL, Subject.RANGE},
    "events": OPERATIONS | {Subject.CALL},
    "NVTX": frozenset({Subject.RANGE, Subject.COLLECTIVE}),
}
"""The subject of a sentence of the profiler, by the words in it."""


def losses_of(analysis: Analysis, losses: Iterable[tuple[int, Loss]]) -> tuple[str, ...]:
    """Return sentences about those of the losses, given with their ranks, that touch an analysis."""
    return tuple(short_sentences((rank, loss) for rank, loss in losses if touches(loss, analysis)))


def touches(loss: Loss, analysis: Analysis) -> bool:
    """Return whether the figures of an analysis can differ from those without this loss."""
    if any(touches(loss, ANALYSES[other]) for other in analysis.computed_from):
        return True
    if analysis.computed_from:
        return False
    if loss.kind in (LossKind.STEP, LossKind.BEFORE):
        return analysis.events is not None and analysis.events.steps
    return _concerns(loss, analysis.events) and bool(_subjects(loss) & _subjects_read(analysis))


def _concerns(loss: Loss, events: Events | None) -> bool:
    """Return whether an analysis that reads some rows also reads the part of them that is lost."""
    if events is None:
        return True
    if loss.kind in LAUNCH_KINDS:
        return events.launches
    return loss.kind is not LossKind.FIELD or events.read_field(loss.detail)


def _subjects(loss: Loss) -> frozenset[Subject]:
    if loss.kind in (LossKind.MERGED, LossKind.NUMBERED, LossKind.PAUSE):
        return frozenset(Subject)
    if loss.kind in (LossKind.DIAGNOSTIC, LossKind.NOTE):
        return _subjects_of_sentence(loss.detail)
    if loss.subject in (Subject.LAUNCH, Subject.OPERATION) or (
        loss.kind is LossKind.MISSING and loss.subject is not Subject.COPY
    ):
        return OPERATIONS
    if loss.subject is Subject.TABLE_ROW:
        return frozenset({Subject.OPERATOR, Subject.COLLECTIVE, Subject.RANGE})
    # The kernels of a graph that was traced as a whole are missing among the kernels too.
    return frozenset({loss.subject, Subject.KERNEL} if loss.kind is LossKind.GRAPH else {loss.subject})


def _subjects_of_sentence(sentence: str) -> frozenset[Subject]:
    """Return the subjects of a sentence of the profiler; general words count where it names no library."""
    words = [word for word in _WORDS if word in sentence]
    named = [word for word in words if word.isupper()]
    return frozenset().union(*(_WORDS[word] for word in named or words))


def _subjects_read(analysis: Analysis) -> frozenset[Subject]:
    if analysis.reads is ProfileContent.KERNEL_REPORT:
        return frozenset({Subject.METRIC})
    return (
        analysis.events.subjects if analysis.events else frozenset(Subject) - {Subject.METRIC, Subject.RECORD}
    )
