"""The list of analyses of one run: name, columns and where the function stands.

Those over several runs are in `hpcprof.analysis.framework.registry_across_runs`. Neither module imports the
functions, so that listing them, making the store's tables and checking a name cost nothing. To add an
analysis, write a module with the function and add a row here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """The type of a column's values."""

    INT = "int"
    FLOAT = "float"
    TEXT = "text"


class Scope(Enum):
    """What an analysis reads: one rank's profile, all ranks of a run, two sides of runs, or many runs."""

    RANK = "rank"
    RUN = "run"
    PAIR = "pair"
    STORE = "store"


class Reads(Enum):
    """What kind of profile an analysis is computed from, and what people call it."""

    TIMELINE = "a timeline of Nsight Systems or PyTorch"
    KERNEL_REPORT = "a profile of Nsight Compute"

    @classmethod
    def of(cls, profile_kind: str) -> Reads:
        """Return what a profile of this kind (``nsys``, ``torch``, ``ncu``) gives."""
        return cls.KERNEL_REPORT if profile_kind == "ncu" else cls.TIMELINE


@dataclass(frozen=True)
class Column:
    """One key of an analysis' rows. The unit is the name's suffix (``_ns``, ``_pct``)."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Analysis:
    """One analysis.

    ``function`` is ``module:name``. A rank analysis is called as ``f(profile)``, with a `Timeline` or a
    `KernelReport` as ``reads`` says; a run analysis as ``f(results)``, where ``results`` maps the names in
    ``needs`` to frames over all ranks; these are rank analyses, or run analyses that stand before it, whose
    reasons are then its own too. A pair analysis is called as ``f(runs, against)``, a store analysis as
    ``f(runs)``, with sequences of `hpcprof.analysis.framework.run_data.RunData` whose tables are those in
    ``needs``. All return an `hpcprof.analysis.framework.outcome.Outcome` whose columns are ``columns``,
    without ``rank`` for rank analyses. ``packed`` marks one of so many rows, read by other analyses, that
    the store keeps those of a rank as one value.
    """

    name: str
    title: str
    scope: Scope
    columns: tuple[Column, ...]
    function: str
    needs: tuple[str, ...] = field(default=())
    reads: Reads = Reads.TIMELINE
    packed: bool = False


def columns(text: str) -> tuple[Column, ...]:
    """Parse ``"rank name:text"``; a name without a type is an int."""
    parts = (item.partition(":") for item in text.split())
    return tuple(Column(name, Kind(kind or "int")) for name, _, kind in parts)


def _statistics(prefix: str = "") -> str:
    """Return the six columns of a summary; averages are floats because they carry one decimal."""
    return f"{prefix}avg_ns:float {prefix}med_ns:float {prefix}min_ns {prefix}max_ns {prefix}stddev_ns:float"


def _held(what: str) -> str:
    """Return the columns of an amount of memory."""
    return " ".join(f"{what}_{statistic}_bytes" for statistic in ("min", "mean", "p50", "p95", "max"))


_SUMMARY = "total_ns time_pct:float " + _statistics()
SLOWDOWN = (
    "alone_n alone_med_ns:float overlapped_n overlapped_med_ns:float "
    "slowdown:float ci_low:float ci_high:float"
)
"""The figures of kernels beside communication against others."""
_PARTS = ("compute", "exposed_comm", "exposed_mem", "idle")

ANALYSES: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (
        Analysis(
            "kernels",
            "GPU kernels by name",
            Scope.RANK,
            columns(f"rank name:text instances {_SUMMARY} class:text"),
            "hpcprof.analysis.summaries.kernels:kernels",
        ),
        Analysis(
            "kernels_by_shape",
            "GPU kernels by name, grid and block",
            Scope.RANK,
            columns(f"rank name:text instances {_SUMMARY} class:text grid:text block:text"),
            "hpcprof.analysis.summaries.kernels_by_shape:kernels_by_shape",
        ),
        Analysis(
            "memops",
            "Memory copies and sets",
            Scope.RANK,
            columns(f"rank operation:text count {_SUMMARY} total_bytes"),
            "hpcprof.analysis.summaries.memory_operations:memops",
        ),
        Analysis(
            "launches",
            "Kernel launches: call, queue, kernel",
            Scope.RANK,
            columns(
                "rank name:text api_name:text pid tid device count queue_count "
                + " ".join(_statistics(part) for part in ("total_", "api_", "queue_", "kernel_"))
            ),
            "hpcprof.analysis.summaries.launches:launches",
        ),
        Analysis(
            "api",
            "CUDA API calls by name",
            Scope.RANK,
            columns(f"rank name:text num_calls {_SUMMARY}"),
            "hpcprof.analysis.summaries.api_calls:api",
        ),
        Analysis(
            "ranges",
            "Ranges on the host",
            Scope.RANK,
            columns(f"rank range:text style:text instances {_SUMMARY}"),
            "hpcprof.analysis.summaries.nvtx_ranges:ranges",
        ),
        Analysis(
            "range_gpu",
            "Ranges projected to the GPU",
            Scope.RANK,
            columns(
                "rank range:text style:text proj_total_ns range_total_ns instances "
                + _statistics("proj_")
                + " gpu_ops avg_gpu_ops:float avg_range_lvl:float avg_num_child:float"
            ),
            "hpcprof.analysis.summaries.nvtx_gpu_projection:range_gpu",
        ),
        Analysis(
            "phases",
            "Phases of a step",
            Scope.RANK,
            columns("rank phase:text steps p50_ns p95_ns p99_ns mean_ns stddev_ns"),
            "hpcprof.analysis.steps.phases:phases",
        ),
        Analysis(
            "step_times",
            "Each step of each rank",
            Scope.RANK,
            columns("rank step latency_ns"),
            "hpcprof.analysis.steps.steps:step_times",
        ),
        Analysis(
            "steps",
            "Steps over ranks (a step's latency is its maximum over ranks)",
            Scope.RUN,
            columns("step p50_ns max_ns min_ns slowest_rank"),
            "hpcprof.analysis.steps.steps:steps",
            needs=("step_times",),
        ),
        Analysis(
            "steps_summary",
            "Latency of a step",
            Scope.RUN,
            columns("steps ranks p50_ns p95_ns p99_ns mean_ns stddev_ns min_ns max_ns"),
            "hpcprof.analysis.steps.steps:steps_summary",
            needs=("step_times",),
        ),
        Analysis(
            "breakdown",
            "Where the GPU's time goes",
            Scope.RANK,
            columns(
                "rank span_ns "
                + " ".join(f"{p}_ns" for p in _PARTS)
                + " "
                + " ".join(f"{p}_pct:float" for p in _PARTS)
            ),
            "hpcprof.analysis.gpu_time.breakdown:breakdown",
        ),
        Analysis(
            "overlap",
            "Communication hidden behind compute",
            Scope.RANK,
            columns("rank comm_ns overlapped_ns overlap_pct:float"),
            "hpcprof.analysis.gpu_time.overlap:overlap",
        ),
        Analysis(
            "kernel_classes",
            "What runs on the GPU at once",
            Scope.RANK,
            columns("rank classes:text ns pct:float"),
            "hpcprof.analysis.gpu_time.concurrency:kernel_classes",
        ),
        Analysis(
            "ncu_kernels",
            "Kernels measured by Nsight Compute",
            Scope.RANK,
            columns(
                "rank id name:text grid:text block:text "
                "compute_throughput_pct:float memory_throughput_pct:float dram_throughput_pct:float "
                "sm_count achieved_occupancy_pct:float theoretical_occupancy_pct:float "
                "l1_hit_pct:float l2_hit_pct:float duration_ns "
                "flops_fp16 flops_fp32 flops_fp64 flops_tensor tensor_type:text dram_bytes"
            ),
            "hpcprof.analysis.hardware.ncu_kernels:ncu_kernels",
            reads=Reads.KERNEL_REPORT,
        ),
        Analysis(
            "ncu_peaks",
            "What the GPU could do at most, by Nsight Compute",
            Scope.RANK,
            columns("rank resource:text peak_per_s:float"),
            "hpcprof.analysis.hardware.ncu_peaks:ncu_peaks",
            reads=Reads.KERNEL_REPORT,
        ),
        Analysis(
            "roofline",
            "Kernels against the roofline",
            Scope.RUN,
            columns(
                "name:text grid:text block:text ai_flop_per_byte:float achieved_flops:float bound:text "
                "pct_of_bound:float ncu_ns in_situ_ns"
            ),
            "hpcprof.analysis.hardware.roofline:of_one_run",
            needs=("ncu_kernels", "ncu_peaks", "kernels_by_shape"),
            reads=Reads.KERNEL_REPORT,
        ),
        Analysis(
            "slowdown",
            "Kernels beside communication against the same kernels alone",
            Scope.RANK,
            columns(f"rank name:text grid:text block:text {SLOWDOWN}"),
            "hpcprof.analysis.slowdown.within_run:slowdown",
        ),
        Analysis(
            "idle",
            "Why a stream waits",
            Scope.RANK,
            columns("rank stream cause:text idle_ns share_pct:float"),
            "hpcprof.analysis.gpu_time.idle:idle",
        ),
        Analysis(
            "queue_length",
            "Operations launched and not begun",
            Scope.RANK,
            columns("rank device stream count mean:float stddev:float min p25:float p50:float p75:float max"),
            "hpcprof.analysis.gpu_time.queue_length:queue_length",
        ),
        Analysis(
            "memory_usage",
            "Memory of the program's allocator",
            Scope.RANK,
            columns("rank device:text count " + _held("allocated") + " " + _held("reserved")),
            "hpcprof.analysis.summaries.allocator:memory_usage",
        ),
        Analysis(
            "hta_breakdown",
            "HolisticTraceAnalysis' temporal breakdown",
            Scope.RANK,
            columns(
                "rank idle_time_us compute_time_us non_compute_time_us kernel_time_us "
                "idle_time_pctg:float compute_time_pctg:float non_compute_time_pctg:float"
            ),
            "hpcprof.analysis.gpu_time.hta_breakdown:hta_breakdown",
        ),
        Analysis(
            "rank_collectives",
            "Each collective of each rank",
            Scope.RANK,
            columns(
                "rank op:text comm_id:text seq bytes comm_ranks world_ranks fused part start_ns end_ns "
                "exposed_ns step"
            ),
            "hpcprof.analysis.collectives.per_rank:rank_collectives",
            packed=True,
        ),
        Analysis(
            "collectives",
            "Collectives over ranks",
            Scope.RUN,
            columns(
                "op:text comm_id:text seq bytes ranks latency_ns algbw_gbps:float busbw_gbps:float "
                "first_rank last_rank spread_ns"
            ),
            "hpcprof.analysis.collectives.across_ranks:collectives",
            needs=("rank_collectives",),
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
            needs=("collectives",),
        ),
        Analysis(
            "skew",
            "Ranks that come late to collectives",
            Scope.RUN,
            columns("rank collectives wait_ns times_last pct_last:float lateness_p50_ns verdict:text"),
            "hpcprof.analysis.collectives.skew:skew",
            needs=("rank_collectives", "step_times"),
        ),
        Analysis(
            "skew_summary",
            "What late ranks cost",
            Scope.RUN,
            columns("rank steps lateness_p50_ns uncertainty_ns step_p50_ns cost_pct:float verdict:text"),
            "hpcprof.analysis.collectives.skew:skew_summary",
            needs=("rank_collectives", "step_times"),
        ),
    )
}
"""The analyses of one run: a collect computes them, the store keeps them."""
