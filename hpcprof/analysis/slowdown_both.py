"""The two analyses of a study of slowdown together: what they read and match is the same."""

from __future__ import annotations

from collections.abc import Sequence

from hpcprof.analysis import slowdown_by_overlap, slowdown_pairs
from hpcprof.analysis.outcome import Outcome
from hpcprof.analysis.paired_ranks import paired
from hpcprof.analysis.run_data import RunData


def both(runs: Sequence[RunData], against: Sequence[RunData]) -> tuple[Outcome, Outcome]:
    """Return what `slowdown_pairs` and `slowdown_by_overlap` return, and read each timeline once."""
    pairs, by_overlap = [], []
    for pair in paired(runs, against):
        pairs.append(slowdown_pairs.of_rank(pair))
        by_overlap.append(slowdown_by_overlap.of_rank(pair))
    return (
        slowdown_pairs.over_ranks(runs, against, pairs),
        slowdown_by_overlap.over_ranks(runs, against, by_overlap),
    )
