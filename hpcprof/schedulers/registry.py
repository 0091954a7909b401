"""Which class speaks to which scheduler."""

from __future__ import annotations

from hpcprof.schedulers.base import Scheduler
from hpcprof.schedulers.local import LocalScheduler
from hpcprof.site import SchedulerName


def scheduler_for(name: SchedulerName) -> Scheduler:
    """Return the scheduler called ``name``."""
    return {SchedulerName.LOCAL: LocalScheduler}[name]()
