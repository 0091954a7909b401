"""hpcprof: batch submission and profiling for HPC and machine-learning runs."""

__version__ = "0.1.0"
