"""Check what works on this machine, and suggest fixes: ``hpcprof doctor``."""

from hpcprof.submit.doctor.checks import CHECKS, examine
from hpcprof.submit.doctor.machine import CheckResult, Inspected, Status
from hpcprof.submit.doctor.node_evidence import node_evidence

__all__ = ["CHECKS", "CheckResult", "Inspected", "Status", "examine", "node_evidence"]
