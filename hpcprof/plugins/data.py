"""Profiles, as readers return them and analyses take them, and the results of analyses."""

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.profiles.kernel_report import KernelReport, MeasuredKernel
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.timeline import (
    NO_NAME,
    Allocations,
    ApiCalls,
    Category,
    Collectives,
    Fact,
    Functions,
    Gpu,
    GpuMarks,
    Kernels,
    MemoryOperations,
    Operators,
    Origin,
    Ranges,
    Style,
    Synchronizations,
    SyncKind,
    Timeline,
)

__all__ = [
    "NO_NAME",
    "Allocations",
    "ApiCalls",
    "Category",
    "Collectives",
    "Fact",
    "Functions",
    "Gpu",
    "GpuMarks",
    "KernelReport",
    "Kernels",
    "Loss",
    "LossKind",
    "MeasuredKernel",
    "MemoryOperations",
    "Operators",
    "Origin",
    "Outcome",
    "Ranges",
    "RunData",
    "Style",
    "Subject",
    "SyncKind",
    "Synchronizations",
    "Timeline",
    "no_rows",
]
