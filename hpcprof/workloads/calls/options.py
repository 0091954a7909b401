"""The options of the workload ``calls``, parsed on the submit side and on the rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.common.errors import UsageError
from hpcprof.workloads.arguments import Options, WorkloadParser, option

OUTPUT = "calls.csv"
"""The table in the run's folder: kind, call, ns (the median of the rounds of the quickest process)."""


@dataclass(frozen=True)
class Parameters(Options):
    """The rounds and processes in which calls are timed."""

    rounds: int = option(20, "timed rounds of each call in a process", minimum=1)
    processes: int = option(8, "processes, one after another; 0: print the times of this one", minimum=0)

    def validate(self, world_size: int) -> None:
        """Raise `UsageError` for several ranks, which would disturb each other."""
        if world_size > 1:
            raise UsageError("calls: calls are timed on one rank.")


def parse(arguments: Sequence[str]) -> Parameters:
    """Parse the arguments of the workload; `InformationRequested` for ``--help``."""
    parser = WorkloadParser("calls", "Time single calls of CUDA's driver in loops.", Parameters)
    parser.add()
    return Parameters(**parser.given(arguments))
