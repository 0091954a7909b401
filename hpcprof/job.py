"""The job: what is asked for, resolved and checked against a site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcprof import profilers
from hpcprof.errors import UsageError, unknown
from hpcprof.ranks import select
from hpcprof.site_model import Site
from hpcprof.walltime import parse_walltime
from hpcprof.workloads import catalogue


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one submission asks for.

    ``arguments`` is the program's whole command where ``workload`` is None, else the workload's
    arguments. ``walltime`` is in seconds. ``options`` are the site's options with its defaults
    filled in. ``directory`` is where the program runs.
    """

    name: str
    site: str
    workload: str | None
    arguments: list[str]
    directory: str
    nodes: int = 1
    ranks_per_node: int = 1
    walltime: int = 3600
    profiler: str = "none"
    profile_ranks: str = "all"
    queue: str = ""
    account: str = ""
    options: dict[str, str] = {}

    @property
    def scheduler_name(self) -> str:
        """The job's name as every batch system takes it: no spaces, and at most 15 characters for old PBS."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name).strip("-.")[:15] or "job"

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return self.nodes * self.ranks_per_node

    @property
    def profiled_ranks(self) -> list[int]:
        """The ranks that run under the profiler."""
        if self.profiler == "none":
            return []
        return select(self.profile_ranks, self.nodes, self.ranks_per_node)


def make_job(
    site: Site,
    *,
    workload: str | None = None,
    arguments: list[str] | None = None,
    name: str | None = None,
    nodes: int = 1,
    ranks_per_node: int = 1,
    walltime: str | None = None,
    profiler: str = "none",
    profile_ranks: str = "all",
    queue: str = "",
    account: str = "",
    options: Mapping[str, str] | None = None,
) -> Job:
    """Build a job and check everything that can be checked before it is submitted.

    Raises
    ------
    UsageError
        For the first value that is wrong: it is named, with what would be valid.
    """
    arguments = list(arguments or [])
    program = catalogue.find(workload) if workload is not None else None
    if program is None and not arguments:
        raise UsageError("nothing to run: give --workload NAME, or a program after --.")
    if profiler not in profilers.PROFILERS:
        raise unknown("profiler", profiler, profilers.PROFILERS)
    job = Job(
        name=name or workload or Path(arguments[0]).name or "job",
        site=site.name,
        workload=workload,
        arguments=arguments,
        directory=str(Path.cwd()),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        walltime=parse_walltime(walltime or site.walltime),
        profiler=profiler,
        profile_ranks=profile_ranks,
        queue=queue or site.queue,
        account=account,
        options=_options(site, options or {}),
    )
    select(profile_ranks, nodes, ranks_per_node)
    _check_nodes(job, site)
    if program is not None:
        program.check(arguments, job.ranks)
    return job


def _options(site: Site, given: Mapping[str, str]) -> dict[str, str]:
    for key in given:
        if key not in site.options:
            raise unknown("option", key, site.options, f" of site {site.name}")
    for key, option in site.options.items():
        if option.required and not given.get(key):
            raise UsageError(f"site {site.name} needs the option {key} ({option.help}): give -o {key}=VALUE.")
    return {key: given.get(key, option.default) for key, option in site.options.items()}


def _check_nodes(job: Job, site: Site) -> None:
    if site.scheduler.value == "local":
        if job.nodes != 1:
            raise UsageError(f"--nodes {job.nodes}: site {site.name} is this machine alone; use --nodes 1.")
        if job.queue:
            raise UsageError(f"--queue {job.queue}: site {site.name} has no batch system; leave it out.")
    if site.node.cores is not None and job.ranks_per_node > site.node.cores:
        raise UsageError(
            f"--ranks-per-node {job.ranks_per_node}: a node of {site.name} has {site.node.cores} cores."
        )
