"""The list of analyses over several runs: name, columns and where the function stands."""

from __future__ import annotations

from dataclasses import replace

from hpcprof.analysis.framework.registry import ANALYSES, SLOWDOWN, Analysis, Scope, columns

ACROSS_RUNS: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (
        Analysis(
            "slowdown_pairs",
            "Kernels beside communication against runs without it",
            Scope.PAIR,
            columns(f"rank name:text grid:text block:text {SLOWDOWN} overlap_pct:float"),
            "hpcprof.analysis.slowdown.against_baseline:slowdown_pairs",
        ),
        Analysis(
            "slowdown_by_overlap",
            "Slowdown by how much communication overlaps kernels of a family",
            Scope.PAIR,
            columns(f"rank family:text covered:text overlap_pct:float {SLOWDOWN}"),
            "hpcprof.analysis.slowdown.by_overlap:slowdown_by_overlap",
        ),
        Analysis(
            "compare",
            "Runs against other runs",
            Scope.PAIR,
            columns(
                "metric:text a:float b:float ratio:float ci_low:float ci_high:float n_a n_b verdict:text"
            ),
            "hpcprof.analysis.comparison.compare:compare",
            needs=("steps_summary", "step_times", "phases", "breakdown", "overlap", "kernels"),
        ),
        replace(
            ANALYSES["roofline"],
            scope=Scope.PAIR,
            function="hpcprof.analysis.hardware.roofline:of_two_sides",
        ),
        Analysis(
            "scaling",
            "Step times by the number of ranks",
            Scope.STORE,
            columns(
                "workload:text parameters:text ranks nodes runs step_p50_ns "
                "speedup:float efficiency:float ci_low:float ci_high:float"
            ),
            "hpcprof.analysis.comparison.scaling:scaling",
            needs=("steps_summary",),
        ),
    )
}
"""The analyses over several runs, computed when they are asked for; ``roofline`` is also one of one run."""
