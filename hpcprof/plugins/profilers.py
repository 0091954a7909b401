"""Declarations of profilers, for the entry points of the group ``hpcprof.profilers``."""

from hpcprof.submit.profilers.base import (
    FOLDER,
    GPUS,
    NAME,
    OUTPUT,
    SCRATCH,
    SECONDS,
    OnNode,
    PerfEvents,
    Profiler,
    Setting,
    Target,
    Versioned,
)

__all__ = [
    "FOLDER",
    "GPUS",
    "NAME",
    "OUTPUT",
    "SCRATCH",
    "SECONDS",
    "OnNode",
    "PerfEvents",
    "Profiler",
    "Setting",
    "Target",
    "Versioned",
]
