"""The operators of PyTorch and XLA, and the kernels that they launch."""

from functools import partial

from hpcprof.analysis.framework.declaration import CALLS, OPERATIONS, WORK, Events, declare
from hpcprof.profiles.losses import Subject

_TIMES = (
    "calls host_ns self_host_ns host_pct:float gpu_ops gpu_ns self_gpu_ns gpu_pct:float "
    "flops:float bytes:float tflops:float peak_pct:float"
)
_MAIN_TIMES = "calls self_gpu_ns gpu_pct self_host_ns host_pct tflops peak_pct"
_operator_analysis = partial(
    declare,
    module="operators.operators",
    events=Events(OPERATIONS | CALLS | {Subject.OPERATOR}, launches=True),
)

ANALYSES = (
    _operator_analysis(
        "operators",
        "Operators",
        f"rank name:text {_TIMES}",
        f"rank name {_MAIN_TIMES}",
        85,
        sort_by=("-self_gpu_ns", "-self_host_ns"),
        # Profiles without operators have no such section.
        only_with_several="name",
        first_rank_only=True,
    ),
    _operator_analysis(
        "operators_by_shape",
        "Operators by the shapes and types of their inputs",
        f"rank name:text input_dims:text input_types:text {_TIMES}",
        f"rank name input_dims {_MAIN_TIMES}",
        sort_by=("-self_gpu_ns", "-self_host_ns"),
    ),
    _operator_analysis(
        "operator_kernels",
        "GPU operations by operator",
        "rank operator:text kernel:text instances total_ns time_pct:float "
        "avg_ns:float med_ns:float min_ns max_ns stddev_ns:float",
        "rank operator kernel instances total_ns time_pct med_ns",
        sort_by=("-total_ns",),
    ),
    _operator_analysis(
        "modules",
        "PyTorch modules",
        "rank name:text calls host_ns self_host_ns host_pct:float "
        "gpu_ops gpu_ns backward_gpu_ns gpu_pct:float",
        "rank name calls gpu_ns host_ns host_pct",
        events=Events(OPERATIONS | CALLS | {Subject.ARROW, Subject.MODULE, Subject.OPERATOR}, launches=True),
        sort_by=("-gpu_ns", "-host_ns"),
    ),
    declare(
        "idle_threads",
        "Idle time of threads that execute operators",
        "rank pid tid operators span_ns busy_ns idle_ns idle_pct:float",
        "rank tid operators span_ns busy_ns idle_pct",
        function="operators.host_time:idle_threads",
        events=Events(WORK, steps=True),
        steps=frozenset(),
        sort_by=("-busy_ns",),
    ),
)
