"""Slowdown by the share of a kernel that communication covers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.run_differences import SIDE_NAMES, describe_differences
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown import against_baseline
from hpcprof.analysis.slowdown.kernel_instances import OVERLAPPED_SHARE
from hpcprof.analysis.slowdown.matched_times import (
    EXPECTED_DIFFERENCES,
    MatchedTimes,
    Occurrences,
    PairedRank,
    StepRatios,
    pair_ranks,
    percent,
    slowdown_columns,
)
from hpcprof.analysis.slowdown.within_run import MIN_LAUNCHES
from hpcprof.common.units import named_ranks
from hpcprof.profiles.kernel_classification import FAMILIES, family
from hpcprof.profiles.timeline import Ints, Mask

ALL_FAMILIES = "(all)"
"""The family in the rows over all kernels."""

NOT_COVERED = "0 %"
COVERED = f">= {OVERLAPPED_SHARE:.0%}".replace("%", " %")
"""The launches that `slowdown_pairs` compares."""

_PARTS = (
    ("0-30 %", 0.0, 0.3),
    ("30-60 %", 0.3, 0.6),
    (f"60-{OVERLAPPED_SHARE:.0%}".replace("%", " %"), 0.6, OVERLAPPED_SHARE),
)
"""Classes of launches by the share that communication covers: above the first number, up to the second."""


def slowdown_by_overlap(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compare launches with their counterparts in runs without communication, by the share that it covers.

    Matching, slowdown and interval are those of `slowdown_pairs`. A row summarizes the launches of a family,
    or of all families, of which communication covers a certain share (``covered``), weighted by time;
    ``overlap_pct`` is the share of their time that it covers. The control are the launches of all families
    that nothing covers; every slowdown except their own is divided by theirs. A row needs at least 5
    launches on each side.
    """
    return combine_ranks(
        runs, against, [row for pair in pair_ranks(runs, against) for row in compare_rank(pair)]
    )


def slowdown_pairs_and_by_overlap(
    runs: Sequence[RunData], against: Sequence[RunData]
) -> tuple[Outcome, Outcome]:
    """Return what `slowdown_pairs` and `slowdown_by_overlap` return, but read each timeline only once."""
    pairs: list[against_baseline.RankRows] = []
    rows: list[dict[str, Any]] = []
    for pair in pair_ranks(runs, against):
        pairs.append(against_baseline.compare_rank(pair))
        rows += compare_rank(pair)
    return against_baseline.combine_ranks(runs, against, pairs), combine_ranks(runs, against, rows)


def combine_ranks(
    runs: Sequence[RunData], against: Sequence[RunData], rows: Sequence[dict[str, Any]]
) -> Outcome:
    """Return the rows of all ranks, or the reason why there are none."""
    if not any(row["covered"] != NOT_COVERED for row in rows):
        return no_rows(
            f"no family of kernels has {MIN_LAUNCHES} launches that communication overlaps, inside a step "
            "and with a counterpart in the baseline runs"
        )
    notes = describe_differences(runs, against, SIDE_NAMES, EXPECTED_DIFFERENCES)
    controlled = {
        row["rank"] for row in rows if (row["family"], row["covered"]) == (ALL_FAMILIES, NOT_COVERED)
    }
    if uncorrected := {row["rank"] for row in rows} - controlled:
        notes.insert(0, f"no control on {named_ranks(sorted(uncorrected))}: not corrected for clocks")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(notes))


def compare_rank(pair: PairedRank) -> Iterator[dict[str, Any]]:
    """Yield the rows of one rank."""
    families = np.array([family(name) for name, _, _ in pair.kernels])
    all_kernels = np.arange(len(families))
    control = pair.alone
    control_ratios = (
        StepRatios.of(control, all_kernels) if control.candidate_count.sum() >= MIN_LAUNCHES else None
    )
    for covered, masks, matched in _launches_by_share(pair):
        for name in (ALL_FAMILIES, *FAMILIES):
            kernels = all_kernels if name == ALL_FAMILIES else np.flatnonzero(families == name)
            if (
                min(matched.candidate_count[kernels].sum(), matched.baseline_count[kernels].sum())
                < MIN_LAUNCHES
            ):
                continue
            share = {"overlap_pct": _share(pair.candidate, masks, kernels)}
            slowdown = slowdown_columns(
                matched, kernels, None if (covered, name) == (NOT_COVERED, ALL_FAMILIES) else control_ratios
            )
            yield {"rank": pair.rank, "family": name, "covered": covered} | share | slowdown


def _launches_by_share(pair: PairedRank) -> Iterator[tuple[str, list[Mask], MatchedTimes]]:
    """Yield the groups of launches by covered share: the label, one mask per run, and the matched times."""
    yield NOT_COVERED, [run.alone for run in pair.candidate], pair.alone
    for label, low, high in _PARTS:
        masks = [
            (run.covered > low * run.duration) & (run.covered <= high * run.duration) & ~run.overlapped
            for run in pair.candidate
        ]
        yield label, masks, pair.matcher.matched(masks)
    yield COVERED, [run.overlapped for run in pair.candidate], pair.overlapped


def _share(runs: list[Occurrences], masks: list[Mask], kernels: Ints) -> float:
    """Return the percentage of the time of the masked launches of some kernels that communication covers."""
    kernel_masks = [mask & np.isin(run.key[:, 0], kernels) for run, mask in zip(runs, masks, strict=True)]
    covered, duration = (
        sum(int(times[mask].sum()) for times, mask in zip(column, kernel_masks, strict=True))
        for column in ([run.covered for run in runs], [run.duration for run in runs])
    )
    return percent(covered, duration)
