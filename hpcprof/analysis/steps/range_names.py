"""Names of ranges without their counters: ``ProfilerStep#4`` and ``ProfilerStep#5`` are one name.

Programs number the ranges of their steps (``step 17``, ``iter_0003``). The numbers of layers look the same,
but name different things. A counter differs from them in its order: it never repeats, and its ranges follow
each other.
"""

import re
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.account.places import PROFILER_STEP
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.timeline import NO_NAME, Ints, Mask, Ranges, Timeline

# Suffixes of torch.autograd.profiler.emit_nvtx to a name (torch/csrc/profiler/util.cpp, getNvtxStr).
_EMITTED_NAME = re.compile(
    r"(?:, seq = \d+)?(?:, op_id = \d+)(?:, sizes = .*)?(?:, input_op_ids = .*)?$", re.DOTALL
)
# Longer numbers are identifiers; the last digits of a name may be followed by brackets and the like.
_NUMBERED_NAME = re.compile(r"(.*?)(?<!\d)(\d{1,15})([^0-9A-Za-z_]*)", re.DOTALL)
# Executions of a program by XLA, numbered alike on all of its processes (hpcprof.profiles.readers.xplane).
_EXECUTION = re.compile(r"(XlaModule:#hlo_module=.*),run_id=(\d{1,15})#", re.DOTALL)
# A program that XLA compiles again has another number.
_COMPILED_NAME = re.compile(r"(XlaModule:#.*),program_id=\d+(?=[,#])", re.DOTALL)
# Words whose numbers name a part of the model or the machine, even if each of them occurs only once.
_PART = re.compile(
    r"(?:layer|block|stage|module|head|expert|bucket|chunk|shard|rank|device|gpu|stream|thread|worker|level)s?[\W_]*$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RangeNames:
    """The names of a timeline's ranges, without counters."""

    names: tuple[str, ...]
    """The distinct names. A counter is written ``N``: ``step N``."""
    of_text: Ints
    """The index in ``names`` of each text of the timeline's string table, -1 if no range has it; the last
    element is that of `NO_NAME`; shape (strings + 1,).
    """
    counted: Mask
    """True for names that stand for several texts that differ in their counter; shape (names,)."""
    number: Ints
    """The counter of each text, 0 without one; shape (strings + 1,)."""
    executions: Mask
    """True for names of executions of a program by XLA, whose counters may pause; shape (names,)."""


def plain_name(name: str) -> str:
    """Return a name without the suffix of ``emit_nvtx``: ``forward`` of ``forward, op_id = 12``."""
    return _COMPILED_NAME.sub(r"\1", _EMITTED_NAME.sub("", name))


def names_part(name: str) -> bool:
    """Return whether the last number of a name is that of a part of the model: ``TransformerLayer_3``."""
    match = _NUMBERED_NAME.fullmatch(name)
    return match is not None and _PART.search(match[1]) is not None


def with_counter(name: str) -> str:
    """Return a name with ``N`` for its last number, unless that names a part: ``step N`` of ``step 17``."""
    return _counters([plain_name(name)])[0][0]


@computed_once
def range_names(timeline: Timeline) -> RangeNames:
    """Return the names of the ranges of a timeline without their counters.

    Texts that differ only in their last number have one name if, on each thread, the number increases from
    range to range and the ranges follow each other, unless the number belongs to a word such as ``layer``.
    The numbers of executions by XLA are counters in any case.
    """
    ranges = timeline.ranges
    used = distinct(ranges.name)
    used = used[used != NO_NAME]
    plain = [plain_name(text or "") for text in timeline.names(used)]
    counted_as, number = _counters(plain)
    families, family = np.unique(np.array(counted_as, object), return_inverse=True)
    family_of_text = np.full(len(timeline.strings) + 1, -1, np.int64)
    family_of_text[used] = family
    number_of_text = np.zeros(len(family_of_text), np.int64)
    number_of_text[used] = number
    several = np.bincount(family, minlength=len(families)) > 1
    broken = _repeating_families(ranges, family_of_text[ranges.name], number_of_text[ranges.name])
    real = several & ~np.isin(np.arange(len(families)), broken)
    real |= families == PROFILER_STEP
    executed = np.isin(np.arange(len(families)), family[[bool(_EXECUTION.fullmatch(text)) for text in plain]])
    real |= executed
    labels = [families[f] if real[f] else text for f, text in zip(family.tolist(), plain, strict=True)]
    names = sorted(set(labels))
    place = {name: i for i, name in enumerate(names)}
    family_of_text[used] = [place[name] for name in labels]
    counted, executions = (
        np.isin(np.array(names, object), families[is_chosen]) for is_chosen in (real, executed)
    )
    return RangeNames(tuple(names), family_of_text, counted, number_of_text, executions)


def _counters(names: list[str]) -> tuple[list[str], Ints]:
    """Return each name with its counter as ``N``, and the counter; a name without one stays, with 0."""
    written, numbers = [], []
    for name in names:
        if execution := _EXECUTION.fullmatch(name):
            written.append(f"{execution[1]}#")
            numbers.append(int(execution[2]))
            continue
        match = _NUMBERED_NAME.fullmatch(name)
        if match is None or _PART.search(match[1]):
            written.append(name)
            numbers.append(0)
        else:
            written.append(f"{match[1]}N{match[3]}")
            numbers.append(int(match[2]))
    return written, np.array(numbers, np.int64)


def _repeating_families(ranges: Ranges, family: Ints, number: Ints) -> Ints:
    """Return the families whose numbers do not increase from range to range, or whose ranges overlap."""
    order = np.lexsort((ranges.start, ranges.thread, ranges.process, family))
    columns = (family[order], ranges.process[order], ranges.thread[order])
    together = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    start, end, number = ranges.start[order], ranges.end[order], number[order]
    unlike = (number[1:] <= number[:-1]) | (start[1:] < end[:-1])
    return np.unique(family[order][1:][together & unlike])
