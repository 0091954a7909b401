"""The built-in workloads. None of them is imported here: the submit side must not load torch.

To add a workload, write a package with ``__main__.py`` (what runs on the ranks) and ``options.py``
(standard library only; ``parse(arguments)`` returns `Options`), and add a row.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcprof.common.errors import unknown
from hpcprof.workloads.arguments import Options


@dataclass(frozen=True)
class Size:
    """The parameter that sets the amount of work, either of each rank or of all ranks together."""

    parameter: str
    per_rank: bool


@dataclass(frozen=True)
class Workload:
    """A program that ships with hpcprof; ``python -m`` runs its ``module``.

    ``size`` distinguishes strong from weak scaling; None if no single parameter sets the amount of work.
    ``uses_jax`` says that it is a program of JAX, not of PyTorch, and ``marks_steps`` that it marks the steps
    that a profiler captures.
    """

    name: str
    summary: str
    module: str
    size: Size | None = None
    uses_jax: bool = False
    marks_steps: bool = True

    def command(self, python: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line of one rank; ``python`` is on the compute nodes, with hpcprof installed."""
        return [python, "-m", self.module, *arguments]

    def foreign_command(self, python: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line of one rank for a Python without hpcprof."""
        return [python, str(Path(__file__).with_name("run.py")), self.module, *arguments]

    def check(self, arguments: Sequence[str], ranks: int, *, profiled: bool = False) -> None:
        """Check the arguments as the ranks, also ``profiled``, would; may raise InformationRequested."""
        options = self._parse(arguments)
        options.validate(ranks)
        if profiled:
            options.validate_profiled()

    def tools(self, arguments: Sequence[str]) -> Mapping[str, str]:
        """Return the paths of ``python``, ``nsys`` and ``ncu`` that the arguments name."""
        return self._parse(arguments).tools

    def _parse(self, arguments: Sequence[str]) -> Options:
        options: Options = importlib.import_module(f"{self.module}.options").parse(arguments)
        return options


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "sequence-parallel",
            "all-gather, two matmuls, reduce-scatter: a tensor-parallel block over sequence shards",
            "hpcprof.workloads.sequence_parallel",
            Size("sequence_length", per_rank=False),
        ),
        Workload(
            "sequence-parallel-jax",
            "the same block in JAX: one compiled program over all ranks, in shard_map",
            "hpcprof.workloads.sequence_parallel_jax",
            Size("sequence_length", per_rank=False),
            uses_jax=True,
        ),
        Workload(
            "ddp",
            "training by DistributedDataParallel: a model file of yours, or GPT-2, BERT, ResNet-50, GAT, MLP",
            "hpcprof.workloads.ddp",
            Size("batch_size", per_rank=True),
        ),
        Workload(
            "network",
            "times of all-reduce, all-gather, reduce-scatter, all-to-all and send (hpcprof study network)",
            "hpcprof.workloads.network",
            marks_steps=False,
        ),
        Workload(
            "calls",
            "times of single calls of CUDA's driver (hpcprof study call-costs)",
            "hpcprof.workloads.calls",
            marks_steps=False,
        ),
    )
}


def find(name: str) -> Workload:
    """Return the workload called ``name``."""
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    return WORKLOADS[name]
