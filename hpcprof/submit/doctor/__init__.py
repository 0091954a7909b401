"""What works on this machine and what does not, with the remedy: ``hpcprof doctor``."""

from hpcprof.submit.doctor.checks import CHECKS
from hpcprof.submit.doctor.finding import Finding, Status
from hpcprof.submit.doctor.machine import Machine
from hpcprof.submit.doctor.running import examine

__all__ = ["CHECKS", "Finding", "Machine", "Status", "examine"]
