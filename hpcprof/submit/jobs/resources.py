"""Checks of the resources that a user asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import GPUS, Scheduler
from hpcprof.submit.sites.model import Site

_FIELDS = ("cpus_per_rank", "gpus_per_rank", "mem", "constraint", "scheduler_args")
"""The fields of a job that ask for resources."""

_MEMORY = re.compile(r"(?P<number>[1-9]\d{0,8})(?P<unit>[KMGT])(I?B|I)?", re.IGNORECASE)
_VALUE = r"[^\s\"'\\#$`]+"
_CONSTRAINT = re.compile(_VALUE)
_PASSED_ON = re.compile(rf"-[A-Za-z] ?({_VALUE})?|--[a-z][a-z0-9-]*([= ]{_VALUE})?")


def parse_memory(text: str, option: str = "--mem") -> str:
    """Return an amount of memory as a whole number with K, M, G or T, which are powers of 1024.

    Raises
    ------
    UsageError
        If ``text`` is something else. A bare number is refused, because PBS and Slurm read it differently.
    """
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text}: write a whole number with K, M, G or T, as in 64G.")
    return match["number"] + match["unit"].upper()


def mebibytes(memory: str) -> float:
    """Return an amount that `parse_memory` has returned in MiB."""
    return int(memory[:-1]) * 1024.0 ** ("KMGT".index(memory[-1]) - 1)


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
    if job.constraint and not _CONSTRAINT.fullmatch(job.constraint):
        raise UsageError(f"--constraint {job.constraint!r}: write it without spaces, quotes, \\, #, $ and `.")
    for argument in job.scheduler_args:
        _check_passed_on(argument, site, scheduler)
    for (one, sets), (other, sets_too) in combinations(_claims(job, site, scheduler, given), 2):
        if both := sorted(sets & sets_too):
            raise UsageError(f"{one} and {other} both set {' and '.join(both)}; give one of them.")


def _check_scheduler(job: Job, site: Site, scheduler: Scheduler) -> None:
    for field in _FIELDS:
        value = getattr(job, field)
        if value in (None, "", []):
            continue
        if field not in scheduler.resources:
            reason = scheduler.no_resources
            raise UsageError(f"{_shown(field, value)}: site {site.name} {reason}; leave it out.")


def _check_node(job: Job, site: Site) -> None:
    node, ranks = site.node, job.ranks_per_node
    cpus = node.cores * node.threads if node.cores else None
    if job.mem and node.memory and mebibytes(job.mem) > mebibytes(parse_memory(node.memory)):
        raise UsageError(f"--mem {job.mem}: a node of {site.name} has {node.memory}; ask for at most that.")
    asked = (("cpus_per_rank", "CPUs", 1, cpus), ("gpus_per_rank", "GPUs", 0, node.gpus))
    for field, what, least, limit in asked:
        count = getattr(job, field)
        if count is None:
            continue
        if count < least:
            raise UsageError(f"{_shown(field, count)}: write a whole number from {least}.")
        if limit is not None and count * ranks > limit:
            raise UsageError(
                f"{_shown(field, count)} with --ranks-per-node {ranks} takes {count * ranks} {what} of a "
                f"node, but one of {site.name} has {limit}; use at most {limit // ranks}."
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
        yield _shown(field, getattr(job, field)), scheduler.settings(line)
    for field, key in scheduler.resource_options.items():
        if getattr(job, field) not in (None, ""):
            yield _shown(field, getattr(job, field)), frozenset({key})
        if given.get(key):
            yield f"-o {key}={given[key]}", frozenset({key})
    if job.gpus_per_rank is not None:
        yield _shown("gpus_per_rank", job.gpus_per_rank), frozenset({GPUS})
    for key, value in given.items():
        if value and site.options[key].directive:
            yield f"-o {key}={value}", scheduler.settings(site.options[key].directive.replace("{}", value))
    for argument in job.scheduler_args:
        yield f"--scheduler-arg {argument}", scheduler.settings(argument)


def _shown(field: str, value: object) -> str:
    """Return an option as the user wrote it."""
    flag = f"--{field.removesuffix('s') if isinstance(value, list) else field}".replace("_", "-")
    return f"{flag} {' '.join(value) if isinstance(value, list) else value}"
