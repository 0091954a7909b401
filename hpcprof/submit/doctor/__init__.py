"""Check what works on this machine, and name the remedy for what does not: ``hpcprof doctor``."""

from hpcprof.submit.doctor.checks import CHECKS, examine
from hpcprof.submit.doctor.machine import Finding, Machine, Status

__all__ = ["CHECKS", "Finding", "Machine", "Status", "examine"]
