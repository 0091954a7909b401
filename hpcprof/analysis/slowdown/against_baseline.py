"""How much slower kernels run beside communication, against runs without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.run_differences import LABELS, differences
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown.matched_times import MatchedTimes
from hpcprof.analysis.slowdown.rank_pairs import PairedRank, paired
from hpcprof.analysis.slowdown.ratio_estimates import MEANT, SEED, Sides, figures, percent
from hpcprof.analysis.slowdown.step_occurrences import Kernel, Occurrences
from hpcprof.analysis.slowdown.within_run import FEWEST, TOTAL
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints

CONTROL = "(control)"
"""Stands for the name in the row over the kernels that no communication overlaps in the runs."""


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

    ``overlap_pct`` is the share of the time of all launches of a kernel in the steps of ``runs`` in which
    communication ran; 0 in the control's row, whose launches have none beside them.

    The interval is 95 %: from the steps by bootstrap; with two runs or more on each side also Welch's t over
    the runs, and then the wider ends of both. It is null with fewer than 5 steps in a run that is alone.
    """
    return over_ranks(runs, against, [of_rank(pair) for pair in paired(runs, against)])


@dataclass(frozen=True)
class OfRank:
    """The rows of one rank, and what limits them.

    ``in_steps`` counts the kernels that steps launched, and ``overlapped`` those of them that communication
    covers; ``unmatched`` have no counterpart.
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
        """Whether there are rows, but no control."""
        return bool(self.rows) and all(row["name"] != CONTROL for row in self.rows)


def of_rank(pair: PairedRank) -> OfRank:
    """Compare the kernels of one rank."""
    return OfRank(
        rank=pair.rank,
        rows=_rows(pair),
        in_steps=sum(len(one.step) for one in pair.a),
        in_steps_against=sum(len(one.step) for one in pair.b),
        overlapped=sum(int(one.overlapped.sum()) for one in pair.a),
        overlapped_against=sum(int(one.overlapped.sum()) for one in pair.b),
        unmatched=int(pair.beside.unmatched.sum()),
    )


def over_ranks(runs: Sequence[RunData], against: Sequence[RunData], ranks: Sequence[OfRank]) -> Outcome:
    """Return the rows of all ranks, or why there are none."""
    for label, side in zip(LABELS, (runs, against), strict=True):
        if not any(run.timeline_ranks for run in side):
            return no_rows(f"{label} have no timeline of Nsight Systems or PyTorch")
    rows = [{"rank": one.rank} | row for one in ranks for row in one.rows]
    if not rows:
        return no_rows(_why_nothing(ranks))
    said = _limits(runs, against, ranks) + differences(runs, against, LABELS, MEANT)
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


def _rows(pair: PairedRank) -> list[dict[str, Any]]:
    """Return the rows of one rank: the total, the control, and the kernels by the time lost."""
    beside, control, names = pair.beside, pair.alone, pair.kernels
    compared, of_control = _enough(beside), _enough(control)
    if not len(compared):
        return []
    random = np.random.default_rng(SEED)
    clock = Sides.of(control, of_control, random) if len(of_control) else None
    busy, covered = _times(pair.a, len(names))
    share = {"overlap_pct": percent(covered[compared].sum(), busy[compared].sum())}
    rows = [(math.inf, _named((TOTAL, "", "")) | figures(beside, compared, clock, random) | share)]
    if clock is not None:
        of_it = figures(control, of_control, None, random) | {"overlap_pct": 0.0}
        rows.append((math.inf, _named((CONTROL, "", "")) | of_it))
    for k in compared.tolist():
        row = figures(beside, np.array([k]), clock, random) | {"overlap_pct": percent(covered[k], busy[k])}
        lost = (row["slowdown"] - 1) * float(beside.expected[k])
        rows.append((lost, _named(names[k]) | row))
    rows.sort(key=lambda row: -row[0])
    return [row for _, row in rows]


def _times(runs: list[Occurrences], kernels: int) -> tuple[Floats, Floats]:
    """Return for each kernel the time of all its launches, and for how long of it communication ran."""
    kernel = np.concatenate([one.cell[:, 0] for one in runs])
    busy, covered = (
        np.bincount(kernel, np.concatenate(times), kernels)
        for times in ([one.duration for one in runs], [one.covered for one in runs])
    )
    return busy.astype(np.float64), covered.astype(np.float64)


def _named(kernel: Kernel) -> dict[str, Any]:
    return dict(zip(("name", "grid", "block"), kernel, strict=True))


def _enough(matched: MatchedTimes) -> Ints:
    """Return the kernels of which there are enough on both sides."""
    return np.flatnonzero((matched.count_a >= FEWEST) & (matched.count_b >= FEWEST))


def _why_nothing(ranks: Sequence[OfRank]) -> str:
    """Say why there is no row."""
    in_steps = sum(one.in_steps for one in ranks)
    if not in_steps or not sum(one.in_steps_against for one in ranks):
        which = "runs compared with have" if in_steps else "runs have"
        return f"the {which} no kernel that a step launched, on a rank that both sides have"
    overlapped = sum(one.overlapped for one in ranks)
    if not overlapped:
        return "no compute kernel inside a step is covered by communication to 90 % or more"
    return (
        f"no kernel comes {FEWEST} times beside communication and {FEWEST} times in the runs compared "
        f"with: {sum(one.unmatched for one in ranks)} of {overlapped} have no counterpart (same name, grid, "
        "block and occurrence in the step)"
    )


def _limits(runs: Sequence[RunData], against: Sequence[RunData], ranks: Sequence[OfRank]) -> list[str]:
    """Say what limits the rows."""
    said = []
    if any(one.uncorrected for one in ranks):
        said.append("no kernel of the runs is alone: the slowdowns are not corrected for clocks")
    if overlapped := sum(one.overlapped_against for one in ranks):
        said.append(f"the runs compared with communicate too, beside {overlapped} of their kernels")
    if unmatched := sum(one.unmatched for one in ranks):
        overlapped = sum(one.overlapped for one in ranks)
        said.append(f"{unmatched} of {overlapped} overlapped kernels have no counterpart")
    if alone := {rank for run in runs for rank in run.timeline_ranks} - {one.rank for one in ranks}:
        said.append(f"not in the runs compared with: ranks {', '.join(map(str, sorted(alone)))}")
    if min(len(runs), len(against)) < 2:
        said.append("one run on a side: the intervals hold for these runs only")
    return said
