"""Nsight Systems.

Context switches are off, and so is sampling unless stacks are asked for: they make gigabytes of a run of
seconds, and need a ``perf_event_paranoid`` that many sites do not grant. The end of the capture range is
given explicitly because the default, ``stop-shutdown``, also ends the program.
"""

from typing import NamedTuple

from hpcprof.submit.profilers import base
from hpcprof.submit.profilers.base import Profiler, Setting, Settings, Target, Word
from hpcprof.submit.profilers.torch_profiler import optional_start_up
from hpcprof.submit.sites.model import Vendor


class _Export(NamedTuple):
    """A form of export: its type for nsys, and the ending of its name."""

    type: str
    ending: str
    is_folder: bool = False


def _flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    by_program = base.captures_range(target, settings)
    # "stop" takes the first range only.
    end = f"repeat:{target.captures}" if target.captures > 1 else "stop"
    capture: tuple[Word, ...] = ("--capture-range=cudaProfilerApi", f"--capture-range-end={end}")
    if not by_program:
        capture = ("--kill=none",)
    elif target.workload is None and target.captures == 1 and settings["capture"] == "auto":
        # Without a GPU nothing can call cudaProfilerStart.
        missing = "no GPU: --capture-steps is left out, and the program is recorded from its start"
        ranged = tuple(map(str, capture))
        capture = (base.OnNode(_HAS_GPU, ranged, ("--kill=none",), missing),)
    return (
        *_trace_flags(target, settings),
        *_sampling_flags(target, settings),
        "--cpuctxsw=none",
        *capture,
        # Where the session ends before the program, its hooks in CUDA's calls go. nsys would end the program.
        *((f"--session-new={base.SESSION}",) if base.records_window(target, settings) else ()),
        *((_GPU_METRICS,) if settings["gpu-metrics"] == "true" else ()),
        # Not for processes that the program leaves behind, as daemons.
        "--wait=primary",
        "--force-overwrite=true",
        f"--output={base.PATTERN}",
    )


def _trace_flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    """Return the flags for traces: CUDA only where there is a GPU, MPI only where its library is known."""
    trace = settings["trace"].split(",")
    chosen: list[Word] = []
    end = ""
    if "mpi" in trace and settings["mpi-impl"]:
        chosen.append(f"--mpi-impl={settings['mpi-impl']}")
    elif "mpi" in trace:
        chosen += [base.OnNode(f"mpi_is {name}", (f"--mpi-impl={name}",)) for name in _MPI]
        trace, end = [name for name in trace if name != "mpi"] or ["nvtx"], base.WITH_MPI
    libraries = ",".join(name for name in trace if name != "cuda")
    graphs = settings["cuda-graph-trace"]
    if graphs == "auto":
        # XLA runs most of a step as CUDA graphs.
        graphs = "node" if target.uses_jax else "graph"
    with_gpu = (f"--trace={','.join(trace)}{end}", f"--cuda-graph-trace={graphs}")
    if "cuda" not in trace or not libraries:
        return (*with_gpu, *chosen)
    without_gpu = (f"--trace={libraries}{end}",)
    return base.OnNode(_HAS_GPU, with_gpu, without_gpu, "no GPU: CUDA is not traced"), *chosen


_MPI = ("openmpi", "mpich")
GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""The devices of the driver, of Tegra and of WSL, one of which a machine with a GPU has."""

_HAS_GPU = " || ".join(f"[ -e {device} ]" for device in GPU_DEVICES)


def _sampling_flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    """Return the flags for stacks; those of the CPU need permission and gigabytes of scratch."""
    without = f"--sample={settings['sample']}"
    if settings["stacks"] == "false":
        return (without,)
    if target.in_python:
        return without, base.Versioned(("--python-sampling",), "true")
    traced = ("--cudabacktrace=sync,memory",) if "cuda" in settings["trace"] else ()
    return (base.PerfEvents(("--sample=process-tree", *traced), (without,), "call stacks"),)


# The first name belongs to 2025.3, the second to 2023.4.
_GPU_METRICS = base.Versioned(("--gpu-metrics-devices", "--gpu-metrics-device"), base.GPUS)


def _afterwards(target: Target, settings: Settings) -> list[tuple[str, ...]]:
    """Export the report of each span of steps; those after the first get folders of their own."""
    export = _EXPORTS[settings["export"]]
    if target.captures < 2 or not base.captures_range(target, settings):
        return _export(base.OUTPUT, "profile", base.OUTPUT, export)
    commands = _export(f"{base.OUTPUT}.1", "profile", base.OUTPUT, export)
    for cycle in range(1, target.captures):
        folder = f"{base.FOLDER}/cycle{cycle}"
        commands.append(("mkdir", "-p", folder))
        commands += _export(f"{base.OUTPUT}.{cycle + 1}", f"profile{cycle}", f"{folder}/{base.NAME}", export)
    return commands


def _export(report: str, scratch: str, output: str, export: _Export) -> list[tuple[str, ...]]:
    # SQLite's locks are unreliable on parallel file systems, so the export is made on the node. Blobs hold
    # NCCL's communicators and message sizes. The export gets its final name once it is complete.
    exported, final = f"{base.SCRATCH}/{scratch}{export.ending}", f"{output}{export.ending}"
    # An existing folder would receive the new one inside it.
    removed = [("rm", "-rf", f"{final}.part", final)] if export.is_folder else []
    return [
        (
            *("sh", "-c", _WITH_BLOBS, "nsys", f"--type={export.type}", "--force-overwrite=true"),
            *(f"--output={exported}", f"{report}.nsys-rep"),
        ),
        *removed,
        ("mv", "-f", exported, f"{final}.part"),
        ("mv", "-f", f"{final}.part", final),
    ]


_EXPORTS = {
    "sqlite": _Export("sqlite", ".sqlite"),
    "parquet": _Export("parquetdir", "_pqtdir", is_folder=True),
}

# 2023 exports them without being asked, and does not know the option.
_WITH_BLOBS = (
    'case $("$0" export --help 2>&1) in *--include-blobs*) set -- --include-blobs=true "$@" ;; esac; '
    'exec "$0" export "$@"'
)

NSYS = Profiler(
    "nsys",
    "Nsight Systems: CUDA, NVTX and MPI",
    settings={
        "trace": Setting("what to trace, joined by commas; cuda only where there is a GPU", "cuda,nvtx,mpi"),
        "mpi-impl": Setting("the MPI; by default that of the program's library", "", ("", *_MPI)),
        "sample": Setting("CPU sampling; makes very large files", "none", ("none", "process-tree")),
        "stacks": Setting(
            "record call stacks: samples of Python, or of another program where the node permits perf events",
            "false",
            ("false", "true"),
        ),
        "cuda-graph-trace": Setting(
            "trace CUDA graphs as a whole (graph) or node by node; auto: node for programs that import JAX",
            "auto",
            ("auto", "graph", "node"),
        ),
        "capture": base.capture_setting("between cudaProfilerStart and Stop"),
        "gpu-metrics": Setting("sample the GPU's hardware counters too", "false", ("false", "true")),
        "export": Setting(
            "what the node makes of each report: a SQLite file, or a folder of Parquet files",
            "sqlite",
            (*_EXPORTS,),
        ),
    },
    command=("nsys", "profile"),
    flags=_flags,
    # With a range it counts from the range's start, which nobody knows.
    time_limit=lambda target, settings: (
        () if base.captures_range(target, settings) else (f"--duration={base.SECONDS}",)
    ),
    window=base.records_window,
    # If only some ranks run under nsys, its tracking of MPI communicators waits for the others and the job
    # hangs; with this variable each rank tracks its own.
    environment=lambda target, settings: (
        {"NSYS_MPI_STORE_TEAMS_PER_RANK": "1"} if "mpi" in settings["trace"] else {}
    ),
    afterwards=_afterwards,
    stacks={"stacks": "true"},
    counters=lambda target, settings: settings["gpu-metrics"] == "true",
    needs_gpus=lambda settings: settings["trace"] == "cuda" or settings["gpu-metrics"] == "true",
    complaint=base.no_trace,
    suffix=lambda settings: _EXPORTS[settings["export"]].ending,
    start_up=optional_start_up,
    vendors=(Vendor.NVIDIA,),
)
