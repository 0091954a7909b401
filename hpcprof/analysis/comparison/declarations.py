"""Runs compared with other runs."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import Analysis, Scope, columns

ANALYSES = (
    Analysis(
        "compare",
        "Comparison of runs",
        Scope.PAIR,
        columns("metric:text a:float b:float ratio:float ci_low:float ci_high:float n_a n_b verdict:text"),
        "hpcprof.analysis.comparison.compare:compare",
        needs=("steps_summary", "step_times", "phases", "breakdown", "overlap", "kernels"),
        main_columns=("metric", "a", "b", "ratio", "ci_low", "ci_high", "verdict"),
    ),
    Analysis(
        "scaling",
        "Scaling with the number of ranks",
        Scope.STORE,
        columns(
            "program:text workload:text kind:text parameters:text ranks nodes runs step_p50_ns "
            "speedup:float efficiency:float ci_low:float ci_high:float"
        ),
        "hpcprof.analysis.comparison.scaling:scaling",
        needs=("steps_summary",),
        main_columns=(
            *("program", "kind", "parameters", "ranks", "step_p50_ns"),
            *("speedup", "efficiency", "ci_low", "ci_high"),
        ),
    ),
)
