"""Nsight Systems.

Sampling and context switches are off: they made a file of gigabytes out of a run of seconds, and they
need a ``perf_event_paranoid`` that many sites do not grant. The end of the capture range is spelled
out because the default, ``stop-shutdown``, ends the program with it.
"""

from __future__ import annotations

from hpcprof.profilers.base import OUTPUT, Profiler


def _prefix(workload: str | None) -> tuple[str, ...]:
    capture = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop") if workload else ()
    return (
        "nsys",
        "profile",
        "--trace=cuda,nvtx,mpi",
        "--sample=none",
        "--cpuctxsw=none",
        *capture,
        "--force-overwrite=true",
        f"--output={OUTPUT}",
    )


# Blobs hold NCCL's communicator and message size. The export gets its final name only when it is whole.
_EXPORT = (
    "nsys",
    "export",
    "--type=sqlite",
    "--include-blobs=true",
    "--force-overwrite=true",
    f"--output={OUTPUT}.sqlite.part",
    f"{OUTPUT}.nsys-rep",
)

NSYS = Profiler(
    "nsys",
    "Nsight Systems: CUDA, NVTX and MPI",
    prefix=_prefix,
    afterwards=(_EXPORT, ("mv", "-f", f"{OUTPUT}.sqlite.part", f"{OUTPUT}.sqlite")),
    suffix=".sqlite",
)
