"""Declarations: the tables that come with an explanation."""

from hpcprof.analysis.framework.declaration import WORK, Events, SampleBasis, Scope, declare
from hpcprof.analysis.steps.step_set import StepRule
from hpcprof.profiles.losses import Subject

ANALYSES = (
    declare(
        "critical_path",
        "Critical path of a step",
        "rank kind:text name:text range:text ns_per_step share_pct:float",
        scope=Scope.RUN,
        function="explain.explanation:comes_with_explanation",
        events=Events(WORK | {Subject.COLLECTIVE}, launches=True, steps=True),
        sort_by=("-ns_per_step",),
        sample_basis=SampleBasis.OPERATIONS,
        steps=frozenset({StepRule.REPLAYED}),
    ),
    declare(
        "profiler_cost",
        "What the profiler adds to the calls of a step",
        "call:text calls_per_step:float cost_ns low_ns high_ns source:text",
        scope=Scope.RUN,
        function="explain.explanation:comes_with_explanation",
        events=Events(WORK | {Subject.CALL}, launches=True, steps=True),
        sample_basis=SampleBasis.OPERATIONS,
        steps=frozenset({StepRule.REPLAYED}),
    ),
)
