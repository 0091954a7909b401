"""No profiler."""

from hpcprof.profilers.base import Profiler

NONE = Profiler("none", "run the program as it is")
