"""Collectives on each rank and across ranks, and the ranks that are late to them."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import WORK, Activity, Analysis, Events, Scope, columns, names
from hpcprof.profiles.losses import Subject

COST_PCT = 5.0
"""A late rank is a straggler if its lateness costs at least this percentage of the step time."""

EVEN_PCT = 1.0
"""A rank is even if its lateness certainly costs less than this percentage of the step time."""

ANALYSES = (
    Analysis(
        "rank_collectives",
        "Collectives by rank",
        Scope.RANK,
        columns(
            "rank op:text comm_id:text seq bytes comm_ranks world_ranks fused part start_ns end_ns "
            "exposed_ns step peer comm_peer"
        ),
        "hpcprof.analysis.collectives.per_rank:rank_collectives",
        events=Events(WORK | {Subject.COLLECTIVE}, launches=True),
        main_columns=("rank", "op", "seq", "bytes", "start_ns", "exposed_ns", "step"),
        kept_with_events=True,
    ),
    Analysis(
        "collectives",
        "Collectives across ranks",
        Scope.RUN,
        columns(
            "op:text comm_id:text seq bytes ranks latency_ns algbw_gbps:float busbw_gbps:float "
            "first_rank last_rank spread_ns"
        ),
        "hpcprof.analysis.collectives.across_ranks:collectives",
        map="hpcprof.analysis.collectives.across_ranks:list_collectives",
        main_columns=("op", "seq", "bytes", "latency_ns", "busbw_gbps", "last_rank", "spread_ns"),
        when_asked=True,
    ),
    Analysis(
        "collectives_summary",
        "Collectives by operation and size",
        Scope.RUN,
        columns(
            "op:text comm_id:text bytes ranks count latency_p50_ns algbw_p50_gbps:float "
            "busbw_p50_gbps:float spread_p50_ns"
        ),
        "hpcprof.analysis.collectives.across_ranks:collectives_summary",
        map="hpcprof.analysis.collectives.across_ranks:list_collectives",
        main_columns=("op", "bytes", "ranks", "count", "latency_p50_ns", "busbw_p50_gbps", "spread_p50_ns"),
        report_position=50,
        about=Activity.GPU,
    ),
    Analysis(
        "point_to_point",
        "Messages between two ranks",
        Scope.RUN,
        columns("sender receiver comm_id:text seq bytes latency_ns algbw_gbps:float last_rank spread_ns"),
        "hpcprof.analysis.collectives.across_ranks:point_to_point",
        map="hpcprof.analysis.collectives.across_ranks:list_messages",
        main_columns=names("sender receiver seq bytes latency_ns algbw_gbps last_rank spread_ns"),
        when_asked=True,
    ),
    Analysis(
        "point_to_point_summary",
        "Messages by pair and size",
        Scope.RUN,
        columns("sender receiver comm_id:text bytes count latency_p50_ns algbw_p50_gbps:float spread_p50_ns"),
        "hpcprof.analysis.collectives.across_ranks:point_to_point_summary",
        map="hpcprof.analysis.collectives.across_ranks:list_messages",
        main_columns=names("sender receiver bytes count latency_p50_ns algbw_p50_gbps spread_p50_ns"),
    ),
    Analysis(
        "skew_summary",
        "Cost of late ranks",
        Scope.RUN,
        columns(
            "rank steps lateness_p50_ns lateness_low_ns lateness_high_ns uncertainty_ns step_p50_ns "
            "cost_pct:float verdict:text"
        ),
        "hpcprof.analysis.collectives.skew:skew_summary",
        map="hpcprof.analysis.collectives.skew:waiting",
        needs=("step_times",),
        main_columns=(
            *("rank", "steps", "lateness_p50_ns", "lateness_low_ns", "lateness_high_ns", "uncertainty_ns"),
            *("cost_pct", "verdict"),
        ),
    ),
    Analysis(
        "skew",
        "Skew between ranks",
        Scope.RUN,
        columns("rank collectives wait_ns times_last pct_last:float lateness_p50_ns verdict:text"),
        "hpcprof.analysis.collectives.skew:skew",
        map="hpcprof.analysis.collectives.skew:waiting",
        needs=("skew_summary",),
        report_position=60,
        about=Activity.GPU,
        compared_by="lateness_p50_ns",
    ),
)
