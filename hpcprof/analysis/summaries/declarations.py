"""Summaries by name: kernels, memory operations, launches, API calls, ranges, allocations."""

from hpcprof.analysis.framework.declaration import (
    CALLS,
    COPIES,
    IN_RANGES,
    KERNELS,
    RANGES,
    SHAPES,
    SIZES,
    Activity,
    Events,
    Policy,
    declare,
)
from hpcprof.profiles.losses import Subject


def _statistics(prefix: str = "") -> str:
    """Return the five statistics of a summary; averages are floats because they carry one decimal."""
    return f"{prefix}avg_ns:float {prefix}med_ns:float {prefix}min_ns {prefix}max_ns {prefix}stddev_ns:float"


def _held_columns(memory: str) -> str:
    return " ".join(f"{memory}_{statistic}_bytes" for statistic in ("min", "mean", "p50", "p95", "max"))


_SUMMARY = "total_ns time_pct:float " + _statistics()

ANALYSES = (
    declare(
        "kernels",
        "Kernel time by name",
        f"rank name:text instances {_SUMMARY} class:text",
        "rank name class instances total_ns time_pct med_ns",
        80,
        function="summaries.kernels:kernels",
        events=Events(KERNELS),
        sort_by=("-total_ns", "instances"),
        about=Activity.GPU,
        first_rank_only=True,
    ),
    declare(
        "kernels_by_shape",
        "Kernel time by name, grid and block",
        f"rank name:text instances {_SUMMARY} class:text grid:text block:text",
        "rank name grid block instances total_ns med_ns",
        function="summaries.kernels:kernels_by_shape",
        events=Events(KERNELS, fields=SHAPES),
        sort_by=("-total_ns", "instances"),
    ),
    declare(
        "memops",
        "Memory copies and sets",
        f"rank operation:text count {_SUMMARY} total_bytes",
        "rank operation count total_ns time_pct med_ns total_bytes",
        82,
        function="summaries.memory:memops",
        events=Events(COPIES, fields=SIZES),
        sort_by=("-total_ns",),
        about=Activity.COPIES,
        first_rank_only=True,
    ),
    declare(
        "launches",
        "Kernel launch time",
        "rank name:text api_name:text pid tid device count queue_count "
        + " ".join(_statistics(part) for part in ("total_", "api_", "queue_", "kernel_")),
        "rank name count api_med_ns queue_med_ns kernel_med_ns",
        function="summaries.api_calls:launches",
        events=Events(CALLS | KERNELS, launches=True),
        sort_by=("-total_avg_ns",),
        memory_heavy=True,
        policy=Policy.LAZY,
    ),
    declare(
        "api",
        "GPU API time by name",
        f"rank name:text num_calls {_SUMMARY}",
        "rank name num_calls total_ns time_pct med_ns",
        130,
        function="summaries.api_calls:api",
        events=Events(CALLS),
        sort_by=("-total_ns",),
        about=Activity.GPU,
        first_rank_only=True,
    ),
    declare(
        "ranges",
        "Ranges on the host",
        f"rank range:text style:text instances {_SUMMARY}",
        "rank range instances total_ns time_pct med_ns",
        120,
        function="summaries.nvtx_gpu_projection:ranges",
        events=Events(RANGES),
        sort_by=("-total_ns",),
        first_rank_only=True,
    ),
    declare(
        "range_gpu",
        "Ranges projected to the GPU (launches of the range's own thread only)",
        "rank range:text style:text proj_total_ns range_total_ns instances "
        + _statistics("proj_")
        + " gpu_ops avg_gpu_ops:float avg_range_lvl:float avg_num_child:float",
        "rank range instances proj_total_ns proj_med_ns gpu_ops",
        110,
        function="summaries.nvtx_gpu_projection:range_gpu",
        events=Events(IN_RANGES, launches=True),
        sort_by=("-proj_total_ns",),
        about=Activity.GPU,
        first_rank_only=True,
        memory_heavy=True,
    ),
    declare(
        "memory_usage",
        "Memory allocator usage",
        "rank device:text count " + _held_columns("allocated") + " " + _held_columns("reserved"),
        "rank device count allocated_max_bytes reserved_max_bytes",
        function="summaries.memory:memory_usage",
        events=Events(frozenset({Subject.ALLOCATION, Subject.EVENT})),
    ),
)
