"""Intel's unitrace, of the Tools for Profiling Interfaces (PTI).

It writes a Chrome trace for each process. Steps are chosen by a variable of the environment that the program
sets while it runs (``PTI_ENABLE_COLLECTION``).
"""

from hpcprof.submit.profilers import base
from hpcprof.submit.profilers.base import Profiler, Setting, Settings, Target, Word
from hpcprof.submit.profilers.torch_profiler import optional_start_up
from hpcprof.submit.sites.model import Vendor

_TRACES = {
    "kernel": "--chrome-kernel-logging",
    "call": "--chrome-call-logging",
    "sycl": "--chrome-sycl-logging",
    "itt": "--chrome-itt-logging",
    "ccl": "--chrome-ccl-logging",
    "dnn": "--chrome-dnn-logging",
    "mpi": "--chrome-mpi-logging",
}
_OPTIONAL = ("sycl", "itt", "ccl", "dnn", "mpi")
"""Traces that unitrace has only if it was built with them."""


def _flags(target: Target, settings: Settings) -> tuple[Word, ...]:
    names = base.trace_names(settings, _TRACES)
    ranged = base.captures_range(target, settings)
    spellings = ("--conditional-collection", "--start-paused")
    paused = base.Versioned(spellings[::-1] if ranged else spellings)
    group = settings["metrics"]
    return (
        *(base.Versioned((_TRACES[name],), required=False) for name in names if name in _OPTIONAL),
        *((paused,) if ranged or base.records_window(target, settings) else ()),
        # Only in a folder of their own have tables of counters names that tell their process.
        *((base.Versioned(("--result-dir",), f"{base.SCRATCH}/unitrace", joined=False),) if group else ()),
        *(_TRACES[name] for name in names if name not in _OPTIONAL),
        *(("--metric-query", "--group", group) if group else ("--output-dir-path", base.SCRATCH)),
    )


UNITRACE = Profiler(
    "unitrace",
    "Intel's unitrace: Level Zero, SYCL, oneCCL, MPI and ITT",
    settings={
        "trace": Setting(f"what to trace, joined by commas: {', '.join(_TRACES)}", "kernel,call,itt,ccl,mpi"),
        "metrics": Setting(
            "the group of hardware counters to read for each kernel, as ComputeBasic (unitrace --metric-list)"
        ),
        "capture": base.capture_setting("while PTI_ENABLE_COLLECTION is 1"),
    },
    foreign={
        "mpi-impl": "knows the MPI that it was built with",
        "sample": "does not sample the CPU",
        "stacks": "records no call stacks",
        "cuda-graph-trace": "traces no CUDA graphs",
        "gpu-metrics": "reads the counters of the group that --profiler-option metrics=GROUP names",
        "export": "writes what is read: a Chrome trace",
    },
    check=lambda target, settings: base.trace_names(settings, _TRACES),
    command=("unitrace",),
    flags=_flags,
    window=base.records_window,
    environment=lambda target, settings: (
        {"PTI_ENABLE_COLLECTION": "1"} if base.records_window(target, settings) else {}
    ),
    start_up=optional_start_up,
    afterwards=base.collect_by_script(__file__, base.SCRATCH),
    complaint=lambda text: ": unitrace wrote no trace" if "unitrace wrote no trace" in text else "",
    counters=lambda target, settings: bool(settings["metrics"]),
    needs_gpus=lambda settings: True,
    vendors=(Vendor.INTEL,),
)
