"""Declarations: the breakdown of GPU time, and the causes of idle time."""

from functools import partial

from hpcprof.analysis.framework.declaration import (
    CALLS,
    KERNELS,
    OPERATIONS,
    RANGES,
    Activity,
    Events,
    Policy,
    SampleBasis,
    declare,
)
from hpcprof.profiles.losses import Subject

_work_analysis = partial(
    declare,
    module="gpu_time.breakdown",
    events=Events(OPERATIONS | KERNELS),
    sample_basis=SampleBasis.OPERATIONS,
)
_stream_analysis = partial(
    declare,
    module="gpu_time.breakdown",
    events=Events(OPERATIONS | CALLS, launches=True),
    sort_by=("device", "stream"),
    memory_heavy=True,
    policy=Policy.LAZY,
)

ANALYSES = (
    _work_analysis(
        "breakdown",
        "GPU time breakdown of the whole capture",
        "rank span_ns compute_ns exposed_comm_ns exposed_mem_ns idle_ns "
        "compute_pct:float exposed_comm_pct:float exposed_mem_pct:float idle_pct:float",
        "rank span_ns compute_pct exposed_comm_pct exposed_mem_pct idle_pct",
        30,
        about=Activity.GPU,
        compared_by="compute_pct",
        memory_heavy=True,
    ),
    _work_analysis(
        "device_breakdown",
        "GPU time breakdown of the whole capture by device",
        "rank device span_ns compute_ns exposed_comm_ns exposed_mem_ns idle_ns "
        "compute_pct:float exposed_comm_pct:float exposed_mem_pct:float idle_pct:float",
        "rank device span_ns compute_pct exposed_comm_pct exposed_mem_pct idle_pct",
        35,
        sort_by=("device",),
        only_with_several="device",
        compared_by="compute_pct",
    ),
    _work_analysis(
        "overlap",
        "Overlap of communication and compute",
        "rank comm_ns overlapped_ns overlap_pct:float",
        position=40,
        about=Activity.GPU,
        compared_by="overlap_pct",
    ),
    _work_analysis(
        "kernel_classes",
        "Kernel classes that run together",
        "rank classes:text ns pct:float",
        sort_by=("-ns",),
    ),
    _stream_analysis(
        "idle",
        "Idle time by cause",
        "rank device stream cause:text idle_ns share_pct:float",
        sample_basis=SampleBasis.OPERATIONS,
    ),
    _stream_analysis(
        "queue_length",
        "Queue length",
        "rank device stream count mean:float stddev:float min p25:float p50:float p75:float max",
        "rank device stream count mean min p50 max",
    ),
    declare(
        "hta_breakdown",
        "HolisticTraceAnalysis' temporal breakdown",
        "rank idle_time_us compute_time_us non_compute_time_us kernel_time_us "
        "idle_time_pctg:float compute_time_pctg:float non_compute_time_pctg:float",
        "rank idle_time_pctg compute_time_pctg non_compute_time_pctg kernel_time_us",
        function="gpu_time.hta_breakdown:hta_breakdown",
        events=Events(OPERATIONS | RANGES | {Subject.MARK}),
        sample_basis=SampleBasis.OPERATIONS,
    ),
)
