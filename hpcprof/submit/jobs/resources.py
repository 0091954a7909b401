"""Checks of the resources that a user asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations

from hpcprof.common.errors import UsageError
from hpcprof.common.units import mebibytes, parse_memory
from hpcprof.submit.jobs.job import OPTIONS, Job
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import GPUS, Scheduler
from hpcprof.submit.sites.model import Site

_VALUE = r"[^\s\"'\\#$`]+"
_PASSED_ON = re.compile(rf"-[A-Za-z] ?({_VALUE})?|--[a-z][a-z0-9-]*([= ]{_VALUE})?")


def check_resources(job: Job, site: Site, given: Mapping[str, str]) -> None:
    """Check what a job asks of its nodes; ``given`` are the options of the site that the user gave.

    Raises
    ------
    UsageError
        If the scheduler cannot be asked for it, a node has less, or two options set the same.
    """
    scheduler = find_scheduler(site.scheduler)
    _check_scheduler(job, site, scheduler)
    _check_node(job, site)
    for argument in job.scheduler_args:
        _check_passed_on(argument, site, scheduler)
    for (one, sets), (other, sets_too) in combinations(_claims(job, site, scheduler, given), 2):
        if both := sorted(sets & sets_too):
            raise UsageError(f"{one} and {other} both set {' and '.join(both)}; give one of them.")


def _check_scheduler(job: Job, site: Site, scheduler: Scheduler) -> None:
    for field, option in OPTIONS.items():
        if not option.resource or field in scheduler.resources or getattr(job, field) in (None, "", []):
            continue
        shown = option.shown(getattr(job, field))
        raise UsageError(f"{shown}: site {site.name} {scheduler.no_resources}; leave it out.")


def _check_node(job: Job, site: Site) -> None:
    node, ranks = site.node, job.ranks_per_node
    cpus = node.cores * node.threads if node.cores else None
    if job.mem and node.memory and mebibytes(job.mem) > mebibytes(parse_memory(node.memory)):
        raise UsageError(f"--mem {job.mem}: a node of {site.name} has {node.memory}; ask for at most that.")
    for field, what, limit in (("cpus_per_rank", "CPUs", cpus), ("gpus_per_rank", "GPUs", node.gpus)):
        count = getattr(job, field)
        if count is not None and limit is not None and count * ranks > limit:
            raise UsageError(
                f"{OPTIONS[field].shown(count)} with --ranks-per-node {ranks} takes {count * ranks} {what} "
                f"of a node, but one of {site.name} has {limit}; use at most {limit // ranks}."
            )


def _check_passed_on(argument: str, site: Site, scheduler: Scheduler) -> None:
    if not _PASSED_ON.fullmatch(argument):
        raise UsageError(
            f"--scheduler-arg {argument!r}: write one option of {scheduler.title}, as in "
            "--scheduler-arg=--exclude=n3, without quotes, \\, #, $ and `."
        )
    taken = scheduler.own_settings(site)
    for setting in sorted(scheduler.settings(argument) & taken.keys()):
        raise UsageError(f"--scheduler-arg {argument}: hpcprof sets {setting} itself; {taken[setting]}.")


def _claims(
    job: Job, site: Site, scheduler: Scheduler, given: Mapping[str, str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield what the user gave, with what it sets in the script."""
    for field, line in scheduler.resource_directives(job).items():
        yield OPTIONS[field].shown(getattr(job, field)), scheduler.settings(line)
    for field, key in scheduler.resource_options.items():
        if getattr(job, field) not in (None, ""):
            yield OPTIONS[field].shown(getattr(job, field)), frozenset({key})
        if given.get(key):
            yield f"-o {key}={given[key]}", frozenset({key})
    if job.gpus_per_rank is not None:
        yield OPTIONS["gpus_per_rank"].shown(job.gpus_per_rank), frozenset({GPUS})
    for key, value in given.items():
        if value and site.options[key].directive:
            yield f"-o {key}={value}", scheduler.settings(site.options[key].directive.replace("{}", value))
    for argument in job.scheduler_args:
        yield f"--scheduler-arg {argument}", scheduler.settings(argument)
