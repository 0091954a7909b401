"""The comparison of candidate runs with baseline runs, and its conclusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcprof.analysis.comparison.compare import INCONCLUSIVE, MATERIAL_PCT, NO_STATISTICS, REGRESSION
from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.results.across_runs import compare_sides
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.run_names import find_known_runs
from hpcprof.results.store.store import Store
from hpcprof.submit.runs.directory import Run


@dataclass(frozen=True)
class Comparison:
    """The runs of both sides, and the table of the analysis ``compare``, whose side A is the baseline."""

    baseline: list[Run]
    candidate: list[Run]
    analysis: Analysis
    table: AnalysisTable

    @property
    def regressed(self) -> bool:
        """Whether the candidate is slower, by the metric that decides: that of the first row."""
        return any(row["verdict"] == REGRESSION for row in self.table.rows[:1])

    def conclusion(self) -> str:
        """Return the conclusion in a sentence; empty where there is neither a regression nor a doubt."""
        for row in self.table.rows[:1]:
            if row["verdict"] == REGRESSION:
                return f"Regression: {row['metric']}."
            if row["verdict"].endswith(NO_STATISTICS):
                return "Inconclusive: give at least two runs per side."
            if row["verdict"] == INCONCLUSIVE:
                return f"Inconclusive: neither a change of {row['metric']} nor its absence is shown."
        return ""


def compare_runs(
    baseline: Sequence[str],
    candidate: Sequence[str],
    store: Store,
    runs_dir: Path,
    margin_pct: float = MATERIAL_PCT,
    force: bool = False,
) -> Comparison:
    """Compare candidate runs with baseline runs, both as users refer to them.

    ``margin_pct`` and ``force`` as in `hpcprof.results.across_runs.compare_sides`.

    Raises
    ------
    UsageError
        If a run is unknown or listed twice on one side, or the runs are of different programs or numbers of
        ranks.
    HpcprofError
        If a run has nothing to compare.
    """
    a, b = (find_known_runs(side, runs_dir, store) for side in (baseline, candidate))
    table = compare_sides(b, a, store, margin_pct, force)
    return Comparison(a, b, ACROSS_RUNS["compare"], table)
