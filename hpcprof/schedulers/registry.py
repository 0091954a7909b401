"""Which class speaks to which scheduler."""

from __future__ import annotations

from importlib import import_module

from hpcprof.schedulers.base import Scheduler
from hpcprof.site_model import SchedulerName

_CLASSES = {
    SchedulerName.KUBERNETES: "hpcprof.schedulers.kubernetes:KubernetesScheduler",
    SchedulerName.LOCAL: "hpcprof.schedulers.local:LocalScheduler",
    SchedulerName.PBS: "hpcprof.schedulers.pbs:PbsScheduler",
    SchedulerName.SLURM: "hpcprof.schedulers.slurm:SlurmScheduler",
}


def scheduler_for(name: SchedulerName) -> Scheduler:
    """Return the scheduler called ``name``; its module is imported when it is needed."""
    module, _, cls = _CLASSES[name].partition(":")
    scheduler: Scheduler = getattr(import_module(module), cls)()
    return scheduler
