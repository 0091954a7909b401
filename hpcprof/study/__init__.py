"""Questions that take several runs: the slowdown by communication, kernel metrics, training tables."""

from hpcprof.study.kernel_metrics import KernelMetricsStudy, run_kernel_metrics
from hpcprof.study.slowdown import Alone, SlowdownStudy, resume_slowdown, run_slowdown

__all__ = [
    "Alone",
    "KernelMetricsStudy",
    "SlowdownStudy",
    "resume_slowdown",
    "run_kernel_metrics",
    "run_slowdown",
]
