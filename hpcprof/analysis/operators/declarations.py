"""The operators of PyTorch and XLA, and the kernels that they launch."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import CALLS, OPERATIONS, WORK, Analysis, Events, Scope, columns
from hpcprof.profiles.losses import Subject

_TIMES = (
    "calls host_ns self_host_ns host_pct:float gpu_ops gpu_ns self_gpu_ns gpu_pct:float "
    "flops:float bytes:float tflops:float peak_pct:float"
)
_MAIN = ("calls", "self_gpu_ns", "gpu_pct", "self_host_ns", "host_pct", "tflops", "peak_pct")
_MODULE = "hpcprof.analysis.operators.operators"
_EVENTS = Events(OPERATIONS | CALLS | {Subject.OPERATOR}, launches=True)

ANALYSES = (
    Analysis(
        "operators",
        "Operators",
        Scope.RANK,
        columns(f"rank name:text {_TIMES}"),
        f"{_MODULE}:operators",
        events=_EVENTS,
        sort_by=("-self_gpu_ns", "-self_host_ns"),
        main_columns=("rank", "name", *_MAIN),
        report_position=85,
        # Profiles without operators have no such section.
        only_with_several="name",
        first_rank_only=True,
    ),
    Analysis(
        "operators_by_shape",
        "Operators by the shapes and types of their inputs",
        Scope.RANK,
        columns(f"rank name:text input_dims:text input_types:text {_TIMES}"),
        f"{_MODULE}:operators_by_shape",
        events=_EVENTS,
        sort_by=("-self_gpu_ns", "-self_host_ns"),
        main_columns=("rank", "name", "input_dims", *_MAIN),
    ),
    Analysis(
        "operator_kernels",
        "GPU operations by operator",
        Scope.RANK,
        columns(
            "rank operator:text kernel:text instances total_ns time_pct:float "
            "avg_ns:float med_ns:float min_ns max_ns stddev_ns:float"
        ),
        f"{_MODULE}:operator_kernels",
        events=_EVENTS,
        sort_by=("-total_ns",),
        main_columns=("rank", "operator", "kernel", "instances", "total_ns", "time_pct", "med_ns"),
    ),
    Analysis(
        "modules",
        "PyTorch modules",
        Scope.RANK,
        columns(
            "rank name:text calls host_ns self_host_ns host_pct:float "
            "gpu_ops gpu_ns backward_gpu_ns gpu_pct:float"
        ),
        "hpcprof.analysis.operators.operators:modules",
        events=Events(OPERATIONS | CALLS | {Subject.ARROW, Subject.MODULE, Subject.OPERATOR}, launches=True),
        sort_by=("-gpu_ns", "-host_ns"),
        main_columns=("rank", "name", "calls", "gpu_ns", "host_ns", "host_pct"),
    ),
    Analysis(
        "idle_threads",
        "Idle time of threads that execute operators",
        Scope.RANK,
        columns("rank pid tid operators span_ns busy_ns idle_ns idle_pct:float"),
        "hpcprof.analysis.operators.host_time:idle_threads",
        events=Events(WORK, steps=True),
        sort_by=("-busy_ns",),
        main_columns=("rank", "tid", "operators", "span_ns", "busy_ns", "idle_pct"),
    ),
)
