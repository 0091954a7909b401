"""What works on this machine and what does not, with the remedy: ``hpcprof doctor``."""

from hpcprof.doctor.checks import CHECKS
from hpcprof.doctor.finding import Finding, Status
from hpcprof.doctor.machine import Machine
from hpcprof.doctor.running import examine

__all__ = ["CHECKS", "Finding", "Machine", "Status", "examine"]
