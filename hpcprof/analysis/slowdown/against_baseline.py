"""Slowdown of kernels by communication, against runs without communication."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.run_differences import SIDE_NAMES, describe_differences
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown.matched_times import (
    EXPECTED_DIFFERENCES,
    KernelId,
    MatchedTimes,
    Occurrences,
    PairedRank,
    StepRatios,
    pair_ranks,
    percent,
    slowdown_columns,
)
from hpcprof.analysis.slowdown.within_run import MIN_LAUNCHES, TOTAL
from hpcprof.common.units import named_ranks
from hpcprof.profiles.timeline import Floats, Ints

CONTROL = "(control)"
"""The name in the row over the kernels that no communication overlaps in the candidate runs."""


def slowdown_pairs(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compare overlapped kernels of runs with the same kernels of runs without communication.

    Kernels are the same if they have the same rank, name, grid, block, phase and position among the launches
    of that phase of the step. If ``against`` has a single rank, every rank is compared with it. Each step of
    ``runs`` gives a ratio: the time of its overlapped kernels over the reference times of these occurrences,
    which are their medians over the steps of ``against``. The value of a run is the median over its steps.
    ``slowdown`` is the geometric mean of these values over ``runs``, divided by the same for ``against``,
    where each occurrence has the weight that it has in ``runs``.

    The control are the kernels of ``runs`` that no communication overlaps. Clocks and temperature change
    them as they change the other kernels, so every slowdown except the control's own is divided by the
    control's.

    ``overlap_pct`` is the share of the time of all launches of a kernel, in the steps of ``runs``, during
    which communication ran; it is 0 in the row of the control.

    The 95 % interval takes the steps as the sample (`ClusteredMedians`), and with two or more runs on each
    side also the runs (Welch's t); the wider ends count. It is null if one run is alone on its side and a run
    has fewer than 5 steps.
    """
    return combine_ranks(runs, against, [compare_rank(pair) for pair in pair_ranks(runs, against)])


class RankRows(msgspec.Struct, frozen=True):
    """The rows of one rank, and the numbers of launches behind them.

    ``in_steps`` counts the kernels that steps launched, ``overlapped`` those that communication overlaps, and
    ``unmatched`` the overlapped ones without a counterpart in the baseline.
    """

    rank: int
    rows: list[dict[str, Any]]
    in_steps: int
    in_steps_against: int
    overlapped: int
    overlapped_against: int
    unmatched: int

    @property
    def uncorrected(self) -> bool:
        """True if there are rows but no control."""
        return bool(self.rows) and all(row["name"] != CONTROL for row in self.rows)


def compare_rank(pair: PairedRank) -> RankRows:
    """Compare the kernels of one rank."""
    return RankRows(
        rank=pair.rank,
        rows=_rows(pair),
        in_steps=sum(len(candidate.step) for candidate in pair.candidate),
        in_steps_against=sum(len(baseline.step) for baseline in pair.baseline),
        overlapped=sum(int(candidate.overlapped.sum()) for candidate in pair.candidate),
        overlapped_against=sum(int(baseline.overlapped.sum()) for baseline in pair.baseline),
        unmatched=int(pair.overlapped.unmatched.sum()),
    )


def combine_ranks(runs: Sequence[RunData], against: Sequence[RunData], ranks: Sequence[RankRows]) -> Outcome:
    """Return the rows of all ranks, or the reason why there are none."""
    for label, side in zip(SIDE_NAMES, (runs, against), strict=True):
        if not any(run.timeline_ranks for run in side):
            return no_rows(f"{label} have no timeline of Nsight Systems or PyTorch")
    rows = [{"rank": rank.rank} | row for rank in ranks for row in rank.rows]
    if not rows:
        return no_rows(_why_no_rows(ranks))
    notes = _notes_on_limits(runs, against, ranks) + describe_differences(
        runs, against, SIDE_NAMES, EXPECTED_DIFFERENCES
    )
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(notes))


def _rows(pair: PairedRank) -> list[dict[str, Any]]:
    """Return the rows of one rank: the total, the control, and the kernels sorted by the time lost."""
    overlapped, control, names = pair.overlapped, pair.alone, pair.kernels
    compared, control_rows = _with_enough_launches(overlapped), _with_enough_launches(control)
    if not len(compared):
        return []
    control_ratios = StepRatios.of(control, control_rows) if len(control_rows) else None
    busy, covered = _busy_and_covered(pair.candidate, len(names))
    share = {"overlap_pct": percent(covered[compared].sum(), busy[compared].sum())}
    rows = [
        (
            math.inf,
            _name_columns((TOTAL, "", "")) | slowdown_columns(overlapped, compared, control_ratios) | share,
        )
    ]
    if control_ratios is not None:
        row = slowdown_columns(control, control_rows, None) | {"overlap_pct": 0.0}
        rows.append((math.inf, _name_columns((CONTROL, "", "")) | row))
    for k in compared.tolist():
        row = slowdown_columns(overlapped, np.array([k]), control_ratios) | {
            "overlap_pct": percent(covered[k], busy[k])
        }
        lost = (row["slowdown"] - 1) * float(overlapped.expected[k])
        rows.append((lost, _name_columns(names[k]) | row))
    rows.sort(key=lambda row: -row[0])
    return [row for _, row in rows]


def _busy_and_covered(runs: list[Occurrences], kernels: int) -> tuple[Floats, Floats]:
    """Return the time of all launches of each kernel, and the time of communication during them, in ns."""
    kernel = np.concatenate([run.key[:, 0] for run in runs])
    busy, covered = (
        np.bincount(kernel, np.concatenate(times), kernels)
        for times in ([run.duration for run in runs], [run.covered for run in runs])
    )
    return busy.astype(np.float64), covered.astype(np.float64)


def _name_columns(kernel: KernelId) -> dict[str, Any]:
    return dict(zip(("name", "grid", "block"), kernel, strict=True))


def _with_enough_launches(matched: MatchedTimes) -> Ints:
    """Return the kernels that have enough launches on both sides."""
    return np.flatnonzero(
        (matched.candidate_count >= MIN_LAUNCHES) & (matched.baseline_count >= MIN_LAUNCHES)
    )


def _why_no_rows(ranks: Sequence[RankRows]) -> str:
    in_steps = sum(rank.in_steps for rank in ranks)
    if not in_steps or not sum(rank.in_steps_against for rank in ranks):
        return (
            f"{SIDE_NAMES[in_steps > 0]} have no kernel that a step launched, on a rank that both sides have"
        )
    overlapped = sum(rank.overlapped for rank in ranks)
    if not overlapped:
        return "communication covers no compute kernel inside a step to 90 % or more"
    return (
        f"no kernel has {MIN_LAUNCHES} overlapped launches and as many counterparts in the baseline runs: "
        f"{sum(rank.unmatched for rank in ranks)} of {overlapped} overlapped launches have no counterpart "
        "(same name, grid, block and position in the step)"
    )


def _notes_on_limits(
    runs: Sequence[RunData], against: Sequence[RunData], ranks: Sequence[RankRows]
) -> list[str]:
    notes = []
    if any(rank.uncorrected for rank in ranks):
        notes.append("no kernel of the runs is alone, so the slowdowns are not corrected for clocks")
    if overlapped := sum(rank.overlapped_against for rank in ranks):
        notes.append(f"the baseline runs communicate too, during {overlapped} of their kernels")
    if unmatched := sum(rank.unmatched for rank in ranks):
        overlapped = sum(rank.overlapped for rank in ranks)
        notes.append(f"{unmatched} of {overlapped} overlapped launches have no counterpart")
    if alone := {rank for run in runs for rank in run.timeline_ranks} - {rank.rank for rank in ranks}:
        notes.append(f"not in the baseline runs: {named_ranks(sorted(alone))}")
    if min(len(runs), len(against)) < 2:
        notes.append("a side has only one run, so the intervals hold for these runs only")
    return notes
