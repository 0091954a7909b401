"""The job: what one submission asks for, resolved against a site."""

from __future__ import annotations

import re

import msgspec

from hpcprof.submit.jobs.rank_selection import select
from hpcprof.submit.profilers import Target


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one submission asks for.

    ``arguments`` is the program's whole command where ``workload`` is None, else the workload's
    arguments. ``walltime`` is in seconds. ``options`` are the site's options, and
    ``profiler_options`` the profiler's, with defaults filled in. ``directory`` is where the program runs.
    ``after`` holds the ids of runs that must have succeeded before, or the paths of those that stand
    elsewhere.
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
    profiler_options: dict[str, str] = {}
    capture_steps: str = ""
    queue: str = ""
    account: str = ""
    options: dict[str, str] = {}
    after: list[str] = []

    @property
    def scheduler_name(self) -> str:
        """The job's name as every batch system takes it: no spaces, and at most 15 characters for old PBS."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name).strip("-.")[:15] or "job"

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return self.nodes * self.ranks_per_node

    @property
    def target(self) -> Target:
        """What the profiler needs to know of the job."""
        captures = self.capture_steps.count(",") + 1 if self.capture_steps else 0
        return Target(self.workload, self.ranks, captures, len(self.profiled_ranks), self.nodes)

    @property
    def profiled_ranks(self) -> list[int]:
        """The ranks that run under the profiler."""
        if self.profiler == "none":
            return []
        return select(self.profile_ranks, self.nodes, self.ranks_per_node)
