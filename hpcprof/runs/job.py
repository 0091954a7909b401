"""The job of a run, as its manifest records it."""

import msgspec

from hpcprof.runs.job_name import command_options, default_job_name
from hpcprof.runs.rank_selection import select_ranks


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one submission: a request that was checked against its site, with defaults filled in.

    ``directory`` is the working directory of the program, ``arguments`` the workload's arguments, or the
    whole command of a program. The walltime is in seconds, and ``after`` has the ids of runs in the same
    folder, or paths. An empty text and a number that is None leave it to the site.
    ``workers`` are the words of a launcher such as torchrun that starts the ranks of a node.
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
    cpus_per_rank: int | None = None
    gpus_per_rank: int | None = None
    mem: str = ""
    constraint: str = ""
    reservation: str = ""
    scheduler_args: list[str] = []
    stall_timeout: int = 600
    on_stall: str = "report"
    capture_when: int = 0
    memory_history: str = ""
    stage_env: str = ""
    no_hook: bool = False
    no_telemetry: bool = False
    notify: list[str] = []
    workers: list[str] = []
    launcher_args: list[str] = []
    signal: str = ""
    on_timeout: str = "report"
    leftover_grace: int = 30
    reference: bool = False

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def program(self) -> str:
        """The program of the job: its workload, or the name of the user's script."""
        return self.workload or (default_job_name(self.arguments) if self.arguments else self.name)

    @property
    def words(self) -> list[str]:
        """The words of the program: the name of its workload with options, or the user's command."""
        return [self.workload, *self.arguments] if self.workload else self.arguments

    @property
    def program_options(self) -> dict[str, str]:
        """The options of the program by name, as `command_options` finds them."""
        return command_options(self.words) if self.words else {}

    @property
    def profiled_ranks(self) -> list[int]:
        """The ranks that run under the profiler."""
        if self.profiler == "none":
            return []
        return select_ranks(self.profile_ranks, self.nodes, self.ranks_per_node)
