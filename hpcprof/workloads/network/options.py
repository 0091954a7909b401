"""The options of the workload ``network``, parsed on the submit side and on the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.common.errors import UsageError
from hpcprof.workloads.arguments import Options, WorkloadParser, option

OUTPUT = "network.csv"
"""The table in the run's folder: op, bytes, ranks, nodes, time_us, algbw_gb_s, busbw_gb_s."""
LIBRARIES = ("auto", "nccl", "gloo", "mpi")


@dataclass(frozen=True)
class Parameters(Options):
    """The library and the sizes that are measured."""

    library: str = option(
        "auto", "what carries the data; auto is NCCL with GPUs, else MPI", choices=LIBRARIES
    )
    max_bytes: int = option(1 << 30, "largest buffer of a rank in bytes", minimum=8)
    budget_ms: int = option(100, "time for the repetitions of each size", minimum=1)

    def validate(self, world_size: int) -> None:
        """Raise `UsageError` for a single rank, which has no peer."""
        if world_size < 2:
            raise UsageError("network: a network needs at least two ranks.")


def parse(arguments: Sequence[str]) -> Parameters:
    """Parse the arguments of the workload; `InformationRequested` for ``--help``."""
    parser = WorkloadParser(
        "network",
        "Time all-reduce, all-gather, reduce-scatter, all-to-all and send, from 8 bytes and 2 ranks on.",
        Parameters,
    )
    parser.add()
    return Parameters(**parser.given(arguments))
