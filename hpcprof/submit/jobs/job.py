"""The job: what one submission asks for, resolved against a site."""

from __future__ import annotations

import msgspec

from hpcprof.submit.jobs.job_name import command_options, default_job_name, runs_python
from hpcprof.submit.jobs.rank_selection import select_ranks
from hpcprof.submit.profilers import NONE, Target


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one submission.

    Attributes
    ----------
    name, site : str
        The name of the job, and of its site.
    workload : str or None
        A built-in workload; None for a program of the user's.
    arguments : list of str
        The workload's arguments, or the whole command of the program.
    directory : str
        The working directory of the program.
    nodes, ranks_per_node : int
        The size of the job.
    walltime : int
        The time limit in seconds.
    profiler, profile_ranks, capture_steps : str
        The profiler, the rank selection, and the steps to capture (empty for all).
    profiler_options, options : dict
        The profiler's options and the site's, defaults filled in.
    queue, account : str
        As the scheduler takes them; empty for none.
    cpus_per_rank, gpus_per_rank : int or None
        What each rank gets; None leaves it to the site.
    mem : str
        The memory on each node, such as ``64G``; empty leaves it to the site.
    constraint : str
        The kind of nodes, as the scheduler takes it; empty for any.
    scheduler_args : list of str
        Further options of the scheduler, which become directives.
    after : list of str
        Runs that must have succeeded before: ids in the same folder of runs, or paths.
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
    cpus_per_rank: int | None = None
    gpus_per_rank: int | None = None
    mem: str = ""
    constraint: str = ""
    scheduler_args: list[str] = []

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def program(self) -> str:
        """The program of the job: its workload, or the name of the user's script."""
        return self.workload or (default_job_name(self.arguments) if self.arguments else self.name)

    @property
    def program_options(self) -> dict[str, str]:
        """The options of the program by name, as `command_options` finds them."""
        command = [self.workload, *self.arguments] if self.workload else self.arguments
        return command_options(command) if command else {}

    @property
    def target(self) -> Target:
        """The facts about the job that the profiler needs."""
        captures = self.capture_steps.count(",") + 1 if self.capture_steps else 0
        in_python = self.workload is not None or runs_python(self.arguments)
        return Target(
            self.workload, self.ranks, captures, len(self.profiled_ranks), self.nodes, in_python=in_python
        )

    @property
    def profiled_ranks(self) -> list[int]:
        """The ranks that run under the profiler."""
        if self.profiler == NONE.name:
            return []
        return select_ranks(self.profile_ranks, self.nodes, self.ranks_per_node)
