"""The options of the workload ``network``, parsed on the submit side and on the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.common.errors import UsageError
from hpcprof.workloads.arguments import Options, WorkloadParser

OUTPUT = "network.csv"
"""The table in the run's folder: op, bytes, ranks, nodes, time_us, algbw_gb_s, busbw_gb_s."""
LIBRARIES = ("auto", "nccl", "gloo", "mpi")


@dataclass(frozen=True)
class Parameters(Options):
    """The library and the sizes that are measured."""

    library: str = "auto"
    max_bytes: int = 1 << 30
    budget_ms: int = 100

    def validate(self, world_size: int) -> None:
        """Raise `UsageError` for one rank, which has nobody to talk to."""
        if world_size < 2:
            raise UsageError("network: a network needs at least two ranks.")


def parse(arguments: Sequence[str]) -> Parameters:
    """Parse the arguments of the workload.

    Raises UsageError if an option is unknown, or its value is wrong, and InformationRequested if ``--help``
    is given.
    """
    parser = WorkloadParser(
        "network",
        "Time all-reduce, all-gather, reduce-scatter, all-to-all and send, from 8 bytes and 2 ranks on.",
        Parameters(),
    )
    parser.choice("--library", LIBRARIES, "what carries the data; auto is NCCL with GPUs, else MPI")
    parser.number("--max-bytes", 8, "largest buffer of a rank in bytes")
    parser.number("--budget-ms", 1, "time for the repetitions of each size")
    return Parameters(**parser.given(arguments))
