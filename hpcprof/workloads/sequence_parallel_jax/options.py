"""The options of the workload ``sequence-parallel-jax``, parsed on the submit side and on the ranks."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.workloads.arguments import Options, WorkloadParser, option
from hpcprof.workloads.sequence_parallel.parameters import BlockParameters, PointParameters

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Parameters(BlockParameters, Options):
    """The shape of the problem, and how it is measured; the names are those of ``sequence-parallel``."""

    dtype: str = option("float32", "data type of weights and inputs", choices=DTYPES)
    warmup: int = option(10, "steps before the measured ones; the first one compiles", minimum=1)

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
