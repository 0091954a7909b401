"""Schedulers by name: hpcprof's own, and those that other packages add."""

from functools import cache
from importlib import import_module

from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.plugins import SCHEDULERS, load_plugin, plugin_names
from hpcprof.submit.schedulers.scheduler import Scheduler

# By text, so that a command imports only the scheduler of its site. An instance of Flux may run within a job
# of another scheduler: Flux comes first, as a shell in both is in its job.
BUILT_IN = {
    "local": "hpcprof.submit.schedulers.local.scheduler:LocalScheduler",
    "flux": "hpcprof.submit.schedulers.flux:FluxScheduler",
    "slurm": "hpcprof.submit.schedulers.slurm:SlurmScheduler",
    "pbs": "hpcprof.submit.schedulers.pbs:PbsScheduler",
    "lsf": "hpcprof.submit.schedulers.lsf:LsfScheduler",
    "kubernetes": "hpcprof.submit.schedulers.kubernetes.scheduler:KubernetesScheduler",
}


def scheduler_names() -> list[str]:
    """Return the names of all schedulers, those of other packages last."""
    return [*BUILT_IN, *(name for name in plugin_names(SCHEDULERS) if name not in BUILT_IN)]


@cache
def find_scheduler(name: str, where: str = "") -> Scheduler:
    """Return the scheduler called ``name``; ``where`` says in an error where that is written."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        loaded = getattr(import_module(module), attribute)
    else:
        loaded = load_plugin(SCHEDULERS, name)
        if loaded is None:
            raise unknown("scheduler", name, scheduler_names(), where)
        if not (isinstance(loaded, type) and issubclass(loaded, Scheduler)):
            raise UsageError(
                f"the plug-in {name!r} is not a subclass of hpcprof.plugins.schedulers.Scheduler: {loaded!r}."
            )
    try:
        scheduler: Scheduler = loaded()
    except TypeError as error:  # an abstract class
        raise UsageError(f"the plug-in {name!r} cannot be used: {error}.") from None
    return scheduler
