"""Runs compared with other runs."""

from functools import partial

from hpcprof.analysis.framework.declaration import Scope, declare, names

_EFFECTS = "a_per_step:float b_per_step:float a_ns b_ns difference_ns count_effect_ns"

MACHINE = ("energy", "clocks", "io", "telemetry")
"""The analyses with the energy, clocks, data and memory of a run."""

_pair_analysis = partial(declare, scope=Scope.PAIR)
_kernel_difference_analysis = partial(_pair_analysis, module="comparison.kernel_difference")
_scaling_analysis = partial(declare, scope=Scope.STORE, module="comparison.scaling")

ANALYSES = (
    _pair_analysis(
        "compare",
        "Comparison of runs",
        "metric:text a:float b:float ratio:float ci_low:float ci_high:float n_a n_b verdict:text",
        "metric a b ratio verdict ci_low ci_high",
        function="comparison.compare:compare",
        needs=(
            *names("steps_summary step_times step_kinds phases breakdown overlap kernels pop darshan_files"),
            *MACHINE,
        ),
    ),
    _pair_analysis(
        "step_difference",
        "Difference of the step by part",
        "part:text a_ns b_ns difference_ns ci_low_ns ci_high_ns",
        "part difference_ns a_ns b_ns ci_low_ns ci_high_ns",
        function="comparison.step_difference:step_difference",
        needs=("step_kinds", "step_account"),
    ),
    _kernel_difference_analysis(
        "kernel_difference",
        "Difference of each kernel per step",
        f"name:text class:text change:text was:text similarity_pct:float {_EFFECTS} shape_effect_ns "
        "duration_effect_ns",
        "difference_ns name change count_effect_ns shape_effect_ns duration_effect_ns a_per_step b_per_step",
        needs=("kernels_by_shape", "step_times"),
    ),
    _kernel_difference_analysis(
        "collective_difference",
        "Difference of each collective per step",
        f"op:text ranks change:text {_EFFECTS} size_effect_ns duration_effect_ns exposed_difference_ns",
        "difference_ns op change count_effect_ns size_effect_ns duration_effect_ns "
        "exposed_difference_ns a_per_step b_per_step",
        needs=("rank_collectives", "kernels_by_shape", "step_times"),
    ),
    _kernel_difference_analysis(
        "idle_difference",
        "Difference of idle time per step by cause",
        "cause:text range:text api:text a_ns b_ns difference_ns",
        "difference_ns cause range api a_ns b_ns",
        needs=("idle_causes", "step_times"),
    ),
    _scaling_analysis(
        "scaling",
        "Scaling with the number of ranks",
        "program:text workload:text kind:text parameters:text ranks nodes runs step_p50_ns "
        "speedup:float efficiency:float ci_low:float ci_high:float "
        "global_efficiency_pct:float parallel_efficiency_pct:float load_balance_pct:float "
        "communication_efficiency_pct:float computation_scaling_pct:float "
        "instruction_scaling_pct:float ipc_scaling_pct:float frequency_scaling_pct:float",
        "program kind parameters ranks step_p50_ns speedup efficiency ci_low ci_high",
        needs=("steps_summary", "pop", "useful_counters"),
    ),
    _scaling_analysis(
        "scaling_models",
        "Models of scaling",
        "program:text kind:text parameters:text part:text model:text error_pct:float sizes largest_ranks "
        "time_ns share_pct:float dominates_from dominates_low dominates_high",
        "part model error_pct time_ns share_pct dominates_from dominates_low dominates_high",
        needs=("steps_summary", "pop", "phases", "mpi_calls"),
    ),
)
