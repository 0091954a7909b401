"""Declarations: the parts of a step's time, and the causes of idle GPUs."""

from hpcprof.analysis.framework.declaration import (
    OPERATIONS,
    RANGES,
    WORK,
    Events,
    Part,
    Policy,
    SampleBasis,
    Scope,
    declare,
)
from hpcprof.analysis.steps.step_set import COUNTED, StepRule
from hpcprof.profiles.losses import Subject

OUTSIDE_STEPS = "outside steps"
"""The name of ``uneven_ns`` of ``step_kinds`` in reports: elapsed time of a rank outside its steps."""

ANALYSES = (
    declare(
        "step_parts",
        "Parts of each step by rank",
        "rank step start_ns wall_ns compute_ns exposed_comm_ns exposed_mem_ns idle_ns",
        function="account.step_account:step_parts",
        events=Events(WORK, launches=True, steps=True),
        sort_by=("step",),
        policy=Policy.WITH_EVENTS,
        memory_heavy=True,
        steps=frozenset(),
    ),
    declare(
        "exposed_communication",
        "Intervals of exposed communication",
        "rank start_ns end_ns",
        function="account.step_account:exposed_communication",
        events=Events(OPERATIONS | RANGES | {Subject.OPERATOR}),
        sample_basis=SampleBasis.OPERATIONS,
        policy=Policy.WITH_EVENTS,
    ),
    declare(
        "step_account",
        "Account of each step",
        "rank step kind wall_ns compute_ns exposed_comm_ns wait_for_peer_ns exposed_mem_ns idle_ns",
        scope=Scope.RUN,
        function="account.step_account:step_account",
        map="hpcprof.analysis.account.step_account:divide",
        map_over=Part.RANKS,
        map_needs=("step_parts", "exposed_communication"),
        sort_by=("rank", "step"),
        steps=frozenset(),
    ),
    declare(
        "step_kinds",
        "Account of the mean step, by kind",
        "kind steps counted_steps once_steps share_pct:float elapsed_ns wall_p50_ns compute_ns "
        "exposed_comm_ns wait_for_peer_ns exposed_mem_ns idle_ns uneven_ns",
        scope=Scope.RUN,
        function="account.step_account:step_kinds",
        map="hpcprof.analysis.account.step_account:divide",
        map_over=Part.RANKS,
        map_needs=("step_parts", "exposed_communication"),
        sort_by=("kind",),
        steps=COUNTED,
    ),
    declare(
        "idle_causes",
        "Idle time of the mean step by what the next operation waits for",
        "rank cause:text range:text api:text idle_ns_per_step gaps",
        function="account.idle_causes:idle_causes",
        events=Events(WORK, launches=True, steps=True),
        sort_by=("-idle_ns_per_step",),
        steps=frozenset({StepRule.ENDED}),
        memory_heavy=True,
        policy=Policy.LAZY,
    ),
    declare(
        "step_idle_causes",
        "Idle time of each step by cause",
        "rank step cause:text range:text idle_ns",
        function="account.idle_causes:step_idle_causes",
        events=Events(WORK, launches=True, steps=True),
        sort_by=("step", "-idle_ns"),
        steps=frozenset(),
        memory_heavy=True,
        policy=Policy.LAZY,
    ),
    declare(
        "os_calls",
        "Calls of the OS runtime",
        "rank call:text kind:text calls total_ns ns_per_step max_ns",
        "rank call kind calls total_ns ns_per_step max_ns",
        function="account.os_calls:os_calls",
        events=Events(RANGES | {Subject.CALL, Subject.OS_CALL, Subject.EVENT}, steps=True),
        sort_by=("-total_ns",),
        steps=frozenset(),
    ),
)
