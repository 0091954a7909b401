"""The measurements of Nsight Compute, and the roofline."""

from __future__ import annotations

from dataclasses import replace

from hpcprof.analysis.framework.declaration import Activity, Analysis, Events, Scope, columns
from hpcprof.profiles.losses import Subject
from hpcprof.profiles.readers.declaration import ProfileContent

_ROOFLINE = Analysis(
    "roofline",
    "Roofline",
    Scope.RUN,
    columns(
        "name:text grid:text block:text ai_flop_per_byte:float achieved_flops:float bound:text "
        "pct_of_bound:float ncu_ns in_situ_ns"
    ),
    "hpcprof.analysis.hardware.roofline:roofline_of_run",
    needs=("ncu_kernels", "ncu_peaks", "kernels_by_shape", "device_breakdown"),
    reads=ProfileContent.KERNEL_REPORT,
    main_columns=("name", "ai_flop_per_byte", "achieved_flops", "bound", "pct_of_bound", "in_situ_ns"),
    report_position=90,
)

ANALYSES = (
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
        "hpcprof.analysis.hardware.kernel_counters:ncu_kernels",
        reads=ProfileContent.KERNEL_REPORT,
        main_columns=("rank", "id", "name", "duration_ns", "compute_throughput_pct", "dram_throughput_pct"),
        report_position=100,
    ),
    Analysis(
        "ncu_peaks",
        "GPU peak rates by Nsight Compute",
        Scope.RANK,
        columns("rank resource:text peak_per_s:float"),
        "hpcprof.analysis.hardware.roofline:ncu_peaks",
        reads=ProfileContent.KERNEL_REPORT,
    ),
    Analysis(
        "kernel_counters",
        "Hardware counters by kernel",
        Scope.RANK,
        columns("rank name:text counter:text count total:float mean:float min:float max:float"),
        "hpcprof.analysis.hardware.kernel_counters:kernel_counters",
        events=Events(frozenset({Subject.COUNTER, Subject.EVENT})),
        sort_by=("-total", "count"),
        main_columns=("rank", "name", "counter", "count", "total", "mean"),
        compared_by="total",
        report_position=95,
        about=Activity.GPU,
        first_rank_only=True,
    ),
    _ROOFLINE,
    replace(_ROOFLINE, scope=Scope.PAIR, function="hpcprof.analysis.hardware.roofline:roofline_against"),
)
