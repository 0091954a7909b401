"""No profiler."""

from hpcprof.submit.profilers.base import Profiler

NONE = Profiler("none", "run the program as it is")
