"""The options of the workload ``sequence-parallel-jax``, parsed on the submit side and on the ranks."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.workloads.arguments import Options, WorkloadParser
from hpcprof.workloads.sequence_parallel.parameters import DIRECTIONS, PointParameters

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Parameters(Options):
    """The shape of the problem, and how it is measured; the names are those of ``sequence-parallel``."""

    sequence_length: int = 256
    hidden_size: int = 512
    ffn_multiplier: int = 4
    batch_size: int = 1
    dtype: str = "float32"
    direction: str = "forward"
    steps: int = 20
    warmup: int = 10
    seed: int = 0

    @property
    def rows(self) -> int:
        """The rows of the whole input, R."""
        return self.sequence_length * self.batch_size

    @property
    def inner_size(self) -> int:
        """The columns between the two matmuls over all ranks, f."""
        return self.hidden_size * self.ffn_multiplier

    def validate(self, world_size: int) -> None:
        """Raise `UsageError` if ``world_size`` ranks cannot share the shape evenly."""
        PointParameters(**dataclasses.asdict(self)).validate(world_size)


def parse(arguments: Sequence[str]) -> Parameters:
    """Parse the arguments of the workload.

    Raises UsageError if an option is unknown, or its value is wrong, and InformationRequested if ``--help``
    is given.
    """
    parser = WorkloadParser(
        "sequence-parallel-jax",
        "Benchmark a tensor-parallel block in JAX: all-gather rows, multiply twice, reduce-scatter the sums.",
        Parameters(),
    )
    parser.number(
        "--sequence-length", 1, "rows of one sequence, divisible by the number of ranks", also=["-s"]
    )
    parser.number("--hidden-size", 1, "columns of input and output, h")
    parser.number("--ffn-multiplier", 1, "inner width divided by hidden size, f / h")
    parser.number("--batch-size", 1, "number of sequences in the input")
    parser.choice("--dtype", DTYPES, "data type of weights and inputs")
    parser.choice("--direction", DIRECTIONS, "what a step runs: the block, its gradients, or both")
    parser.number("--steps", 1, "number of measured steps")
    parser.number("--warmup", 1, "steps before the measured ones; the first one compiles")
    parser.number("--seed", 0, "seed of the random weights and inputs", maximum=2**32 - 1)
    return Parameters(**parser.given(arguments))
