"""The parameters of the sequence-parallel workload: the shape of the problem, and the points of a sweep."""

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.workloads.arguments import MAX_SEED, Options, option
from hpcprof.workloads.placement import BACKENDS, DEVICES

DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8")
DIRECTIONS = ("forward", "backward", "both")
MODES = ("serial", "chunked", "symmetric", "copy-engine", "cublasmp")
_FLOAT8_UNIT = 16


def _modes(text: str) -> str:
    names = text.split(",")
    for name in names:
        if name not in (*MODES, "auto"):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MODES)}, auto")
    if len({*names}) < len(names) or ("auto" in names and text != "auto"):
        raise argparse.ArgumentTypeError(f"{text!r} names a mode twice")
    return text


@dataclass(frozen=True)
class BlockParameters:
    """The shape of the block, and how it is measured, in PyTorch and in JAX.

    R = ``rows`` = sequence length x batch size, h = ``hidden_size``, f = ``inner_size`` = h x multiplier.
    """

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
    warmup: int = option(
        10, "steps before the measured ones; more are added until their times are stable", minimum=0
    )
    seed: int = option(0, "seed of the random weights and inputs", minimum=0, maximum=MAX_SEED)

    @property
    def rows(self) -> int:
        """The rows of the whole input, R."""
        return self.sequence_length * self.batch_size

    @property
    def inner_size(self) -> int:
        """The columns between the two matmuls over all ranks, f."""
        return self.hidden_size * self.ffn_multiplier


@dataclass(frozen=True)
class PointParameters(BlockParameters):
    """The shape of the problem, and how it is measured, at one point of a sweep."""

    ffn_size: int | None = option(None, "inner width f, instead of --ffn-multiplier", minimum=1)
    mode: str = option(
        "serial",
        f"order of communication and compute: {', '.join(MODES)}; several modes are measured in turns, "
        "auto means all that can run",
        type=_modes,
        metavar="MODE[,MODE]",
    )
    chunks: int = option(4, "number of parts of a rank's rows in the mode chunked", minimum=1)
    backend: str = option(
        "auto", "communication library; auto means nccl with CUDA, gloo on a CPU", choices=BACKENDS
    )
    device: str = option("auto", "device; auto means CUDA if it is available", choices=DEVICES)
    keep_gathered: bool = option(
        False, "keep the gathered input for the backward, instead of gathering it again"
    )
    burn_in: int = option(0, "seconds of steps before the warm-up, to heat up the GPUs", minimum=0)
    cuda_graph: bool = option(False, "capture the step of each mode in a CUDA graph and replay it")
    comm_max_ctas: int | None = option(
        None, "largest number of thread blocks that an NCCL collective may use", minimum=1
    )

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes to measure; ``auto`` stands for all of them."""
        return MODES if self.mode == "auto" else tuple(self.mode.split(","))

    @property
    def forward(self) -> bool:
        """True if a measured step includes the forward."""
        return self.direction != "backward"

    @property
    def backward(self) -> bool:
        """True if a measured step includes the backward."""
        return self.direction != "forward"

    @property
    def inner_size(self) -> int:
        """The columns between the two matmuls over all ranks, f."""
        return self.ffn_size or super().inner_size

    def validate(self, world_size: int) -> None:
        """Check that ``world_size`` ranks can share the shape evenly."""
        if self.dtype == "float8":
            self._validate_float8(world_size)
        if self.modes == ("chunked",) and (shard := self.rows // world_size) % self.chunks:
            raise UsageError(f"--chunks {self.chunks} does not divide the {shard} rows of a rank.")
        for name, value in (("--sequence-length", self.sequence_length), ("--ffn-size", self.ffn_size or 0)):
            if value % world_size:
                nearest = _nearest_multiples(value, world_size)
                raise UsageError(f"{name} {value} is not divisible by {world_size} ranks: use {nearest}.")
        if self.inner_size % world_size:
            # h * multiplier is divisible by N exactly when h is by N / gcd(N, multiplier).
            unit = world_size // math.gcd(world_size, self.ffn_multiplier)
            raise UsageError(
                f"--hidden-size {self.hidden_size} times --ffn-multiplier {self.ffn_multiplier} is not "
                f"divisible by {world_size} ranks: use --hidden-size "
                f"{_nearest_multiples(self.hidden_size, unit)}."
            )

    def _validate_float8(self, world_size: int) -> None:
        if self.backward:
            raise UsageError(
                "--dtype float8 supports the forward only: use --direction forward, or bfloat16."
            )
        if self.modes == ("symmetric",):
            raise UsageError("--dtype float8: the mode symmetric does not support it; use another mode.")
        # cuBLAS requires this of the operands of a scaled matmul.
        for name, columns in (("h", self.hidden_size), ("f / N", self.inner_size // world_size)):
            if columns % _FLOAT8_UNIT:
                raise UsageError(
                    f"--dtype float8 needs multiples of {_FLOAT8_UNIT} for h and f / N: {name} is {columns}."
                )


@dataclass(frozen=True)
class Sweep(Options):
    """The points to measure in one job, by name; without ``--sweep``, one point with an empty name."""

    points: dict[str, PointParameters]

    @property
    def first(self) -> PointParameters:
        """The first point; options that cannot be swept are the same at all points."""
        return next(iter(self.points.values()))

    @property
    def swept(self) -> bool:
        """True if the points have names."""
        return "" not in self.points

    def validate(self, world_size: int) -> None:
        """Check that ``world_size`` ranks can share every point evenly."""
        for name, parameters in self.points.items():
            with errors_at(name):
                parameters.validate(world_size)

    def validate_profiled(self) -> None:
        """Check that a profiled run has no sweep."""
        if self.swept:
            raise UsageError(
                "--sweep does not work with a profiler, because a profile would mix the points: profile one "
                "point, or each in its own run with hpcprof sweep -P KEY=VALUE,VALUE."
            )


@contextmanager
def errors_at(name: str) -> Iterator[None]:
    """Put the name of the point before the message of errors that are raised inside."""
    try:
        yield
    except HpcprofError as error:
        raise type(error)(at_point(name, str(error))) from None


def at_point(name: str, sentence: str) -> str:
    """Put the name of the point, if there is one, before a message."""
    return f"at {name}: {sentence}" if name else sentence


def _nearest_multiples(value: int, unit: int) -> str:
    """Return the nearest multiples of ``unit`` below and above ``value``, as text."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)
