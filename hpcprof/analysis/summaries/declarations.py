"""Summaries by name: kernels, memory operations, launches, API calls, ranges, allocations."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import (
    CALLS,
    COPIES,
    IN_RANGES,
    KERNELS,
    RANGES,
    SHAPES,
    SIZES,
    Activity,
    Analysis,
    Events,
    Scope,
    columns,
)
from hpcprof.profiles.losses import Subject


def _statistics(prefix: str = "") -> str:
    """Return the five statistics of a summary; averages are floats because they carry one decimal."""
    return f"{prefix}avg_ns:float {prefix}med_ns:float {prefix}min_ns {prefix}max_ns {prefix}stddev_ns:float"


def _held(what: str) -> str:
    """Return the statistics of an amount of memory."""
    return " ".join(f"{what}_{statistic}_bytes" for statistic in ("min", "mean", "p50", "p95", "max"))


_SUMMARY = "total_ns time_pct:float " + _statistics()

ANALYSES = (
    Analysis(
        "kernels",
        "Kernel time by name",
        Scope.RANK,
        columns(f"rank name:text instances {_SUMMARY} class:text"),
        "hpcprof.analysis.summaries.kernels:kernels",
        events=Events(KERNELS),
        sort_by=("-total_ns", "instances"),
        main_columns=("rank", "name", "class", "instances", "total_ns", "time_pct", "med_ns"),
        report_position=80,
        about=Activity.GPU,
        first_rank_only=True,
    ),
    Analysis(
        "kernels_by_shape",
        "Kernel time by name, grid and block",
        Scope.RANK,
        columns(f"rank name:text instances {_SUMMARY} class:text grid:text block:text"),
        "hpcprof.analysis.summaries.kernels:kernels_by_shape",
        events=Events(KERNELS, fields=SHAPES),
        sort_by=("-total_ns", "instances"),
        main_columns=("rank", "name", "grid", "block", "instances", "total_ns", "med_ns"),
    ),
    Analysis(
        "memops",
        "Memory copies and sets",
        Scope.RANK,
        columns(f"rank operation:text count {_SUMMARY} total_bytes"),
        "hpcprof.analysis.summaries.memory:memops",
        events=Events(COPIES, fields=SIZES),
        sort_by=("-total_ns",),
        main_columns=("rank", "operation", "count", "total_ns", "time_pct", "med_ns", "total_bytes"),
    ),
    Analysis(
        "launches",
        "Kernel launch time",
        Scope.RANK,
        columns(
            "rank name:text api_name:text pid tid device count queue_count "
            + " ".join(_statistics(part) for part in ("total_", "api_", "queue_", "kernel_"))
        ),
        "hpcprof.analysis.summaries.api_calls:launches",
        events=Events(CALLS | KERNELS, launches=True),
        sort_by=("-total_avg_ns",),
        main_columns=("rank", "name", "count", "api_med_ns", "queue_med_ns", "kernel_med_ns"),
        memory_heavy=True,
        when_asked=True,
    ),
    Analysis(
        "api",
        "GPU API time by name",
        Scope.RANK,
        columns(f"rank name:text num_calls {_SUMMARY}"),
        "hpcprof.analysis.summaries.api_calls:api",
        events=Events(CALLS),
        sort_by=("-total_ns",),
        main_columns=("rank", "name", "num_calls", "total_ns", "time_pct", "med_ns"),
        report_position=130,
        about=Activity.GPU,
        first_rank_only=True,
    ),
    Analysis(
        "ranges",
        "Ranges on the host",
        Scope.RANK,
        columns(f"rank range:text style:text instances {_SUMMARY}"),
        "hpcprof.analysis.summaries.nvtx_gpu_projection:ranges",
        events=Events(RANGES),
        sort_by=("-total_ns",),
        main_columns=("rank", "range", "instances", "total_ns", "time_pct", "med_ns"),
        report_position=120,
        first_rank_only=True,
    ),
    Analysis(
        "range_gpu",
        "Ranges projected to the GPU (launches of the range's own thread only)",
        Scope.RANK,
        columns(
            "rank range:text style:text proj_total_ns range_total_ns instances "
            + _statistics("proj_")
            + " gpu_ops avg_gpu_ops:float avg_range_lvl:float avg_num_child:float"
        ),
        "hpcprof.analysis.summaries.nvtx_gpu_projection:range_gpu",
        events=Events(IN_RANGES, launches=True),
        sort_by=("-proj_total_ns",),
        main_columns=("rank", "range", "instances", "proj_total_ns", "proj_med_ns", "gpu_ops"),
        report_position=110,
        about=Activity.GPU,
        first_rank_only=True,
        memory_heavy=True,
    ),
    Analysis(
        "memory_usage",
        "Memory allocator usage",
        Scope.RANK,
        columns("rank device:text count " + _held("allocated") + " " + _held("reserved")),
        "hpcprof.analysis.summaries.memory:memory_usage",
        events=Events(frozenset({Subject.ALLOCATION, Subject.EVENT})),
        main_columns=("rank", "device", "count", "allocated_max_bytes", "reserved_max_bytes"),
    ),
)
