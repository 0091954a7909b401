"""Questions that take several runs: slowdown by communication, kernel metrics, whether explain is right."""

from hpcprof.study.kernel_metrics import KernelMetricsStudy, run_kernel_metrics
from hpcprof.study.roles import Role, run_roles
from hpcprof.study.site_measurements import NetworkStudy, run_network
from hpcprof.study.slowdown import Alone, SlowdownStudy, resume_slowdown, run_slowdown
from hpcprof.study.validation import ValidationStudy, resume_validation, run_validation

__all__ = [
    "Alone",
    "KernelMetricsStudy",
    "NetworkStudy",
    "Role",
    "SlowdownStudy",
    "ValidationStudy",
    "resume_slowdown",
    "resume_validation",
    "run_kernel_metrics",
    "run_network",
    "run_roles",
    "run_slowdown",
    "run_validation",
]
