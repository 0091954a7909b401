"""A job against its site: what the scheduler would refuse, or would accept and never run, is said before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpcprof.errors import UsageError, unknown
from hpcprof.site_model import Queue, SchedulerName, Site, Vendor
from hpcprof.walltime import format_walltime, parse_walltime

if TYPE_CHECKING:
    from hpcprof.job import Job

_NVIDIA_PROFILERS = ("nsys", "ncu")


def site_options(site: Site, given: Mapping[str, str]) -> dict[str, str]:
    """Return the site's options with their values, defaults filled in.

    Raises
    ------
    UsageError
        For an option or a value that the site does not have, or one that is missing.
    """
    for key, value in given.items():
        if key not in site.options:
            raise unknown("option", key, site.options, f" of site {site.name}")
        valid = site.options[key].valid
        for part in value.split(":") if valid else ():
            if part not in valid:
                raise unknown("value", part, valid, f" in -o {key}={value} of site {site.name}")
    for key, option in site.options.items():
        if option.required and not given.get(key):
            choices = f" Valid: {', '.join(option.valid)}." if option.valid else ""
            raise UsageError(
                f"site {site.name} needs the option {key} ({option.help}): give -o {key}=VALUE.{choices}"
            )
    return {key: given.get(key, option.default) for key, option in site.options.items()}


def check(job: Job, site: Site) -> None:
    """Check a job against what its site says of itself.

    Raises
    ------
    UsageError
        For the first value that is wrong: it is named, with what would be valid.
    """
    if site.scheduler is SchedulerName.LOCAL:
        if job.nodes != 1:
            raise UsageError(f"--nodes {job.nodes}: site {site.name} is this machine alone; use --nodes 1.")
        if job.queue:
            raise UsageError(f"--queue {job.queue}: site {site.name} has no batch system; leave it out.")
    for name in site.requires:
        if not getattr(job, name):
            raise UsageError(f"site {site.name} requires --{name}.")
    _check_node(job, site)
    if site.scheduler is SchedulerName.SLURM and job.walltime % 60:
        longer = job.walltime + 60 - job.walltime % 60
        nearest = " or ".join(format_walltime(seconds) for seconds in (longer - 60, longer) if seconds)
        raise UsageError(
            f"walltime {format_walltime(job.walltime)}: Slurm counts in minutes and would round it up; "
            f"write {nearest}."
        )
    if site.queues and job.queue:
        if job.queue not in site.queues:
            raise unknown("queue", job.queue, site.queues, f" of site {site.name}")
        _check_queue(job, site, job.queue)


def _check_node(job: Job, site: Site) -> None:
    for what, limit in (("cores", site.node.cores), ("GPUs", site.node.gpus)):
        if limit is not None and job.ranks_per_node > limit:
            raise UsageError(
                f"--ranks-per-node {job.ranks_per_node}: a node of {site.name} has {limit} {what}."
            )
    if job.profiler in _NVIDIA_PROFILERS and site.node.vendor is not Vendor.NVIDIA:
        raise UsageError(
            f"--profiler {job.profiler}: the GPUs of {site.name} are not NVIDIA's; use --profiler torch."
        )


def _check_queue(job: Job, site: Site, name: str) -> None:
    """Check the limits of a queue, behind a routing one those of the execution queues.

    PBS accepts a job that fits the routing queue and none behind it, and such a job can vanish.
    """
    queue = site.queues[name]
    wrong = _misfit(job, queue)
    if wrong:
        raise UsageError(f"queue {name} of {site.name} takes {wrong}")
    behind = {route: _misfit(job, site.queues[route]) for route in queue.routes if route in site.queues}
    if behind and all(behind.values()):
        each = "; ".join(f"{route} takes {why.rstrip('.')}" for route, why in behind.items())
        raise UsageError(f"no queue behind {name} of {site.name} would run this job: {each}.")


def _misfit(job: Job, queue: Queue) -> str:
    """Say which limit of a queue a job is beyond; empty where it fits."""
    if job.nodes < queue.min_nodes or (queue.max_nodes is not None and job.nodes > queue.max_nodes):
        most = f" to {queue.max_nodes}" if queue.max_nodes is not None else " or more"
        return f"{queue.min_nodes}{most} nodes, not {job.nodes}."
    if queue.max_walltime and job.walltime > parse_walltime(queue.max_walltime):
        return f"at most {queue.max_walltime}, not {format_walltime(job.walltime)}."
    if queue.min_walltime and job.walltime < parse_walltime(queue.min_walltime):
        return f"at least {queue.min_walltime}, not {format_walltime(job.walltime)}."
    return ""
