"""Declarations: the parts of a step's time, and the causes of idle GPUs."""

from functools import partial

from hpcprof.analysis.framework.declaration import (
    OPERATIONS,
    RANGES,
    WORK,
    Events,
    Part,
    Policy,
    SampleBasis,
    declare,
)
from hpcprof.analysis.steps.step_set import COUNTED, StepRule
from hpcprof.profiles.losses import Subject

OUTSIDE_STEPS = "outside steps"
"""The name of ``uneven_ns`` of ``step_kinds`` in reports: elapsed time of a rank outside its steps."""

_account_analysis = partial(declare, module="account.step_account")
_divided_account = partial(
    _account_analysis,
    map="hpcprof.analysis.account.step_account:divide",
    map_over=Part.RANKS,
    map_needs=("step_parts", "exposed_communication"),
)
_idle_time_analysis = partial(
    declare,
    module="account.idle_causes",
    events=Events(WORK, launches=True, steps=True),
    memory_heavy=True,
    policy=Policy.LAZY,
)

ANALYSES = (
    _account_analysis(
        "step_parts",
        "Parts of each step by rank",
        "rank step start_ns wall_ns compute_ns exposed_comm_ns exposed_mem_ns idle_ns",
        events=Events(WORK, launches=True, steps=True),
        sort_by=("step",),
        policy=Policy.WITH_EVENTS,
        memory_heavy=True,
        steps=frozenset(),
    ),
    _account_analysis(
        "exposed_communication",
        "Intervals of exposed communication",
        "rank start_ns end_ns",
        events=Events(OPERATIONS | RANGES | {Subject.OPERATOR}),
        sample_basis=SampleBasis.OPERATIONS,
        policy=Policy.WITH_EVENTS,
    ),
    _divided_account(
        "step_account",
        "Account of each step",
        "rank step kind wall_ns compute_ns exposed_comm_ns wait_for_peer_ns exposed_mem_ns idle_ns",
        sort_by=("rank", "step"),
        steps=frozenset(),
    ),
    _divided_account(
        "step_kinds",
        "Account of the mean step, by kind",
        "kind steps counted_steps once_steps share_pct:float elapsed_ns wall_p50_ns compute_ns "
        "exposed_comm_ns wait_for_peer_ns exposed_mem_ns idle_ns uneven_ns",
        sort_by=("kind",),
        steps=COUNTED,
    ),
    _idle_time_analysis(
        "idle_causes",
        "Idle time of the mean step by what the next operation waits for",
        "rank cause:text range:text api:text idle_ns_per_step gaps",
        sort_by=("-idle_ns_per_step",),
        steps=frozenset({StepRule.ENDED}),
    ),
    _idle_time_analysis(
        "step_idle_causes",
        "Idle time of each step by cause",
        "rank step cause:text range:text idle_ns",
        sort_by=("step", "-idle_ns"),
        steps=frozenset(),
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
