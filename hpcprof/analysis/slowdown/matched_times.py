"""The times of kernels in candidate runs, matched with the same kernels of the step in baseline runs.

Their ratio is the slowdown.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown.kernel_instances import KernelInstances, open_range, place_kernels
from hpcprof.analysis.slowdown.within_run import MIN_LAUNCHES
from hpcprof.analysis.statistics.clustered_medians import ClusteredMedians
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, RATIO_DIGITS, welch_interval
from hpcprof.analysis.statistics.grouped import summarize
from hpcprof.analysis.steps.step_ranges import OUTSIDE, steps_of
from hpcprof.profiles.columns.unique import numbered, numbered_rows, position_in_group
from hpcprof.profiles.timeline import Floats, Ints, Mask, Timeline

KernelId = tuple[str | None, str, str]
"""Name, grid and block."""


class KernelNumbering(msgspec.Struct):
    """Gives the kernels and phases of several timelines common numbers."""

    kernels: dict[KernelId, int] = msgspec.field(default_factory=dict)
    phases: dict[str, int] = msgspec.field(default_factory=dict)


class Occurrences(msgspec.Struct, frozen=True):
    """The compute kernels that steps launched; arrays have shape (n,)."""

    key: Ints
    """The numbers of the kernel and of the phase in `KernelNumbering` (`OUTSIDE` outside phases), and the
    position among the launches of this kernel in this phase of the step, from 0; shape (n, 3).
    """
    step: Ints
    """The number of the step, from 0; only steps with kernels count."""
    duration: Ints
    covered: Ints
    alone: Mask
    overlapped: Mask
    """As in `hpcprof.analysis.slowdown.kernel_instances.KernelInstances`."""


def find_occurrences(timeline: Timeline, numbering: KernelNumbering) -> Occurrences:
    """Find the compute kernels in the steps of a timeline; new kernels and phases join ``numbering``."""
    placed = place_kernels(timeline)
    steps = steps_of(timeline).ranges
    owner = open_range(steps, placed.process, placed.launched)
    inside = np.flatnonzero(owner != OUTSIDE)
    kernel, phase = _number_keys(placed, numbering)
    kernel, phase = kernel[inside], phase[inside]
    _, step = numbered(owner[inside])
    _, group = numbered_rows(step, kernel, phase)
    return Occurrences(
        key=np.column_stack((kernel, phase, position_in_group(group))),
        step=step,
        duration=placed.duration[inside],
        covered=placed.covered[inside],
        alone=placed.alone[inside],
        overlapped=placed.overlapped[inside],
    )


def _number_keys(placed: KernelInstances, numbering: KernelNumbering) -> tuple[Ints, Ints]:
    shapes = zip(placed.shapes.name, placed.shapes.grid, placed.shapes.block, strict=True)
    kernel = [numbering.kernels.setdefault(shape, len(numbering.kernels)) for shape in shapes]
    phase = [numbering.phases.setdefault(name, len(numbering.phases)) for name in placed.phases]
    return np.array(kernel, np.int64)[placed.shape], np.array([*phase, OUTSIDE], np.int64)[placed.phase]


class RunTimes(msgspec.Struct, frozen=True):
    """The times of one run; arrays have shape (steps, kernels)."""

    taken: Floats
    """The time of the kernels of each step."""
    expected: Floats
    """The sum of the reference times of the same occurrences; 0 if the step has none."""

    def ratios(self, kernels: Ints) -> tuple[Ints, Floats]:
        """Return the steps that have some of these kernels, and the taken over the expected time of each."""
        measured, expected = self.taken[:, kernels].sum(axis=1), self.expected[:, kernels].sum(axis=1)
        steps = np.flatnonzero(expected > 0)
        return steps, measured[steps] / expected[steps]


class MatchedTimes(msgspec.Struct, frozen=True):
    """Selected kernels of the candidate runs, and the same occurrences in the baseline runs.

    The reference time of an occurrence is its median over all steps of the baseline. In the baseline an
    occurrence has the weight of its selected launches in the candidate. Arrays have shape (kernels,).
    """

    candidate: list[RunTimes]
    baseline: list[RunTimes]
    """One element per run."""
    candidate_count: Ints
    baseline_count: Ints
    """The number of matched launches."""
    expected: Floats
    """The sum of the reference times of the candidate's matched launches, in ns."""
    unmatched: Ints
    """The number of selected launches whose occurrence the baseline lacks."""


class OccurrenceMatcher:
    """Matches the occurrences of candidate and baseline runs.

    ``candidate`` and ``baseline`` have one element per run, all found with the same `KernelNumbering`, which
    numbered ``kernels``.
    """

    def __init__(
        self, candidate: Sequence[Occurrences], baseline: Sequence[Occurrences], kernels: int
    ) -> None:
        self._candidate, self._baseline, self._kernels = candidate, baseline, kernels
        all_keys = np.concatenate([run.key for run in (*candidate, *baseline)])
        keys, number = numbered_rows(*all_keys.T)
        self._kernel = keys[:, 0]
        edges = np.cumsum([len(run.key) for run in (*candidate, *baseline)])[:-1]
        parts = np.split(number, edges)
        self._candidate_keys, self._baseline_keys = parts[: len(candidate)], parts[len(candidate) :]
        self._reference = np.full(len(keys), np.nan)
        at_baseline = np.concatenate(self._baseline_keys)
        if len(at_baseline):
            summary = summarize(at_baseline, np.concatenate([run.duration for run in baseline]))
            self._reference[summary.group] = summary.median

    def matched(self, masks: Sequence[Mask]) -> MatchedTimes:
        """Match the launches of the candidate that the masks select, one mask per run."""
        measured = ~np.isnan(self._reference)
        reference = np.where(measured, self._reference, 0.0)
        chosen = [mask.astype(np.int64) for mask in masks]
        weight = np.zeros(len(measured), np.int64)
        for key, mask in zip(self._candidate_keys, chosen, strict=True):
            weight += np.bincount(key, mask, len(measured)).astype(np.int64)
        matched = np.where(measured, weight, 0)
        baseline = np.bincount(np.concatenate(self._baseline_keys), minlength=len(measured)) * (matched > 0)
        return MatchedTimes(
            candidate=[
                self._times(candidate, key, mask * measured[key], reference)
                for candidate, key, mask in zip(self._candidate, self._candidate_keys, chosen, strict=True)
            ],
            baseline=[
                self._times(run, key, matched[key], reference)
                for run, key in zip(self._baseline, self._baseline_keys, strict=True)
            ],
            candidate_count=self._sum(matched).astype(np.int64),
            baseline_count=self._sum(baseline).astype(np.int64),
            expected=self._sum(matched * reference),
            unmatched=self._sum(weight - matched).astype(np.int64),
        )

    def _sum(self, values: Ints | Floats) -> Floats:
        """Add up the values of the occurrences of each kernel."""
        return _sums(self._kernel, values, self._kernels)

    def _times(self, occurrences: Occurrences, key: Ints, weight: Ints, reference: Floats) -> RunTimes:
        steps = int(occurrences.step.max(initial=-1)) + 1
        place = occurrences.step * self._kernels + self._kernel[key]
        shape = (steps, self._kernels)
        measured, expected = (
            _sums(place, weight * values, steps * self._kernels).reshape(shape)
            for values in (occurrences.duration, reference[key])
        )
        return RunTimes(measured, expected)


def _sums(group: Ints, values: Ints | Floats, groups: int) -> Floats:
    """Add up the values of each group as floats; bincount returns integers for an empty input."""
    return np.bincount(group, values, groups).astype(np.float64)


class PairedRank(msgspec.Struct, frozen=True, dict=True):
    """One rank: the kernels of both sides, one element per run, and the name of each kernel number."""

    rank: int
    candidate: list[Occurrences]
    baseline: list[Occurrences]
    kernels: tuple[KernelId, ...]

    @cached_property
    def matcher(self) -> OccurrenceMatcher:
        """The matcher of the occurrences of both sides."""
        return OccurrenceMatcher(self.candidate, self.baseline, len(self.kernels))

    @cached_property
    def overlapped(self) -> MatchedTimes:
        """The candidate's kernels that communication overlaps, matched."""
        return self.matcher.matched([run.overlapped for run in self.candidate])

    @cached_property
    def alone(self) -> MatchedTimes:
        """The candidate's kernels during which no communication runs, matched: the control."""
        return self.matcher.matched([run.alone for run in self.candidate])


def pair_ranks(runs: Sequence[RunData], against: Sequence[RunData]) -> Iterator[PairedRank]:
    """Yield the ranks that both sides have; each timeline is read once, and only one is held at a time.

    If ``against`` has a single rank, every rank is paired with it.
    """
    numbering = KernelNumbering()
    ranks = sorted({rank for run in runs for rank in run.timeline_ranks})
    baseline_ranks = sorted({rank for run in against for rank in run.timeline_ranks})
    single = _rank_occurrences(against, baseline_ranks[0], numbering) if len(baseline_ranks) == 1 else None
    for rank in ranks:
        if single is not None or rank in baseline_ranks:
            candidate = _rank_occurrences(runs, rank, numbering)
            baseline = single or _rank_occurrences(against, rank, numbering)
            yield PairedRank(rank, candidate, baseline, tuple(numbering.kernels))


def _rank_occurrences(runs: Sequence[RunData], rank: int, numbering: KernelNumbering) -> list[Occurrences]:
    return [find_occurrences(run.read(rank), numbering) for run in runs if rank in run.timeline_ranks]


EXPECTED_DIFFERENCES = ("arguments", "ranks", "nodes")
"""The facts in which a run without communication differs from one with communication, on purpose."""

_RATIO_UNIT = 1 << 30
"""Ratios become integers by this factor, because `ClusteredMedians` takes integers."""


def percent(part: float, whole: float) -> float:
    """Return a share in percent, rounded to two decimals."""
    return round(100 * float(part) / float(whole), 2)


class StepRatios(msgspec.Struct, frozen=True):
    """The ratios of taken to expected time of each run, as steps (numbers from 0) and their ratios."""

    candidate: list[tuple[Ints, Floats]]
    baseline: list[tuple[Ints, Floats]]

    @classmethod
    def of(cls, matched: MatchedTimes, kernels: Ints) -> "StepRatios":
        """Return the ratios of some kernels together."""
        return cls(*([run.ratios(kernels) for run in side] for side in (matched.candidate, matched.baseline)))

    def estimate(self, control: "StepRatios | None") -> tuple[float, float | None, float | None]:
        """Return the mean logarithm of the candidate runs' medians, less that of the baseline runs.

        With a control, its own is subtracted. The 95 % interval follows; both of its ends may be None.
        """
        candidate = _Side(self.candidate, control.candidate if control else None)
        baseline = _Side(self.baseline, control.baseline if control else None)
        level = float(candidate.levels.mean() - baseline.levels.mean())
        intervals = []
        if candidate.enough and baseline.enough and not math.isnan(half := _half_width(candidate, baseline)):
            intervals.append((level - half, level + half))
        if min(len(candidate.levels), len(baseline.levels)) > 1:
            intervals.append(welch_interval(candidate.levels, baseline.levels, CONFIDENCE))
        if not intervals:
            return level, None, None
        return level, min(low for low, _ in intervals), max(high for _, high in intervals)


class _Side:
    """The runs of a side that have steps of the kernels and of the control.

    ``runs`` has the ratios of the kernels of each run and, if there is a control, its ratios. ``levels`` is
    the logarithm of each run's median, less that of the control, shape (runs,). ``enough`` tells whether each
    run has enough steps for an interval.
    """

    def __init__(
        self, times: Sequence[tuple[Ints, Floats]], control: Sequence[tuple[Ints, Floats]] | None
    ) -> None:
        parts = [times] if control is None else [times, control]
        self.runs = [list(run) for run in zip(*parts, strict=True) if all(len(steps) for steps, _ in run)]
        levels = [_log_medians(run) for run in self.runs]
        self.levels = np.array([level[0] - level[1:].sum() for level in levels])
        counts = [len(steps) for run in self.runs for steps, _ in run]
        self.enough = min(counts, default=0) >= MIN_LAUNCHES


def _half_width(candidate: _Side, baseline: _Side) -> float:
    """Return half the width of the 95 % interval of the difference between the sides' mean levels.

    The steps are the sample. A step of the kernels and the same step of the control vary together.
    """
    columns: list[list[Ints]] = [[], [], []]
    gradient: list[float] = []
    is_candidate: list[bool] = []
    first, begins = 0, []
    for side, sign in ((candidate, 1), (baseline, -1)):
        for run in side.runs:
            begins.append(first)
            for part, (steps, ratios) in enumerate(run):
                scaled = np.rint(ratios * _RATIO_UNIT).astype(np.int64)
                group = np.full(len(steps), len(gradient))
                for column, values in zip(columns, (group, first + steps, scaled), strict=True):
                    column.append(values)
                gradient.append((-sign if part else sign) / len(side.runs) / float(np.median(scaled)))
                is_candidate.append(sign > 0)
            first += 1 + max(int(steps.max()) for steps, _ in run)
    medians = ClusteredMedians.of(*(np.concatenate(column) for column in columns))
    one_row = np.zeros(len(gradient), np.int64)
    sides = np.array(is_candidate)
    return float(medians.half_widths(one_row, np.array(gradient), sides, np.array(begins))[0])


def _log_medians(runs: Sequence[tuple[Ints, Floats]]) -> Floats:
    """Return the logarithm of each run's median ratio; NaN for a run without steps."""
    return np.log([np.median(ratios) if len(ratios) else math.nan for _, ratios in runs])


def slowdown_columns(matched: MatchedTimes, kernels: Ints, control: StepRatios | None) -> dict[str, Any]:
    """Return the columns ``alone_n`` to ``ci_high`` for some kernels together.

    ``control`` are the ratios of the control, by which the slowdown is divided; None for no correction.
    """
    measured = StepRatios.of(matched, kernels)
    count = int(matched.candidate_count[kernels].sum())
    reference = float(matched.expected[kernels].sum()) / count
    level, low, high = measured.estimate(control)
    return {
        "alone_n": int(matched.baseline_count[kernels].sum()),
        "alone_med_ns": round(reference * math.exp(np.nanmean(_log_medians(measured.baseline))), 1),
        "overlapped_n": count,
        "overlapped_med_ns": round(reference * math.exp(np.nanmean(_log_medians(measured.candidate))), 1),
        "slowdown": round(math.exp(level), RATIO_DIGITS),
        "ci_low": None if low is None else round(math.exp(low), RATIO_DIGITS),
        "ci_high": None if high is None else round(math.exp(high), RATIO_DIGITS),
    }
