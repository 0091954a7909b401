"""Analyses of the memory of the ranks, on GPUs and on the host."""

from functools import partial

from hpcprof.analysis.framework.declaration import Activity, Analysis, Part, Scope, columns, from_part

NO_SNAPSHOTS = "there are no snapshots of PyTorch's memory (--memory-history keeps some)"
NO_LINES = "no rank noted the memory of a GPU"
NO_HOST_SAMPLES = "the memory of the ranks on the host was not sampled twice"

_memory_analysis = partial(
    from_part,
    absent=NO_SNAPSHOTS,
    map="hpcprof.analysis.memory.tables:memory_tables",
    map_over=Part.MEMORY,
    about=Activity.MEMORY,
)

ANALYSES = (
    _memory_analysis(
        "memory_use",
        "Peaks of the GPU memory",
        "rank first_step last_step allocated_bytes reserved_bytes inactive_split_bytes",
        "rank first_step last_step allocated_bytes reserved_bytes inactive_split_bytes",
        absent=NO_LINES,
    ),
    _memory_analysis(
        "memory_snapshots",
        "Snapshots of the GPU memory",
        "rank event:text step device file:text time_ns peak_bytes allocated_bytes reserved_bytes asked_bytes "
        "free_bytes capacity_bytes outside_bytes module:text line:text complete",
        "rank event step peak_bytes reserved_bytes asked_bytes line complete",
        160,
        compared_by="peak_bytes",
    ),
    _memory_analysis(
        "memory",
        "GPU memory at the peak",
        "rank event:text step device kind:text module:text line:text bytes blocks share_pct:float "
        "difference_bytes",
        "rank step kind module line bytes difference_bytes",
        161,
        sort_by=("-bytes",),
        compared_by="bytes",
    ),
    _memory_analysis(
        "memory_over_step",
        "GPU memory over the step",
        "rank event:text step device time_ns parameters_bytes gradients_bytes optimizer_bytes "
        "activations_bytes backward_bytes communication_bytes other_bytes fragmentation_bytes",
        "rank event step time_ns parameters_bytes activations_bytes fragmentation_bytes",
    ),
    _memory_analysis(
        "host_memory",
        "Memory on the host",
        "rank node:text samples first_step last_step resident_bytes proportional_bytes "
        "growth_bytes_per_step:float growth_low_bytes_per_step:float growth_high_bytes_per_step:float "
        "growth_bytes_per_s:float node_free_bytes full_in_s full_at_step grows",
        "rank node resident_bytes growth_bytes_per_step full_at_step grows",
        162,
        absent=NO_HOST_SAMPLES,
        compared_by="resident_bytes",
    ),
    Analysis(
        "memory_difference",
        "Difference of the GPU memory",
        Scope.PAIR,
        columns("event:text kind:text module:text line:text a_bytes b_bytes difference_bytes"),
        "hpcprof.analysis.memory.tables:memory_difference",
        needs=("memory",),
    ),
)
