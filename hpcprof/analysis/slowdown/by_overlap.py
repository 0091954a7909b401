"""How the slowdown under communication grows with the share of a kernel that communication covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.comparison.run_differences import LABELS, differences
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown.kernel_instances import OVERLAPPED
from hpcprof.analysis.slowdown.matched_times import MatchedTimes
from hpcprof.analysis.slowdown.rank_pairs import PairedRank, paired
from hpcprof.analysis.slowdown.ratio_estimates import MEANT, SEED, Sides, figures, percent
from hpcprof.analysis.slowdown.step_occurrences import Occurrences
from hpcprof.analysis.slowdown.within_run import FEWEST
from hpcprof.profiles.kernel_families import FAMILIES, family
from hpcprof.profiles.timeline import Ints

ALL = "(all)"
"""Stands for the family in the rows over all kernels."""

NOT_COVERED = "0 %"
COVERED = f">= {OVERLAPPED:.0%}".replace("%", " %")
"""The launches that `slowdown_pairs` compares."""

# The shares of its time that communication covers a launch: above the first and below the second, or equal.
_PARTS = (
    ("0-30 %", 0.0, 0.3),
    ("30-60 %", 0.3, 0.6),
    (f"60-{OVERLAPPED:.0%}".replace("%", " %"), 0.6, OVERLAPPED),
)


def slowdown_by_overlap(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compare launches with their counterparts in runs without communication, by how far it covers them.

    Matching, slowdown and interval are those of `slowdown_pairs`. A row is over the launches of all kernels
    of a family, or of all families, of which communication covers that share (``covered``), weighted by
    time; ``overlap_pct`` is how much of their time it covers. The launches that nothing covers, all families
    together, are the control: every slowdown but their own is divided by it. There is a row from 5 launches
    on each side on.
    """
    return over_ranks(runs, against, [of_rank(pair) for pair in paired(runs, against)])


def over_ranks(
    runs: Sequence[RunData], against: Sequence[RunData], ranks: Sequence[list[dict[str, Any]]]
) -> Outcome:
    """Return the rows of all ranks, or why there are none."""
    rows = [row for of_one in ranks for row in of_one]
    if not any(row["covered"] != NOT_COVERED for row in rows):
        return no_rows(
            f"no family of kernels has {FEWEST} launches beside communication, inside a step and with a "
            "counterpart in the runs compared with"
        )
    said = differences(runs, against, LABELS, MEANT)
    controlled = {row["rank"] for row in rows if (row["family"], row["covered"]) == (ALL, NOT_COVERED)}
    if uncorrected := sorted({row["rank"] for row in rows} - controlled):
        said.insert(0, f"no control on ranks {', '.join(map(str, uncorrected))}: not corrected for clocks")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


def of_rank(pair: PairedRank) -> list[dict[str, Any]]:
    """Return the rows of one rank."""
    return [{"rank": pair.rank} | row for row in _rows(pair)]


def _rows(pair: PairedRank) -> Iterator[dict[str, Any]]:
    families = np.array([family(name) for name, _, _ in pair.kernels])
    every = np.arange(len(families))
    random = np.random.default_rng(SEED)
    control = pair.alone
    clock = Sides.of(control, every, random) if control.count_a.sum() >= FEWEST else None
    for covered, masks, matched in _groups(pair):
        for name in (ALL, *FAMILIES):
            kernels = every if name == ALL else np.flatnonzero(families == name)
            if min(matched.count_a[kernels].sum(), matched.count_b[kernels].sum()) < FEWEST:
                continue
            share = {"overlap_pct": _share(pair.a, masks, kernels)}
            found = figures(
                matched, kernels, None if (covered, name) == (NOT_COVERED, ALL) else clock, random
            )
            yield {"family": name, "covered": covered} | share | found


def _groups(pair: PairedRank) -> Iterator[tuple[str, list[NDArray[np.bool_]], MatchedTimes]]:
    """Yield the groups of launches by their cover, with a mask a run, and matched."""
    yield NOT_COVERED, [one.alone for one in pair.a], pair.alone
    for label, low, high in _PARTS:
        masks = [
            (one.covered > low * one.duration) & (one.covered <= high * one.duration) & ~one.overlapped
            for one in pair.a
        ]
        yield label, masks, pair.cells.matched(masks)
    yield COVERED, [one.overlapped for one in pair.a], pair.beside


def _share(a: list[Occurrences], masks: list[NDArray[np.bool_]], kernels: Ints) -> float:
    """Return how much of the time of the chosen launches of some kernels communication covers, in percent."""
    chosen = [mask & np.isin(one.cell[:, 0], kernels) for one, mask in zip(a, masks, strict=True)]
    covered, duration = (
        sum(int(times[mask].sum()) for times, mask in zip(column, chosen, strict=True))
        for column in ([one.covered for one in a], [one.duration for one in a])
    )
    return percent(covered, duration)
