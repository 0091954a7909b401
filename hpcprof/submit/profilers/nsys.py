"""Nsight Systems.

Context switches are off, and so is sampling unless stacks are asked for: they make gigabytes of a run of
seconds, and need a ``perf_event_paranoid`` that many sites do not grant. The end of the capture range is
given explicitly because the default, ``stop-shutdown``, also ends the program.
"""

from __future__ import annotations

from hpcprof.submit.profilers.base import (
    FOLDER,
    GPUS,
    NAME,
    OUTPUT,
    SCRATCH,
    SECONDS,
    PerfEvents,
    Profiler,
    Setting,
    Settings,
    Target,
    Versioned,
    Word,
)
from hpcprof.submit.sites.model import Vendor


def _flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    by_program = _captures_range(target, settings)
    # "stop" takes the first range only.
    end = f"repeat:{target.captures}" if target.captures > 1 else "stop"
    trace = settings["trace"]
    return (
        f"--trace={trace}",
        *((f"--mpi-impl={settings['mpi-impl']}",) if settings["mpi-impl"] and "mpi" in trace else ()),
        *_sampling(target, settings),
        "--cpuctxsw=none",
        f"--cuda-graph-trace={settings['cuda-graph-trace']}",
        *(("--capture-range=cudaProfilerApi", f"--capture-range-end={end}") if by_program else ()),
        *((_GPU_METRICS,) if _counters(target, settings) else ()),
        "--force-overwrite=true",
        f"--output={OUTPUT}",
    )


def _sampling(target: Target, settings: Settings) -> tuple[Word, ...]:
    """Return the flags for stacks: samples of Python need no permission, those of the CPU do.

    Samples of the CPU also take gigabytes of scratch for the symbols of PyTorch's libraries.
    """
    without = f"--sample={settings['sample']}"
    if settings["stacks"] == "false":
        return (without,)
    if target.in_python:
        return without, _PYTHON
    traced = ("--cudabacktrace=sync,memory",) if "cuda" in settings["trace"] else ()
    return (PerfEvents(("--sample=process-tree", *traced), (without,), "call stacks"),)


_PYTHON = Versioned(("--python-sampling",), "true")


def _captures_range(target: Target, settings: Settings) -> bool:
    marks_steps = target.workload is not None or target.captures > 0
    return settings["capture"] == "range" or (settings["capture"] == "auto" and marks_steps)


def _time_limit(target: Target, settings: Settings) -> tuple[str, ...]:
    # nsys would also end the program. With a range it counts from the range's start, which nobody knows.
    return () if _captures_range(target, settings) else (f"--duration={SECONDS}", "--kill=none")


# The first name is that of 2025.3, the second that of 2023.4.
_GPU_METRICS = Versioned(("--gpu-metrics-devices", "--gpu-metrics-device"), GPUS)


def _counters(target: Target, settings: Settings) -> bool:
    return settings["gpu-metrics"] == "true"


def _environment(target: Target, settings: Settings) -> dict[str, str]:
    # If only some ranks run under nsys, its tracking of MPI communicators waits for the others and the job
    # hangs; with this variable each rank tracks its own.
    return {"NSYS_MPI_STORE_TEAMS_PER_RANK": "1"} if "mpi" in settings["trace"] else {}


def _afterwards(target: Target, settings: Settings) -> list[tuple[str, ...]]:
    """Export the report of each span of steps; those after the first get folders of their own."""
    if target.captures < 2:
        return _export(OUTPUT, "profile", OUTPUT)
    commands = _export(f"{OUTPUT}.1", "profile", OUTPUT)
    for cycle in range(1, target.captures):
        folder = f"{FOLDER}/cycle{cycle}"
        commands.append(("mkdir", "-p", folder))
        commands += _export(f"{OUTPUT}.{cycle + 1}", f"profile{cycle}", f"{folder}/{NAME}")
    return commands


def _export(report: str, scratch: str, output: str) -> list[tuple[str, ...]]:
    # SQLite's locks are unreliable on parallel file systems, so the export is made on the node. Blobs hold
    # NCCL's communicators and message sizes. The file gets its final name once it is complete.
    exported = f"{SCRATCH}/{scratch}.sqlite"
    return [
        (
            "nsys",
            "export",
            "--type=sqlite",
            "--include-blobs=true",
            "--force-overwrite=true",
            f"--output={exported}",
            f"{report}.nsys-rep",
        ),
        ("mv", "-f", exported, f"{output}.sqlite.part"),
        ("mv", "-f", f"{output}.sqlite.part", f"{output}.sqlite"),
    ]


NSYS = Profiler(
    "nsys",
    "Nsight Systems: CUDA, NVTX and MPI",
    settings={
        "trace": Setting("what to trace, joined by commas", "cuda,nvtx,mpi"),
        "mpi-impl": Setting("the MPI, if nsys does not recognize it", "", ("", "openmpi", "mpich")),
        "sample": Setting("CPU sampling; makes very large files", "none", ("none", "process-tree")),
        "stacks": Setting(
            "record call stacks: samples of Python, or of another program where the node permits perf events",
            "false",
            ("false", "true"),
        ),
        "cuda-graph-trace": Setting(
            "trace CUDA graphs as a whole, or node by node", "graph", ("graph", "node")
        ),
        "capture": Setting(
            "range: only between cudaProfilerStart and Stop; whole: everything; auto: range for hpcprof's "
            "workloads, whole for other programs",
            "auto",
            ("auto", "range", "whole"),
        ),
        "gpu-metrics": Setting("sample the GPU's hardware counters too", "false", ("false", "true")),
    },
    command=("nsys", "profile"),
    flags=_flags,
    time_limit=_time_limit,
    environment=_environment,
    afterwards=_afterwards,
    stacks={"stacks": "true"},
    counters=_counters,
    needs_gpus=lambda settings: "cuda" in settings["trace"],
    suffix=".sqlite",
    vendors=(Vendor.NVIDIA,),
)
