"""Building the job: fill in the defaults, and check all that can be checked before it is submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.checks import check_job, missing_requirements, profiler_at, site_options
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.jobs.job_name import default_job_name
from hpcprof.submit.jobs.rank_selection import select_ranks
from hpcprof.submit.jobs.resources import check_resources, parse_memory
from hpcprof.submit.jobs.walltime import parse_walltime
from hpcprof.submit.profilers import NONE, PROFILERS, Profiler, find_profiler
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue

_MOST_RANKS = 10_000_000
"""More than any machine has: the rank selection makes a list of them."""
_STEPS = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")


def make_job(
    site: Site,
    *,
    workload: str | None = None,
    arguments: list[str] | None = None,
    name: str | None = None,
    nodes: int = 1,
    ranks_per_node: int = 1,
    walltime: str | None = None,
    profiler: str = NONE.name,
    profile_ranks: str = "all",
    profiler_options: Mapping[str, str] | None = None,
    stacks: bool = False,
    capture_steps: str = "",
    queue: str = "",
    account: str = "",
    cpus_per_rank: int | None = None,
    gpus_per_rank: int | None = None,
    mem: str = "",
    constraint: str = "",
    scheduler_args: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    option_defaults: Mapping[str, str] | None = None,
    after: Sequence[str] = (),
    draft: bool = False,
) -> Job:
    """Build a job and check everything that can be checked before it is submitted.

    ``stacks`` adds the options of the profiler that record call stacks, unless ``profiler_options`` has them.
    ``option_defaults`` are options of the site that are replaced by whatever sets the same. A draft may lack
    what the site requires (`hpcprof.submit.jobs.checks.missing_requirements`).

    Raises
    ------
    UsageError
        For the first value that is wrong; the message names it, and what would be valid.
    """
    for option, number in (("--nodes", nodes), ("--ranks-per-node", ranks_per_node)):
        if number < 1:
            raise UsageError(f"{option} {number}: write a whole number from 1.")
    arguments = list(arguments or [])
    program = catalogue.find(workload) if workload is not None else None
    if program is None and not arguments:
        raise UsageError("nothing to run: give --workload NAME, or a program after --.")
    profiler = profiler_at(site, profiler)
    tool = find_profiler(profiler)
    asked = {**(stack_options(tool) if stacks else {}), **(profiler_options or {})}
    job = Job(
        name=name or workload or default_job_name(arguments),
        site=site.name,
        workload=workload,
        arguments=arguments,
        directory=str(Path.cwd()),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        walltime=parse_walltime(walltime or site.walltime),
        profiler=profiler,
        profile_ranks=profile_ranks,
        profiler_options=tool.resolve(asked),
        capture_steps=capture_steps,
        queue=queue or site.queue,
        account=account,
        cpus_per_rank=cpus_per_rank,
        gpus_per_rank=gpus_per_rank,
        mem=parse_memory(mem) if mem else "",
        constraint=constraint,
        scheduler_args=list(scheduler_args),
        options=site_options(site, {**(option_defaults or {}), **(options or {})}),
        after=list(after),
    )
    if job.ranks > _MOST_RANKS:
        raise UsageError(
            f"--nodes {nodes} and --ranks-per-node {ranks_per_node} make {job.ranks:,} ranks; the limit is "
            f"{_MOST_RANKS:,}."
        )
    select_ranks(profile_ranks, nodes, ranks_per_node)
    check_steps(capture_steps, profiler)
    if job.profiled_ranks:
        tool.check(job.target, job.profiler_options)
    lacks = missing_requirements(job, site)
    if lacks and not draft:
        raise UsageError(lacks[0])
    check_job(job, site)
    check_resources(job, site, options or {})
    if program is not None:
        program.check(arguments, job.ranks, profiled=bool(job.profiled_ranks))
    return job


def stack_options(profiler: Profiler) -> Mapping[str, str]:
    """Return the options of a profiler that record call stacks.

    Raises
    ------
    UsageError
        If it records none.
    """
    if not profiler.stacks:
        able = " and ".join(name for name, one in PROFILERS.items() if one.stacks)
        raise UsageError(f"--stacks: the profiler {profiler.name} records no call stacks; {able} do.")
    return profiler.stacks


def check_steps(text: str, profiler: str) -> None:
    """Check a selection of steps such as ``3``, ``10-12`` or ``10-12,20-22``; empty selects all.

    Raises
    ------
    UsageError
        If ``text`` is not such a selection, or the job has no profiler.
    """
    if not text:
        return
    spans = [_STEPS.fullmatch(part) for part in text.split(",")]
    ends = [int(step) for m in spans if m for step in (m["first"], m["last"] or m["first"])]
    rising = all(a <= b for a, b in zip(ends[::2], ends[1::2], strict=True))
    apart = all(a < b for a, b in zip(ends[1::2], ends[2::2], strict=False))
    if None in spans or not rising or not apart:
        raise UsageError(
            f"--capture-steps {text}: write the first and last step, counted from 0, as in 10-12, or several "
            "spans in ascending order, as in 10-12,20-22."
        )
    if profiler == NONE.name:
        raise UsageError(f"--capture-steps {text} needs a profiler: give --profiler.")
