"""Nsight Compute.

It replays each kernel that it measures. A communication kernel waits for the other ranks, which do not
replay theirs, so the job hangs in any replay mode. With several ranks hpcprof therefore requires a launch
count and a filter that cannot match such a kernel, unless the ranks replay in step (`communicator`), which
only newer versions can.
"""

import re

from hpcprof.common.errors import UsageError
from hpcprof.submit.profilers import base
from hpcprof.submit.profilers.base import Profiler, Setting, Settings, Target, Word
from hpcprof.submit.profilers.torch_profiler import optional_start_up
from hpcprof.submit.sites.model import Vendor

# A name from each family of kernels that a filter must not match; for NCCL a new and an old spelling.
_COMMUNICATION = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "ncclDevKernel_AllGather_RING_LL",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    "ncclDevKernel_Broadcast_RING_LL",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL",
    "ncclDevKernel_SendRecv",
    "ncclKernel_AllReduce_RING_LL_Sum_float",
    "nvshmemi_alltoall_kernel",
    "multimem_all_reduce_kernel",
    "two_shot_all_reduce_kernel",
    "one_shot_all_reduce_kernel",
    "cross_device_reduce_2stage",
)
# Throughput, occupancy and caches; then what a roofline needs: operations of fp32 and fp64, of fp16 and of
# the tensor cores, bytes of DRAM and the peaks. ncu chooses the metrics of each section for the chip.
_SECTIONS = (
    "SpeedOfLight,LaunchStats,Occupancy,MemoryWorkloadAnalysis,SpeedOfLight_RooflineChart,"
    "SpeedOfLight_HierarchicalHalfRooflineChart,SpeedOfLight_HierarchicalTensorRooflineChart"
)


def _check(target: Target, settings: Settings) -> None:
    if settings["launch-count"]:
        base.whole_number(settings, "launch-count", 1)
    base.whole_number(settings, "launch-skip", 0)
    try:
        pattern = re.compile(settings["kernel"])
    except re.error as error:
        sentence = f"--profiler-option kernel={settings['kernel']}: not a regular expression: {error}."
        raise UsageError(sentence, "profiler_options.kernel") from None
    if settings["communicator"] and (target.profiled != target.ranks or target.nodes > 1):
        step = "the ranks replay their kernels in step, so all ranks of one node must run under ncu"
        sentence = f"--profiler-option communicator: {step}; give --profile-ranks all and --nodes 1."
        raise UsageError(sentence, "profiler_options.communicator", "profile_ranks", "nodes")
    if settings["communicator"] or target.ranks == 1:
        return
    reason = "replaying a communication kernel hangs a job of several ranks"
    if not settings["kernel"]:
        raise UsageError(
            f"ncu needs --profiler-option kernel=REGEX: {reason}, so name the kernels to measure."
        )
    if not settings["launch-count"]:
        raise UsageError("ncu needs --profiler-option launch-count=N: without it every launch is replayed.")
    hit = next((name for name in _COMMUNICATION if pattern.search(name)), None)
    if hit:
        raise UsageError(
            f"--profiler-option kernel={settings['kernel']} also matches {hit}: {reason}; make it narrower.",
            "profiler_options.kernel",
        )


def _communicator(target: Target, settings: Settings) -> tuple[Word, ...]:
    if not settings["communicator"]:
        return ()
    return (
        base.Versioned(("--communicator",), settings["communicator"]),
        base.Versioned(("--communicator-tcp-num-peers", "--communicator-num-peers"), str(target.ranks)),
        base.Versioned(("--lockstep-kernel-launch",)),
    )


def _flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    sections = [f"--section={name}" for name in settings["sections"].split(",") if name]
    chosen = [f"--set={settings['set']}"] if settings["set"] else sections
    count = settings["launch-count"]
    return (
        *((f"--kernel-name=regex:{settings['kernel']}",) if settings["kernel"] else ()),
        *((f"--launch-count={count}",) if count else ()),
        f"--launch-skip={settings['launch-skip']}",
        # The wrapper starts the program through a shell; older versions only profile the first process.
        "--target-processes=all",
        *chosen,
        f"--replay-mode={settings['replay-mode']}",
        f"--clock-control={settings['clock-control']}",
        *(("--profile-from-start=off",) if target.marks_steps else ()),
        *_communicator(target, settings),
        "--force-overwrite",
        f"--export={base.PATTERN}",
    )


def complaint(text: str) -> str:
    """Return ncu's complaint in its output, as the end of a sentence; empty without one."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            ": the driver keeps hardware counters to administrators (ERR_NVGPUCTRPERM); ask yours to load "
            "it with NVreg_RestrictProfilingToAdminUsers=0"
        )
    error_line = re.search(r"^==ERROR==\s*(\S.*?)\.?\s*$", text, re.MULTILINE)
    return f": ncu says {error_line[1]!r}" if error_line else ""


NCU = Profiler(
    "ncu",
    "Nsight Compute: hardware metrics of chosen kernels",
    settings={
        "kernel": Setting("regular expression of the kernels' names; must not match communication"),
        "launch-count": Setting("number of launches to measure; needed with several ranks"),
        "launch-skip": Setting("number of matching launches to skip first", "0"),
        "sections": Setting("what to measure, joined by commas", _SECTIONS),
        "set": Setting(
            "named set of sections, instead of sections", "", ("", "basic", "detailed", "full", "roofline")
        ),
        "replay-mode": Setting("what to repeat for all metrics", "kernel", ("kernel", "application")),
        "clock-control": Setting(
            "base locks the clocks, so durations do not compare with nsys; none leaves them",
            "none",
            ("none", "base"),
        ),
        "communicator": Setting(
            "replay the ranks' kernels in step, communication too; needs ncu 2026.1", "", ("", "tcp")
        ),
    },
    check=_check,
    command=("ncu",),
    flags=_flags,
    complaint=complaint,
    counters=lambda target, settings: True,
    needs_gpus=lambda settings: True,
    suffix=".ncu-rep",
    start_up=optional_start_up,
    vendors=(Vendor.NVIDIA,),
    # The driver lets only administrators read hardware counters by default.
    capabilities=("SYS_ADMIN",),
)
