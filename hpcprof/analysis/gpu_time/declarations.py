"""Declarations: the breakdown of GPU time, and the causes of idle time."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import (
    CALLS,
    KERNELS,
    OPERATIONS,
    RANGES,
    Activity,
    Analysis,
    Events,
    SampleBasis,
    Scope,
    columns,
)
from hpcprof.profiles.losses import Subject

ANALYSES = (
    Analysis(
        "breakdown",
        "GPU time breakdown of the whole capture",
        Scope.RANK,
        columns(
            "rank span_ns compute_ns exposed_comm_ns exposed_mem_ns idle_ns "
            "compute_pct:float exposed_comm_pct:float exposed_mem_pct:float idle_pct:float"
        ),
        "hpcprof.analysis.gpu_time.breakdown:breakdown",
        events=Events(OPERATIONS | KERNELS),
        main_columns=("rank", "span_ns", "compute_pct", "exposed_comm_pct", "exposed_mem_pct", "idle_pct"),
        report_position=30,
        about=Activity.GPU,
        compared_by="compute_pct",
        sample_basis=SampleBasis.OPERATIONS,
        memory_heavy=True,
    ),
    Analysis(
        "device_breakdown",
        "GPU time breakdown of the whole capture by device",
        Scope.RANK,
        columns(
            "rank device span_ns compute_ns exposed_comm_ns exposed_mem_ns idle_ns "
            "compute_pct:float exposed_comm_pct:float exposed_mem_pct:float idle_pct:float"
        ),
        "hpcprof.analysis.gpu_time.breakdown:device_breakdown",
        events=Events(OPERATIONS | KERNELS),
        sort_by=("device",),
        main_columns=(
            *("rank", "device", "span_ns", "compute_pct", "exposed_comm_pct", "exposed_mem_pct", "idle_pct"),
        ),
        report_position=35,
        only_with_several="device",
        compared_by="compute_pct",
        sample_basis=SampleBasis.OPERATIONS,
    ),
    Analysis(
        "overlap",
        "Overlap of communication and compute",
        Scope.RANK,
        columns("rank comm_ns overlapped_ns overlap_pct:float"),
        "hpcprof.analysis.gpu_time.breakdown:overlap",
        events=Events(OPERATIONS | KERNELS),
        report_position=40,
        about=Activity.GPU,
        compared_by="overlap_pct",
        sample_basis=SampleBasis.OPERATIONS,
    ),
    Analysis(
        "kernel_classes",
        "Kernel classes that run together",
        Scope.RANK,
        columns("rank classes:text ns pct:float"),
        "hpcprof.analysis.gpu_time.breakdown:kernel_classes",
        events=Events(OPERATIONS | KERNELS),
        sort_by=("-ns",),
        sample_basis=SampleBasis.OPERATIONS,
    ),
    Analysis(
        "idle",
        "Idle time by cause",
        Scope.RANK,
        columns("rank device stream cause:text idle_ns share_pct:float"),
        "hpcprof.analysis.gpu_time.breakdown:idle",
        events=Events(OPERATIONS | CALLS, launches=True),
        sort_by=("device", "stream"),
        sample_basis=SampleBasis.OPERATIONS,
        memory_heavy=True,
        when_asked=True,
    ),
    Analysis(
        "queue_length",
        "Queue length",
        Scope.RANK,
        columns("rank device stream count mean:float stddev:float min p25:float p50:float p75:float max"),
        "hpcprof.analysis.gpu_time.breakdown:queue_length",
        events=Events(OPERATIONS | CALLS, launches=True),
        sort_by=("device", "stream"),
        main_columns=("rank", "device", "stream", "count", "mean", "min", "p50", "max"),
        memory_heavy=True,
        when_asked=True,
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
        events=Events(OPERATIONS | RANGES | {Subject.MARK}),
        main_columns=(
            *("rank", "idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg", "kernel_time_us"),
        ),
        sample_basis=SampleBasis.OPERATIONS,
    ),
)
