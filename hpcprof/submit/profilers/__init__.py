"""The profilers: how each one starts a rank's program, and which files it leaves."""

from hpcprof.submit.profilers.base import FOLDER, GPUS, NAME, OUTPUT, SCRATCH, Profiler, Target, Versioned
from hpcprof.submit.profilers.ncu import NCU
from hpcprof.submit.profilers.none import NONE
from hpcprof.submit.profilers.nsys import NSYS
from hpcprof.submit.profilers.torch_profiler import TORCH

PROFILERS: dict[str, Profiler] = {profiler.name: profiler for profiler in (NONE, NSYS, NCU, TORCH)}

__all__ = ["FOLDER", "GPUS", "NAME", "OUTPUT", "PROFILERS", "SCRATCH", "Profiler", "Target", "Versioned"]
