"""The start-up hook of the PyTorch profiler, for programs that do not mark what to profile.

A run has a copy of it in ``hook/``, which is first on ``PYTHONPATH`` of the profiled ranks. It runs without
hpcprof, under any Python from 3.8: it imports nothing but the standard library.
"""

PACKAGE = "hpcprof_torch_hook"
"""The name of this package in a run, where it must not be taken for a part of hpcprof."""
