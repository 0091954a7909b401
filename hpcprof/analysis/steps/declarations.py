"""Steps and their phases."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import (
    IN_RANGES,
    RANGES,
    Analysis,
    Events,
    SampleBasis,
    Scope,
    columns,
)

ANALYSES = (
    Analysis(
        "step_ranges",
        "Step range",
        Scope.RANK,
        columns("rank range:text source:text instances coverage_pct:float chosen"),
        "hpcprof.analysis.steps.step_ranges:step_ranges",
        events=Events(RANGES),
        main_columns=("rank", "range", "chosen", "source", "instances", "coverage_pct"),
    ),
    Analysis(
        "phases",
        "Phase time",
        Scope.RANK,
        columns("rank phase:text steps p50_ns p95_ns p99_ns mean_ns stddev_ns gpu_span_p50_ns"),
        "hpcprof.analysis.steps.phases:phases",
        events=Events(IN_RANGES, launches=True, steps=True),
        main_columns=(
            *("rank", "phase", "steps", "p50_ns", "gpu_span_p50_ns", "p95_ns", "mean_ns"),
            "stddev_ns",
        ),
        report_position=20,
    ),
    Analysis(
        "phase_times",
        "Phase time by step",
        Scope.RANK,
        columns("rank step phase:text wall_ns"),
        "hpcprof.analysis.steps.phases:phase_times",
        events=Events(IN_RANGES, launches=True, steps=True),
        sort_by=("step",),
        kept_with_events=True,
    ),
    Analysis(
        "step_times",
        "Step time by rank",
        Scope.RANK,
        columns("rank step wall_ns gpu_span_ns"),
        "hpcprof.analysis.steps.phases:step_times",
        events=Events(IN_RANGES, launches=True, steps=True),
        sort_by=("step",),
    ),
    Analysis(
        "steps",
        "Step time over ranks",
        Scope.RUN,
        columns("step p50_ns max_ns min_ns slowest_rank"),
        "hpcprof.analysis.steps.phases:steps",
        needs=("step_times",),
        sort_by=("step",),
        sample_basis=SampleBasis.RANKS,
    ),
    Analysis(
        "steps_summary",
        "Step time",
        Scope.RUN,
        columns("steps ranks p50_ns p95_ns p99_ns mean_ns stddev_ns min_ns max_ns gpu_span_p50_ns"),
        "hpcprof.analysis.steps.phases:steps_summary",
        needs=("step_times",),
        main_columns=("steps", "ranks", "p50_ns", "gpu_span_p50_ns", "p95_ns", "p99_ns", "min_ns", "max_ns"),
        report_position=10,
    ),
)
