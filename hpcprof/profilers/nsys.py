"""Nsight Systems.

Sampling and context switches are off: they made a file of gigabytes out of a run of seconds, and they
need a ``perf_event_paranoid`` that many sites do not grant. The end of the capture range is spelled
out because the default, ``stop-shutdown``, ends the program with it.
"""

from __future__ import annotations

from hpcprof.profilers.base import OUTPUT, SCRATCH, Profiler, Setting, Settings, Target


def _prefix(target: Target, settings: Settings) -> tuple[str, ...]:
    capture = settings["capture"]
    marks_steps = target.workload is not None or target.capture_steps
    by_program = capture == "range" or (capture == "auto" and marks_steps)
    trace = settings["trace"]
    return (
        "nsys",
        "profile",
        f"--trace={trace}",
        *((f"--mpi-impl={settings['mpi-impl']}",) if settings["mpi-impl"] and "mpi" in trace else ()),
        f"--sample={settings['sample']}",
        "--cpuctxsw=none",
        f"--cuda-graph-trace={settings['cuda-graph-trace']}",
        *(("--capture-range=cudaProfilerApi", "--capture-range-end=stop") if by_program else ()),
        "--force-overwrite=true",
        f"--output={OUTPUT}",
    )


def _environment(target: Target, settings: Settings) -> dict[str, str]:
    # With a part of the ranks under nsys, its tracking of MPI communicators waits for the others and the
    # job hangs; this keeps each rank's to itself.
    return {"NSYS_MPI_STORE_TEAMS_PER_RANK": "1"} if "mpi" in settings["trace"] else {}


_EXPORTED = f"{SCRATCH}/profile.sqlite"

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
    },
    prefix=_prefix,
    environment=_environment,
    # SQLite's locks cannot be trusted on parallel file systems, so the export is made on the node. Blobs
    # hold NCCL's communicator and message size. The file gets its final name only when it is whole.
    afterwards=(
        (
            "nsys",
            "export",
            "--type=sqlite",
            "--include-blobs=true",
            "--force-overwrite=true",
            f"--output={_EXPORTED}",
            f"{OUTPUT}.nsys-rep",
        ),
        ("mv", "-f", _EXPORTED, f"{OUTPUT}.sqlite.part"),
        ("mv", "-f", f"{OUTPUT}.sqlite.part", f"{OUTPUT}.sqlite"),
    ),
    suffix=".sqlite",
)
