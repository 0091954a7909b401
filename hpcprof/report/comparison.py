"""The comparison of candidate runs with baseline runs, and its conclusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcprof.analysis.comparison.compare import NO_STATISTICS, REGRESSION
from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.results.across_runs import over_pair
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.store.store import Store
from hpcprof.submit.runs.directory import Run, find_runs


@dataclass(frozen=True)
class Comparison:
    """The runs of both sides, and the table of the analysis ``compare``, whose side A is the baseline."""

    baseline: list[Run]
    candidate: list[Run]
    analysis: Analysis
    table: AnalysisTable

    def regressions(self) -> list[str]:
        """Return the metrics in which the candidate is slower."""
        return [row["metric"] for row in self.table.rows if row["verdict"] == REGRESSION]

    def conclusion(self) -> str:
        """Return the conclusion in a sentence; empty where there is neither a regression nor a doubt."""
        if regressions := self.regressions():
            return f"Regression: {', '.join(regressions)}."
        if any(row["verdict"].endswith(NO_STATISTICS) for row in self.table.rows):
            return "Inconclusive: give at least two runs per side."
        return ""


def compare_runs(
    baseline: Sequence[str], candidate: Sequence[str], store: Store, runs_dir: Path
) -> Comparison:
    """Compare candidate runs with baseline runs, both as users refer to them.

    Raises
    ------
    UsageError
        If a run is unknown or listed twice on one side.
    HpcprofError
        If a run has nothing to compare.
    """
    a, b = (
        [run for reference in side for run in find_runs(reference, runs_dir)]
        for side in (baseline, candidate)
    )
    analysis = ACROSS_RUNS["compare"]
    return Comparison(a, b, analysis, over_pair(analysis, b, a, store))
