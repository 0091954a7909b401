"""The job: what one submission asks for, resolved against a site."""

from __future__ import annotations

import msgspec

from hpcprof.submit.jobs.rank_selection import select
from hpcprof.submit.profilers import NONE, Target


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
    profiler: str = NONE.name
    profile_ranks: str = "all"
    profiler_options: dict[str, str] = {}
    capture_steps: str = ""
    queue: str = ""
    account: str = ""
    options: dict[str, str] = {}
    after: list[str] = []

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
        if self.profiler == NONE.name:
            return []
        return select(self.profile_ranks, self.nodes, self.ranks_per_node)
