"""Nsight Systems.

Sampling and context switches are off: they made a file of gigabytes out of a run of seconds, and they
need a ``perf_event_paranoid`` that many sites do not grant. The end of the capture range is spelled
out because the default, ``stop-shutdown``, ends the program with it.
"""

from __future__ import annotations

from hpcprof.submit.profilers.base import (
    FOLDER,
    GPUS,
    NAME,
    OUTPUT,
    SCRATCH,
    Profiler,
    Setting,
    Settings,
    Target,
    Versioned,
    Word,
)
from hpcprof.submit.sites.model import Vendor


def _flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    capture = settings["capture"]
    marks_steps = target.workload is not None or target.captures
    by_program = capture == "range" or (capture == "auto" and marks_steps)
    # "stop" takes the first range only.
    end = f"repeat:{target.captures}" if target.captures > 1 else "stop"
    trace = settings["trace"]
    return (
        f"--trace={trace}",
        *((f"--mpi-impl={settings['mpi-impl']}",) if settings["mpi-impl"] and "mpi" in trace else ()),
        f"--sample={settings['sample']}",
        "--cpuctxsw=none",
        f"--cuda-graph-trace={settings['cuda-graph-trace']}",
        *(("--capture-range=cudaProfilerApi", f"--capture-range-end={end}") if by_program else ()),
        *((_GPU_METRICS,) if _counters(target, settings) else ()),
        "--force-overwrite=true",
        f"--output={OUTPUT}",
    )


# The first name is that of 2025.3, the second that of 2023.4.
_GPU_METRICS = Versioned(("--gpu-metrics-devices", "--gpu-metrics-device"), GPUS)


def _counters(target: Target, settings: Settings) -> bool:
    return settings["gpu-metrics"] == "true"


def _environment(target: Target, settings: Settings) -> dict[str, str]:
    # With a part of the ranks under nsys, its tracking of MPI communicators waits for the others and the
    # job hangs; this keeps each rank's to itself.
    return {"NSYS_MPI_STORE_TEAMS_PER_RANK": "1"} if "mpi" in settings["trace"] else {}


def _afterwards(target: Target, settings: Settings) -> list[tuple[str, ...]]:
    """Export the report, or one for each span of steps: the further ones go into folders beside the first."""
    if target.captures < 2:
        return _export(OUTPUT, "profile", OUTPUT)
    commands = _export(f"{OUTPUT}.1", "profile", OUTPUT)
    for cycle in range(1, target.captures):
        folder = f"{FOLDER}/cycle{cycle}"
        commands.append(("mkdir", "-p", folder))
        commands += _export(f"{OUTPUT}.{cycle + 1}", f"profile{cycle}", f"{folder}/{NAME}")
    return commands


def _export(report: str, scratch: str, output: str) -> list[tuple[str, ...]]:
    # SQLite's locks cannot be trusted on parallel file systems, so the export is made on the node. Blobs
    # hold NCCL's communicator and message size. The file gets its final name only when it is whole.
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
        "mpi-impl": Setting("the MPI, where nsys does not see it", "", ("", "openmpi", "mpich")),
        "sample": Setting("CPU sampling; makes very large files", "none", ("none", "process-tree")),
        "cuda-graph-trace": Setting("CUDA graphs as a whole, or node by node", "graph", ("graph", "node")),
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
    environment=_environment,
    afterwards=_afterwards,
    counters=_counters,
    suffix=".sqlite",
    vendors=(Vendor.NVIDIA,),
)
