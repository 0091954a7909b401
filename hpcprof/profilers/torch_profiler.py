"""The PyTorch profiler, which runs inside the program: nothing stands before it on the command line.

The workloads of hpcprof start and stop it themselves (`hpcprof.workloads.capture`); a program of the
user's does so with the same class.
"""

from hpcprof.profilers.base import Profiler

TORCH = Profiler(
    "torch",
    "the PyTorch profiler, CPU and GPU",
    prefix=lambda workload: (),
    suffix=".trace.json.gz",
)
