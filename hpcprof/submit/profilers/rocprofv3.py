"""rocprofv3 of AMD's ROCm.

It writes a file for each process, when the process ends. ROCm 7 writes databases (rocpd), and before that CSV
tables; the reader takes both, so the format is left to the version that the job finds.
"""

from hpcprof.submit.profilers import base
from hpcprof.submit.profilers.base import Profiler, Setting, Settings, Target, Word
from hpcprof.submit.profilers.torch_profiler import optional_start_up
from hpcprof.submit.sites.model import Vendor

_TRACES = {
    "kernel": "--kernel-trace",
    "hip": "--hip-runtime-trace",
    "hsa": "--hsa-trace",
    "marker": "--marker-trace",
    "memory": "--memory-copy-trace",
    "allocation": "--memory-allocation-trace",
    "scratch": "--scratch-memory-trace",
    "rccl": "--rccl-trace",
}
_OPTIONAL = ("rccl", "allocation")
"""Traces that ROCm 6.2 does not have; they are left out there."""

_SCRATCH_PATH = f"{base.SCRATCH}/rocprofv3"


def _flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    names = base.trace_names(settings, _TRACES)
    counters = ",".join(name for name in settings["pmc"].split(",") if name)
    return (
        *(base.Versioned((_TRACES[name],), required=False) for name in names if name in _OPTIONAL),
        *((base.Versioned(("--selected-regions",)),) if base.captures_range(target, settings) else ()),
        *((base.Versioned(("--pmc",), counters),) if counters else ()),
        *(_TRACES[name] for name in names if name not in _OPTIONAL),
        f"--output-directory={_SCRATCH_PATH}",
        # All processes of a rank would write to one name.
        "--output-file=%pid%",
        "--",
    )


ROCPROFV3 = Profiler(
    "rocprofv3",
    "AMD's rocprofv3: kernels, HIP, RCCL, copies and ROCTx",
    settings={
        "trace": Setting(
            f"what to trace, joined by commas: {', '.join(_TRACES)}", "kernel,hip,marker,memory,rccl"
        ),
        "pmc": Setting("hardware counters of each kernel, joined by commas, as SQ_WAVES,GRBM_COUNT"),
        "capture": base.capture_setting("between roctxProfilerResume and Pause"),
    },
    foreign={
        "mpi-impl": "does not trace MPI",
        "sample": "does not sample the CPU",
        "stacks": "records no call stacks",
        "cuda-graph-trace": "always records the kernels inside graphs",
        "gpu-metrics": "reads the counters that --profiler-option pmc=NAME,NAME names, for each kernel",
        "export": "writes what is read: a database, and before ROCm 7 tables",
    },
    check=lambda target, settings: base.trace_names(settings, _TRACES),
    command=("rocprofv3",),
    flags=_flags,
    # Its hooks in HIP's calls stay. It acts on roctxProfilerPause if it traces markers.
    window=lambda target, settings: "marker" in settings["trace"] and base.records_window(target, settings),
    afterwards=base.collect_by_script(__file__, _SCRATCH_PATH),
    start_up=optional_start_up,
    complaint=lambda text: ": rocprofv3 wrote no profile" if "rocprofv3 wrote no profile" in text else "",
    counters=lambda target, settings: bool(settings["pmc"]),
    needs_gpus=lambda settings: True,
    vendors=(Vendor.AMD,),
)
