"""Steps and their phases."""

from functools import partial

from hpcprof.analysis.framework.declaration import (
    IN_RANGES,
    RANGES,
    Events,
    Policy,
    SampleBasis,
    Scope,
    declare,
)
from hpcprof.analysis.steps.step_set import StepRule

_step_analysis = partial(declare, module="steps.phases", steps=frozenset())

ANALYSES = (
    declare(
        "step_ranges",
        "Step range",
        "rank range:text source:text instances coverage_pct:float chosen",
        "rank range chosen source instances coverage_pct",
        function="steps.step_ranges:step_ranges",
        events=Events(RANGES),
    ),
    _step_analysis(
        "phases",
        "Phase time",
        "rank phase:text steps p50_ns p95_ns p99_ns mean_ns stddev_ns gpu_span_p50_ns",
        "rank phase steps p50_ns gpu_span_p50_ns p95_ns mean_ns stddev_ns",
        20,
        events=Events(IN_RANGES, launches=True, steps=True),
    ),
    _step_analysis(
        "phase_times",
        "Phase time by step",
        "rank step phase:text wall_ns",
        events=Events(IN_RANGES, launches=True, steps=True),
        sort_by=("step",),
        policy=Policy.WITH_EVENTS,
    ),
    _step_analysis(
        "step_times",
        "Step time by rank",
        "rank step wall_ns gpu_span_ns",
        events=Events(IN_RANGES, launches=True, steps=True),
        sort_by=("step",),
    ),
    _step_analysis(
        "steps",
        "Step time over ranks",
        "step p50_ns max_ns min_ns slowest_rank",
        scope=Scope.RUN,
        needs=("step_times",),
        sort_by=("step",),
        sample_basis=SampleBasis.RANKS,
    ),
    _step_analysis(
        "steps_summary",
        "Step time",
        "steps ranks p50_ns p95_ns p99_ns mean_ns stddev_ns min_ns max_ns gpu_span_p50_ns",
        "steps ranks p50_ns gpu_span_p50_ns p95_ns p99_ns min_ns max_ns",
        10,
        scope=Scope.RUN,
        steps=frozenset({StepRule.COMMON}),
        needs=("step_times",),
    ),
)
