"""The two analyses of a study of slowdown together: what they read and match is the same."""

from __future__ import annotations

from collections.abc import Sequence

from hpcprof.analysis.framework.outcome import Outcome
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown import against_baseline, by_overlap
from hpcprof.analysis.slowdown.rank_pairs import paired


def both(runs: Sequence[RunData], against: Sequence[RunData]) -> tuple[Outcome, Outcome]:
    """Return what `slowdown_pairs` and `slowdown_by_overlap` return, and read each timeline once."""
    by_shape, by_cover = [], []
    for pair in paired(runs, against):
        by_shape.append(against_baseline.of_rank(pair))
        by_cover.append(by_overlap.of_rank(pair))
    return (
        against_baseline.over_ranks(runs, against, by_shape),
        by_overlap.over_ranks(runs, against, by_cover),
    )
