"""The measurements of Nsight Compute, and the roofline."""

from dataclasses import replace
from functools import partial

from hpcprof.analysis.framework.declaration import Activity, Events, Scope, declare
from hpcprof.profiles.losses import Subject
from hpcprof.profiles.readers.declaration import ProfileContent

_kernel_report_analysis = partial(declare, reads=ProfileContent.KERNEL_REPORT)

_ROOFLINE = _kernel_report_analysis(
    "roofline",
    "Roofline",
    "name:text grid:text block:text ai_flop_per_byte:float achieved_flops:float bound:text "
    "pct_of_bound:float ncu_ns in_situ_ns",
    "name ai_flop_per_byte achieved_flops bound pct_of_bound in_situ_ns",
    position=90,
    scope=Scope.RUN,
    function="hardware.roofline:roofline_of_run",
    needs=("ncu_kernels", "ncu_peaks", "kernels_by_shape", "device_breakdown"),
)

ANALYSES = (
    _kernel_report_analysis(
        "ncu_kernels",
        "Kernels measured by Nsight Compute",
        "rank id name:text grid:text block:text "
        "compute_throughput_pct:float memory_throughput_pct:float dram_throughput_pct:float "
        "sm_count achieved_occupancy_pct:float theoretical_occupancy_pct:float "
        "l1_hit_pct:float l2_hit_pct:float duration_ns "
        "flops_fp16 flops_fp32 flops_fp64 flops_tensor tensor_type:text dram_bytes",
        "rank id name duration_ns compute_throughput_pct dram_throughput_pct",
        position=100,
        function="hardware.kernel_counters:ncu_kernels",
    ),
    _kernel_report_analysis(
        "ncu_occupancy",
        "Occupancy by Nsight Compute",
        "rank id name:text waves_per_sm:float blocks_per_sm limited_by:text "
        "achieved_occupancy_pct:float theoretical_occupancy_pct:float",
        "rank id name waves_per_sm blocks_per_sm limited_by achieved_occupancy_pct",
        position=101,
        function="hardware.kernel_advice:ncu_occupancy",
        compared_by="waves_per_sm",
    ),
    _kernel_report_analysis(
        "ncu_rules",
        "Advice of Nsight Compute's rules",
        "rank name:text rule:text count speedup_pct:float advice:text",
        "rank name count speedup_pct advice",
        position=102,
        function="hardware.kernel_advice:ncu_rules",
        compared_by="count",
    ),
    _kernel_report_analysis(
        "ncu_peaks",
        "GPU peak rates by Nsight Compute",
        "rank resource:text peak_per_s:float",
        function="hardware.roofline:ncu_peaks",
    ),
    declare(
        "kernel_counters",
        "Hardware counters by kernel",
        "rank name:text counter:text count total:float mean:float min:float max:float",
        "rank name counter count total mean",
        position=95,
        function="hardware.kernel_counters:kernel_counters",
        events=Events(frozenset({Subject.COUNTER, Subject.EVENT})),
        sort_by=("-total", "count"),
        compared_by="total",
        about=Activity.GPU,
        first_rank_only=True,
    ),
    _ROOFLINE,
    replace(_ROOFLINE, scope=Scope.PAIR, function="hpcprof.analysis.hardware.roofline:roofline_against"),
)
