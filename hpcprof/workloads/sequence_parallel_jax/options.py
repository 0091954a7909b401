"""The options of the workload ``sequence-parallel-jax``, parsed on the submit side and on the ranks."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.workloads.arguments import MAX_SEED, Options, WorkloadParser, option
from hpcprof.workloads.sequence_parallel.parameters import DIRECTIONS, PointParameters

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Parameters(Options):
    """The shape of the problem, and how it is measured; the names are those of ``sequence-parallel``."""

    sequence_length: int = option(
        256, "rows of one sequence, divisible by the number of ranks", minimum=1, also=["-s"]
    )
    hidden_size: int = option(512, "columns of input and output, h", minimum=1)
    ffn_multiplier: int = option(4, "inner width divided by hidden size, f / h", minimum=1)
    batch_size: int = option(1, "number of sequences in the input", minimum=1)
    dtype: str = option("float32", "data type of weights and inputs", choices=DTYPES)
    direction: str = option(
        "forward", "what a step runs: the block, its gradients, or both", choices=DIRECTIONS
    )
    steps: int = option(20, "number of measured steps", minimum=1)
    warmup: int = option(10, "steps before the measured ones; the first one compiles", minimum=1)
    seed: int = option(0, "seed of the random weights and inputs", minimum=0, maximum=MAX_SEED)

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
    """Parse the arguments of the workload; `InformationRequested` for ``--help``."""
    parser = WorkloadParser(
        "sequence-parallel-jax",
        "Benchmark a tensor-parallel block in JAX: all-gather rows, multiply twice, reduce-scatter the sums.",
        Parameters,
    )
    parser.add()
    return Parameters(**parser.given(arguments))
