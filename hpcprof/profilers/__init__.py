"""The profilers: how each one starts a rank's program, and which files it leaves."""

from hpcprof.profilers.base import FOLDER, GPUS, NAME, OUTPUT, SCRATCH, Profiler, Target, Versioned
from hpcprof.profilers.ncu import NCU
from hpcprof.profilers.none import NONE
from hpcprof.profilers.nsys import NSYS
from hpcprof.profilers.torch_profiler import TORCH

PROFILERS: dict[str, Profiler] = {profiler.name: profiler for profiler in (NONE, NSYS, NCU, TORCH)}

__all__ = ["FOLDER", "GPUS", "NAME", "OUTPUT", "PROFILERS", "SCRATCH", "Profiler", "Target", "Versioned"]
