"""How much slower kernels run beside communication, against runs without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.differences import LABELS, differences
from hpcprof.analysis.matched_times import Cells, MatchedTimes, StepTimes
from hpcprof.analysis.medians import CONFIDENCE, RESAMPLES, percentile_interval, resampled_medians
from hpcprof.analysis.occurrences import Kernel, Numbers, Occurrences, occurrences
from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.analysis.run_data import RunData
from hpcprof.analysis.slowdown import DIGITS, FEWEST, TOTAL
from hpcprof.analysis.summary import Floats
from hpcprof.analysis.welch import interval
from hpcprof.timeline import Ints

CONTROL = "(control)"
"""Stands for the name in the row over the kernels that no communication overlaps in the runs."""

# How a run goes without communication.
_MEANT = ("arguments", "ranks", "nodes")
_SEED = 20_260_101


def slowdown_pairs(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compare overlapped kernels of runs with the same kernels of runs without communication.

    The same kernel is the same name, grid, block, phase and occurrence within that phase of the step, on the
    same rank; where the runs compared with have one rank only, every rank is compared with it. A step of
    ``runs`` gives a ratio: what its overlapped kernels took over the reference times of these occurrences,
    their medians over the steps of ``against``. A run counts by the median over its steps. ``slowdown`` is
    the geometric mean of that over ``runs``, over that of ``against``, where each occurrence has the weight
    that it has in ``runs``.

    The control are the kernels of ``runs`` that no communication overlaps: what changes them (clocks,
    temperature) changes the others too, so every slowdown but the control's own is divided by it.

    The interval is 95 %: from the steps by bootstrap; with two runs or more on each side also Welch's t over
    the runs, and then the wider ends of both. It is null with fewer than 5 steps in a run that is alone.
    """
    for label, side in zip(LABELS, (runs, against), strict=True):
        if not any(run.timeline_ranks for run in side):
            return nothing(f"{label} have no timeline of Nsight Systems or PyTorch")
    numbers = Numbers()
    ranks = sorted({rank for run in runs for rank in run.timeline_ranks})
    others = sorted({rank for run in against for rank in run.timeline_ranks})
    notes = _Notes(runs=min(len(runs), len(against)))
    rows: list[dict[str, Any]] = []
    single = _of_rank(against, others[0], numbers) if len(others) == 1 else None
    for rank in ranks:
        if single is None and rank not in others:
            notes.alone.append(rank)
            continue
        a, b = _of_rank(runs, rank, numbers), single or _of_rank(against, rank, numbers)
        rows += [{"rank": rank} | row for row in _rows(a, b, numbers, notes)]
    if not rows:
        return nothing(notes.why_nothing())
    said = notes.sentences() + differences(runs, against, LABELS, _MEANT)
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


def _of_rank(runs: Sequence[RunData], rank: int, numbers: Numbers) -> list[Occurrences]:
    return [occurrences(run.read(rank), numbers) for run in runs if rank in run.timeline_ranks]


def _rows(
    a: list[Occurrences], b: list[Occurrences], numbers: Numbers, notes: _Notes
) -> list[dict[str, Any]]:
    """Return the rows of one rank: the total, the control, and the kernels by the time lost."""
    cells = Cells(a, b, len(numbers.kernels))
    beside, control = cells.matched("overlapped"), cells.matched("alone")
    notes.add(a, b, beside)
    compared, of_control = _enough(beside), _enough(control)
    if not len(compared):
        return []
    random = np.random.default_rng(_SEED)
    clock = _Sides.of(control, of_control, random) if len(of_control) else None
    notes.uncorrected |= clock is None
    names = list(numbers.kernels)
    rows = [(math.inf, _named((TOTAL, "", "")) | _figures(beside, compared, clock, random))]
    if clock is not None:
        rows.append((math.inf, _named((CONTROL, "", "")) | _figures(control, of_control, None, random)))
    for k in compared.tolist():
        figures = _figures(beside, np.array([k]), clock, random)
        lost = (figures["slowdown"] - 1) * float(beside.expected[k])
        rows.append((lost, _named(names[k]) | figures))
    rows.sort(key=lambda row: -row[0])
    return [row for _, row in rows]


def _named(kernel: Kernel) -> dict[str, Any]:
    return dict(zip(("name", "grid", "block"), kernel, strict=True))


def _enough(matched: MatchedTimes) -> Ints:
    """Return the kernels of which there are enough on both sides."""
    return np.flatnonzero((matched.count_a >= FEWEST) & (matched.count_b >= FEWEST))


@dataclass(frozen=True)
class _Sides:
    """The logarithm of each run's ratio, and of resamples of it; NaN where it has no or too few steps.

    ``a`` and ``b`` have shape (runs, 1 + RESAMPLES): the measured value comes first.
    """

    a: Floats
    b: Floats

    @classmethod
    def of(cls, matched: MatchedTimes, kernels: Ints, random: np.random.Generator) -> _Sides:
        """Return the values of some kernels together."""
        return cls(
            *(np.array([_run(run, kernels, random) for run in side]) for side in (matched.a, matched.b))
        )

    def corrected(self, control: _Sides) -> _Sides:
        """Return each run's values over those of its control."""
        return _Sides(self.a - control.a, self.b - control.b)

    def ends(self) -> tuple[float | None, float | None]:
        """Return the 95 % interval of the difference of the sides' means."""
        a, b = (side[~np.isnan(side[:, 0])] for side in (self.a, self.b))
        found = []
        resampled = a[:, 1:].mean(axis=0) - b[:, 1:].mean(axis=0)
        if not np.isnan(resampled).any():
            found.append(percentile_interval(resampled))
        if min(len(a), len(b)) > 1:
            found.append(interval(a[:, 0], b[:, 0], CONFIDENCE))
        if not found:
            return None, None
        return min(low for low, _ in found), max(high for _, high in found)


def _run(times: StepTimes, kernels: Ints, random: np.random.Generator) -> Floats:
    ratios = times.ratios(kernels)
    values = np.full(1 + RESAMPLES, np.nan)
    if len(ratios):
        values[0] = np.median(ratios)
    if len(ratios) >= FEWEST:
        values[1:] = resampled_medians(ratios, random)
    logarithms: Floats = np.log(values)
    return logarithms


def _figures(
    matched: MatchedTimes, kernels: Ints, control: _Sides | None, random: np.random.Generator
) -> dict[str, Any]:
    """Return the columns of figures of some kernels together."""
    measured = _Sides.of(matched, kernels, random)
    count = int(matched.count_a[kernels].sum())
    reference = float(matched.expected[kernels].sum()) / count
    sides = measured.corrected(control) if control else measured
    ratio = math.exp(np.nanmean(sides.a[:, 0]) - np.nanmean(sides.b[:, 0]))
    low, high = sides.ends()
    return {
        "alone_n": int(matched.count_b[kernels].sum()),
        "alone_med_ns": round(reference * math.exp(np.nanmean(measured.b[:, 0])), 1),
        "overlapped_n": count,
        "overlapped_med_ns": round(reference * math.exp(np.nanmean(measured.a[:, 0])), 1),
        "slowdown": round(ratio, DIGITS),
        "ci_low": None if low is None else round(math.exp(low), DIGITS),
        "ci_high": None if high is None else round(math.exp(high), DIGITS),
    }


@dataclass
class _Notes:
    """What limits the rows, over all ranks."""

    runs: int
    overlapped: int = 0
    unmatched: int = 0
    in_steps: int = 0
    in_steps_against: int = 0
    overlapped_against: int = 0
    uncorrected: bool = False
    alone: list[int] = field(default_factory=list)

    def add(self, a: list[Occurrences], b: list[Occurrences], beside: MatchedTimes) -> None:
        """Add one rank."""
        self.in_steps += sum(len(one.step) for one in a)
        self.in_steps_against += sum(len(one.step) for one in b)
        self.overlapped += sum(int(one.overlapped.sum()) for one in a)
        self.overlapped_against += sum(int(one.overlapped.sum()) for one in b)
        self.unmatched += int(beside.unmatched.sum())

    def why_nothing(self) -> str:
        """Say why there is no row."""
        if not self.in_steps or not self.in_steps_against:
            which = "runs compared with have" if self.in_steps else "runs have"
            return f"the {which} no kernel that a step launched, on a rank that both sides have"
        if not self.overlapped:
            return "no compute kernel inside a step is covered by communication to 90 % or more"
        return (
            f"no kernel comes {FEWEST} times beside communication and {FEWEST} times in the runs compared "
            f"with: {self.unmatched} of {self.overlapped} have no counterpart (same name, grid, block and "
            "occurrence in the step)"
        )

    def sentences(self) -> list[str]:
        """Say what limits the rows."""
        said = []
        if self.uncorrected:
            said.append("no kernel of the runs is alone: the slowdowns are not corrected for clocks")
        if self.overlapped_against:
            said.append(
                f"the runs compared with communicate too, beside {self.overlapped_against} of their kernels"
            )
        if self.unmatched:
            said.append(f"{self.unmatched} of {self.overlapped} overlapped kernels have no counterpart")
        if self.alone:
            said.append(f"not in the runs compared with: ranks {', '.join(map(str, self.alone))}")
        if self.runs < 2:
            said.append("one run on a side: the intervals hold for these runs only")
        return said
