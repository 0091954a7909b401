"""Declarations: what-if analyses of tables of operations."""

from hpcprof.analysis.framework.declaration import Events, Scope, declare
from hpcprof.analysis.steps.step_set import StepRule
from hpcprof.profiles.losses import Subject

ANALYSES = (
    declare(
        "operation_slowdowns",
        "Slowdown by the operations of a rank, a stage, a replica or a name",
        "by:text value:text instances step_ns slowdown:float",
        scope=Scope.RUN,
        function="explain.explanation:comes_with_explanation",
        events=Events(frozenset({Subject.OPERATOR, Subject.COLLECTIVE})),
        sort_by=("-slowdown",),
        steps=frozenset({StepRule.REPLAYED}),
    ),
)
