"""Collectives on each rank and across ranks, and the ranks that are late to them."""

from functools import partial

from hpcprof.analysis.framework.declaration import WORK, Activity, Events, Policy, SampleBasis, declare
from hpcprof.analysis.steps.step_set import StepRule
from hpcprof.profiles.losses import Subject

COST_PCT = 5.0
"""Minimum cost of a straggler's lateness, in percent of the elapsed time per step."""

EVEN_PCT = 1.0
"""Maximum upper bound of an even rank's lateness, in percent of the elapsed time per step."""

_all_rank_analysis = partial(declare, module="collectives.across_ranks")
_waiting_analysis = partial(
    declare,
    module="collectives.skew",
    map="hpcprof.analysis.collectives.skew:find_waiting",
    steps=frozenset({StepRule.KNOWN_LATENESS}),
)

ANALYSES = (
    declare(
        "rank_collectives",
        "Collectives by rank",
        "rank op:text comm_id:text seq bytes comm_ranks world_ranks fused part start_ns end_ns "
        "exposed_ns step peer comm_peer",
        "rank op seq bytes start_ns exposed_ns step",
        function="collectives.per_rank:rank_collectives",
        events=Events(WORK | {Subject.COLLECTIVE}, launches=True),
        policy=Policy.WITH_EVENTS,
    ),
    _all_rank_analysis(
        "collectives",
        "Collectives across ranks",
        "op:text comm_id:text seq bytes ranks latency_ns algbw_gbps:float busbw_gbps:float "
        "first_rank last_rank spread_ns",
        "op seq bytes latency_ns busbw_gbps last_rank spread_ns",
        map="hpcprof.analysis.collectives.across_ranks:list_collectives",
        policy=Policy.LAZY,
    ),
    _all_rank_analysis(
        "collectives_summary",
        "Collectives by operation and size",
        "op:text comm_id:text bytes ranks count latency_p50_ns algbw_p50_gbps:float "
        "busbw_p50_gbps:float spread_p50_ns",
        "op bytes ranks count latency_p50_ns busbw_p50_gbps spread_p50_ns",
        50,
        map="hpcprof.analysis.collectives.across_ranks:list_collectives",
        about=Activity.GPU,
    ),
    _all_rank_analysis(
        "point_to_point",
        "Messages between two ranks",
        "sender receiver comm_id:text seq bytes latency_ns algbw_gbps:float last_rank spread_ns",
        "sender receiver seq bytes latency_ns algbw_gbps last_rank spread_ns",
        map="hpcprof.analysis.collectives.across_ranks:list_messages",
        policy=Policy.LAZY,
    ),
    _all_rank_analysis(
        "point_to_point_summary",
        "Messages by pair and size",
        "sender receiver comm_id:text bytes count latency_p50_ns algbw_p50_gbps:float spread_p50_ns",
        "sender receiver bytes count latency_p50_ns algbw_p50_gbps spread_p50_ns",
        map="hpcprof.analysis.collectives.across_ranks:list_messages",
    ),
    declare(
        "expert_balance",
        "Balance of experts",
        "layer rank sent_bytes received_bytes compute_ns wait_ns waits_for",
        "layer rank compute_ns wait_ns waits_for",
        function="collectives.expert_balance:expert_balance",
        map="hpcprof.analysis.collectives.expert_balance:layers",
        sample_basis=SampleBasis.OPERATIONS,
    ),
    _waiting_analysis(
        "skew_summary",
        "Cost of late ranks",
        "rank steps lateness_p50_ns lateness_low_ns lateness_high_ns uncertainty_ns elapsed_ns cost_ns "
        "cost_pct:float verdict:text",
        "rank steps lateness_p50_ns lateness_low_ns lateness_high_ns cost_ns cost_pct verdict",
        needs=("step_kinds",),
    ),
    _waiting_analysis(
        "skew",
        "Skew between ranks",
        "rank collectives wait_ns times_last pct_last:float lateness_p50_ns verdict:text",
        position=60,
        needs=("skew_summary",),
        about=Activity.GPU,
        compared_by="lateness_p50_ns",
    ),
)
