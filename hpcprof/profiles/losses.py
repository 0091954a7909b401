"""Losses of a profile: the rows, fields and events that are left out, counted by kind.

Readers count them, a collect stores and prints them, and reports show them beside each analysis that they
touch (`hpcprof.analysis.framework.losses.touches`).
"""

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import SupportsInt

from hpcprof.common.grouping import grouped
from hpcprof.common.units import counted, named_ranks


class LossKind(str, Enum):
    """The kinds of losses, a fixed vocabulary."""

    ROW = "row"
    """Rows are left out, because the field ``detail`` is missing or impossible."""
    REPEATED = "repeated"
    """Rows are left out that are the same as another one."""
    FIELD = "field"
    """Rows are kept without the field ``detail``, which is unreadable."""
    EARLY = "early"
    """Operations that start before their launch call are left out."""
    OVERRUN = "overrun"
    """Operations that run over a successor on their own stream, or the end of the capture, are left out."""
    CLOCK = "clock"
    """The clock of a GPU was off by ``detail``, and its times are shifted."""
    LAUNCH = "launch"
    """The call that launched an operation is not in the profile, where others are."""
    QUEUED = "queued"
    """Operations were launched before the capture, and waited for the GPU when it began."""
    UNTRACED = "untraced"
    """No launch call is in the profile."""
    UNLINKED = "unlinked"
    """Launch calls are in the profile, but nothing links them to the operations that they launched."""
    FAILED = "failed"
    """Calls of the program returned the error ``detail``, and did no work."""
    MISSING = "missing"
    """Calls launched operations that are not in the profile."""
    GRAPH = "graph"
    """CUDA graphs were traced as a whole, without their kernels."""
    OPEN = "open"
    """Ranges never ended, though others of their name began on their thread after them."""
    STEP = "step"
    """The capture began or ended (``detail``) inside a step."""
    BEFORE = "before"
    """For ``detail``, the GPU did work that was launched before the capture."""
    CATEGORY = "category"
    """Events of the category ``detail`` are left out, because hpcprof does not read it."""
    TABLE = "table"
    """The tables ``detail`` of an export hold events that hpcprof does not read."""
    PROCESS = "process"
    """Rows of processes without a rank are left out of a profile that holds several ranks."""
    NUMBERED = "numbered"
    """The ranks in a profile are numbered by process, because it does not tell them."""
    MERGED = "merged"
    """Several processes that used the GPU count as one rank."""
    LOCATION = "location"
    """The events of the thread or stream ``detail`` cannot be read."""
    PAUSE = "pause"
    """The program turned the recording off for a while."""
    DIAGNOSTIC = "diagnostic"
    """The profiler itself warns of lost events by the sentence ``detail``."""
    NOTE = "note"
    """The profiler itself reports the sentence ``detail``, which is known to mean no loss."""


LAUNCH_KINDS = frozenset({LossKind.LAUNCH, LossKind.QUEUED, LossKind.UNLINKED, LossKind.UNTRACED})
"""The kinds of operations whose launch calls are not known."""


class Subject(str, Enum):
    """The subject of a loss; the values are for messages, in the singular."""

    OPERATION = "GPU operation"
    KERNEL = "kernel"
    MEMORY = "memory operation"
    COPY = "memory copy"
    SET = "memory set"
    GRAPH = "CUDA graph"
    CALL = "API call"
    LAUNCH = "launch call"
    RANGE = "range"
    PROGRAM = "execution of XLA's programs"
    COLLECTIVE = "collective"
    OPERATOR = "operator"
    MARK = "GPU annotation"
    ALLOCATION = "allocation"
    ARROW = "arrow between operators"
    MODULE = "module"
    FUNCTION = "function"
    SYNCHRONIZATION = "synchronization"
    COUNTER = "counter of a kernel"
    MPI_CALL = "MPI call"
    MPI_OPERATION = "MPI operation"
    """A message or collective of MPI."""
    OS_CALL = "call of the OS runtime"
    SAMPLE = "sample of a GPU or NIC"
    EVENT = "event"
    """Events of an unknown kind."""
    VISIT = "begin or end of a region"
    TABLE_ROW = "row of the table"
    """An operation in a table of operations."""
    METRIC = "row of metrics"
    """A row of a table of Nsight Compute."""
    RECORD = "record"
    """A record of OTF2 that takes part in no figure, such as a sample or the value of a metric."""
    CAPTURE = "capture"
    """The capture as a whole."""


@dataclass(frozen=True)
class Loss:
    """Losses of one kind in one profile."""

    kind: LossKind
    subject: Subject
    """The subject that was lost, or that lacks the field."""
    count: int = 1
    """The number of them, at least 1."""
    of: int | None = None
    """The number that there is in all; None if that is unknown."""
    detail: str = ""
    """The field, or the sentence of the profiler, as `LossKind` says."""

    @property
    def sentence(self) -> str:
        """The loss as a sentence without its full stop."""
        first = _LOSS_SENTENCE.search(self.detail) or _FIRST_SENTENCE.match(self.detail)
        return _SENTENCES[self.kind].format(
            **(_SINGULAR_VERBS if self.count == 1 else _PLURAL_VERBS),
            amount=_amount(self),
            count=self.count,
            times=counted(self.count, "time"),
            detail=self.detail,
            first=textwrap.shorten(first[0] if first else self.detail, _MAX_SENTENCE_CHARACTERS),
        )

    @property
    def remedy(self) -> str:
        """The way to record the lost events; empty if unknown."""
        if self.kind is LossKind.DIAGNOSTIC and _UNSUPPORTED_WORDS.search(self.detail):
            return _SUPPORT_REMEDY
        if self.kind is LossKind.DIAGNOSTIC and _UNFLUSHED_WORDS.search(self.detail):
            return _END_WITHIN_CAPTURE
        if self.kind is LossKind.DIAGNOSTIC and not _LOST_WORDS.search(self.detail):
            return ""
        if self.detail == COUNTERS:
            return "Record the kernels without profiler_metrics in torch.profiler's experimental_config."
        if self.subject is Subject.MPI_OPERATION:
            return RECORD_MORE_MPI if self.detail.startswith("synchronization") else _OTHER_PROFILER
        if self.subject is Subject.TABLE_ROW and self.detail.startswith("kind"):
            return _KINDS_OF_OPERATIONS
        if self.kind is LossKind.ROW and self.detail not in ("start", "end", "duration", "ts", "dur"):
            return _COPY_AGAIN if self.detail in _DAMAGED_FIELDS else ""
        if self.kind is LossKind.MISSING and self.subject is Subject.GRAPH:
            return _REMEDIES[LossKind.GRAPH]
        if self.kind is LossKind.MISSING and self.subject in _MISSING_REMEDIES:
            return _MISSING_REMEDIES[self.subject]
        if self.count == self.of and self.kind in _REMEDIES_OF_ALL:
            return _REMEDIES_OF_ALL[self.kind]
        return _REMEDIES.get(self.kind, "")


def for_profiler(advice: str, profiler: str) -> str:
    """Return advice with only the parts for a profiler, such as ``[nsys: (nsys --trace=cuda)]``.

    ``profiler`` is the name of the reader; names in a part are the beginnings of those of readers.
    """

    def part(choice: re.Match[str]) -> str:
        return choice["text"] if profiler.startswith(tuple(choice["profilers"].split("|"))) else ""

    return _CHOICE.sub(part, advice).strip()


def losses(
    kind: LossKind, subject: Subject, counts: Mapping[str, SupportsInt], of: int | None = None
) -> list[Loss]:
    """Return a loss for each detail whose count is not 0."""
    return [Loss(kind, subject, int(count), of, detail) for detail, count in counts.items() if int(count)]


def over_ranks(losses_of_ranks: Iterable[tuple[int, Loss]]) -> list[str]:
    """Return one sentence for each kind, subject and detail, which counts them over the ranks.

    ``losses_of_ranks`` are the losses, each with its rank.
    """
    return [f"{named_ranks(ranks)}: {loss.sentence}" for ranks, loss in sum_losses(losses_of_ranks)]


def short_sentences(losses_of_ranks: Iterable[tuple[int, Loss]]) -> list[str]:
    """Do as `over_ranks`, with one sentence for all losses of the same ranks."""
    sentences_by_ranks = grouped((ranks, loss.sentence) for ranks, loss in sum_losses(losses_of_ranks))
    return [
        f"{named_ranks(ranks)}: {'; '.join(sentences)}" for ranks, sentences in sentences_by_ranks.items()
    ]


def sum_losses(losses_of_ranks: Iterable[tuple[int, Loss]]) -> list[tuple[tuple[int, ...], Loss]]:
    """Return the sum of the losses of each kind, subject and detail over the ranks, with these ranks."""
    groups = grouped(((loss.kind, loss.subject, loss.detail), (rank, loss)) for rank, loss in losses_of_ranks)
    return [
        (tuple(sorted({rank for rank, _ in each})), _sum([loss for _, loss in each]))
        for each in groups.values()
    ]


def _sum(group: list[Loss]) -> Loss:
    totals = [loss.of for loss in group if loss.of is not None]
    total = sum(totals) if len(totals) == len(group) else None
    return replace(group[0], count=sum(loss.count for loss in group), of=total)


def _amount(loss: Loss) -> str:
    """Return ``1 kernel``, ``57 kernels`` or ``57 of 172 kernels``."""
    if loss.of is None:
        return _count_text(loss.count, loss.subject)
    return f"{loss.count:,} of {_count_text(loss.of, loss.subject)}"


def _count_text(number: int, subject: Subject) -> str:
    plural = _PLURALS.get(subject)
    return f"{number:,} {plural}" if plural and number != 1 else counted(number, subject.value)


_CHOICE = re.compile(r"\[(?P<profilers>(?:(?:nsys|torch|roc|unitrace|ascend|xplane)\|?)+):(?P<text>[^]]*)\]")
_UNSUPPORTED_WORDS = re.compile(
    r"unable|(?:not |un)supported|could not|cannot|permission|privilege"
    r"|not (?:have )?(?:been )?started|initiali[sz]ation failed|failed to (?:start|initiali[sz]e|enable)",
    re.IGNORECASE,
)
_LOST_WORDS = re.compile(
    r"missing|lost|drop|discard|overflow|buffer|incomplete|not all|ran out|exceed|trunc|too (?:many|large)",
    re.IGNORECASE,
)
_SUPPORT_REMEDY = "Check that this profiler supports the device and the driver, and may read its counters."
_RECORD_GPU_WORK = (
    f"{_SUPPORT_REMEDY} [nsys|torch:It records the work of the GPU with the calls, if it supports both.]"
    "[roc:rocprofv3 records the work of the GPU with --kernel-trace.]"
)
_UNFLUSHED_WORDS = re.compile(r"Not all [\w ]+ events might have been collected|No \w+ events collected")
"""The sentences of nsys about processes of which it got no events, or not the last ones."""
RECORD_MORE_MPI = (
    "Record MPI with Score-P, which traces more of its functions (hpcprof run --profiler scorep)."
)
_OTHER_PROFILER = "Record MPI with a newer Score-P or Nsight Systems: the records of this profiler lack it."
COUNTERS = "cuda_profiler_range (counters that PyTorch's profiler writes in place of kernels)"
"""The detail of `LossKind.CATEGORY` where kernels were counted, and not recorded."""
_END_WITHIN_CAPTURE = (
    "Let the program end by itself within the capture[nsys:, or call cudaProfilerStop() before the capture "
    "ends]: a process hands over its last events then."
)
NO_GPU_USED = (
    "the program used no GPU, or its work was not traced"
    "[roc: (rocprofv3 --kernel-trace)][nsys: (nsys --trace=cuda)][torch: (ProfilerActivity.CUDA)]"
)
"""Reason for a profile without a GPU, with the options of profilers that record it, for `for_profiler`."""
_MISSING_REMEDIES = {
    Subject.COPY: "Trace memory copies too[roc: (rocprofv3 --memory-copy-trace)][nsys: (nsys --trace=cuda)].",
    Subject.PROGRAM: "Record fewer steps, or with a newer version: JAX's profiler lost what GPUs did.",
}
_RECORD_AGAIN_REMEDY = "Record again, with a newer profiler or driver: these stamps are not the program's."
_DAMAGED_FIELDS = ("form", "number of values", "record", "HLO", "counterpart")
_KINDS_OF_OPERATIONS = (
    "The kind of an operation is compute, collective, send, recv, wait or host, or names a collective."
)
_COPY_AGAIN = "Copy the profile again, or record it again: a part of it is cut off or damaged."
_LARGER_BUFFERS = (
    "The profiler lost events: give it larger buffers[nsys: or flush them more often (nsys "
    "--cuda-flush-interval)][torch: (Kineto's ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB)], or record fewer steps."
)
_REMEDIES_OF_ALL = {
    LossKind.MISSING: _RECORD_GPU_WORK,
    LossKind.PROCESS: "Record with a tool that writes which process each thread belongs to: nothing here "
    "tells the ranks.",
}
"""Remedies where all of the subject is lost."""
_REMEDIES = {
    LossKind.ROW: _RECORD_AGAIN_REMEDY,
    LossKind.EARLY: _RECORD_AGAIN_REMEDY,
    LossKind.OVERRUN: _RECORD_AGAIN_REMEDY,
    LossKind.UNTRACED: "Trace API calls too[nsys: (nsys --trace=cuda)][roc: (rocprofv3 --hip-trace)]"
    "[torch: (ProfilerActivity.CPU beside that of the GPU)].",
    LossKind.UNLINKED: "Record with a profiler that numbers launches[roc: (rocprofv3 --output-format rocpd)]"
    "[torch: (a newer PyTorch)]. Times on the GPU are right without.",
    LossKind.LAUNCH: "Begin the capture before the work is launched, and trace all API calls.",
    LossKind.FAILED: "The program fails, not its recording: check what its calls return, of which "
    "compute-sanitizer finds the first that fails, and record again.",
    LossKind.MISSING: _LARGER_BUFFERS,
    LossKind.DIAGNOSTIC: _LARGER_BUFFERS,
    LossKind.GRAPH: "[nsys: Record the kernels of CUDA graphs: --profiler-option cuda-graph-trace=node (nsys "
    "--cuda-graph-trace=node).][torch|roc|unitrace|ascend|xplane: The profiler lost events of CUDA graphs: "
    "record fewer steps, or capture the graphs while it records.]",
    LossKind.OPEN: "End each range on every path that leaves it[nsys: (nvtxRangePop, nvtxRangeEnd)]"
    "[roc: (roctxRangePop)].",
    LossKind.CATEGORY: "hpcprof reads no events of this category; what they did is in no figure.",
    LossKind.PAUSE: "Leave the recording on from the first step of interest to the last one.",
    LossKind.LOCATION: "Record again, and let the program end by itself, so that the archive is complete.",
}

_FIRST_SENTENCE = re.compile(r".*?(?=[.?!](?: [A-Z]|$))")
_LOSS_SENTENCE = re.compile(r"(?<=[.?!] )[A-Z][^.?!]*\b(?:missing|lost|dropped|discarded)\b[^.?!]*")
"""A later sentence of the profiler, which says that something is missing."""
_MAX_SENTENCE_CHARACTERS = 160
_PLURALS = {
    Subject.COPY: "memory copies",
    Subject.PROGRAM: "executions of XLA's programs",
    Subject.COUNTER: "counters of kernels",
    Subject.TABLE_ROW: "rows of the table",
    Subject.METRIC: "rows of metrics",
    Subject.SAMPLE: "samples of GPUs and NICs",
    Subject.ARROW: "arrows between operators",
    Subject.VISIT: "begins and ends of regions",
}
_SINGULAR_VERBS = {
    **{"has": "has", "are": "is", "were": "was", "belong": "belongs", "start": "starts", "run": "runs"},
    **{"launches": "launch", "they_count": "it counts", "their": "its"},
}
_PLURAL_VERBS = {verb: verb.replace("_", " ") for verb in _SINGULAR_VERBS} | {"has": "have"}
_SENTENCES = {
    LossKind.ROW: "{amount} {has} no valid {detail} and {are} left out",
    LossKind.REPEATED: "{amount} {are} the same as another one and {are} left out",
    LossKind.FIELD: "{amount} {has} no readable {detail}",
    LossKind.EARLY: "{amount} {start} before {their} launch and {are} left out",
    LossKind.OVERRUN: "{amount} {run} over what follows on {their} own stream or thread, or over the end "
    "of the capture, and {are} left out",
    LossKind.CLOCK: "the clock of a GPU is {detail} the host's: {amount} {are} shifted by that",
    LossKind.LAUNCH: "{amount} {has} no recorded launch call",
    LossKind.QUEUED: "{amount} {were} launched before the capture began",
    LossKind.UNTRACED: "{amount} {has} no recorded launch call, because the capture has no API calls",
    LossKind.UNLINKED: "{amount} {has} no recorded launch call, because the profile links no call to what it "
    "launched",
    LossKind.FAILED: "{amount} failed with error {detail}",
    LossKind.MISSING: "{amount} {has} no operation on the GPU in the profile",
    LossKind.GRAPH: "{count:,} {launches} of CUDA graphs {were} traced as a whole: {they_count} as compute, "
    "and {their} kernels are not in the profile (nsys --cuda-graph-trace=node records them)",
    LossKind.OPEN: "{amount} {has} no end, and {are} open until the end of the capture",
    LossKind.STEP: "the capture {detail} inside a step, which is left out",
    LossKind.BEFORE: "at the beginning of the capture, the GPU did work for {detail} that was launched "
    "before it, and no step begins before that has ended",
    LossKind.CATEGORY: "{amount} of the category {detail} {are} not supported and {are} left out",
    LossKind.TABLE: "the export has events that hpcprof does not read: {detail}",
    LossKind.PROCESS: "{amount} {belong} to processes without a rank and {are} left out",
    LossKind.NUMBERED: "one profile holds several ranks and does not tell them: they are numbered by process",
    LossKind.MERGED: "{count:,} processes used the GPU in profiles of one rank, and their figures are merged",
    LossKind.LOCATION: "{amount} of {detail} cannot be read and {are} left out",
    LossKind.PAUSE: "recording was off {times} on threads of the program, whose time then counts as compute",
    LossKind.DIAGNOSTIC: "the profiler reports: {first}",
    LossKind.NOTE: "the profiler reports: {first}",
}
