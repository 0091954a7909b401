"""Which class speaks to which scheduler."""

from __future__ import annotations

from importlib import import_module

from hpcprof.submit.schedulers.base import Scheduler
from hpcprof.submit.sites.model import SchedulerName

_CLASSES = {
    SchedulerName.KUBERNETES: "hpcprof.submit.schedulers.kubernetes:KubernetesScheduler",
    SchedulerName.LOCAL: "hpcprof.submit.schedulers.local:LocalScheduler",
    SchedulerName.PBS: "hpcprof.submit.schedulers.pbs:PbsScheduler",
    SchedulerName.SLURM: "hpcprof.submit.schedulers.slurm:SlurmScheduler",
}


def scheduler_for(name: SchedulerName) -> Scheduler:
    """Return the scheduler called ``name``; its module is imported when it is needed."""
    module, _, cls = _CLASSES[name].partition(":")
    scheduler: Scheduler = getattr(import_module(module), cls)()
    return scheduler
