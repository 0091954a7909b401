"""The parameters of the sequence-parallel workload: the shape of the problem, and the points of a sweep."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.workloads.arguments import Options

DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8")
DIRECTIONS = ("forward", "backward", "both")
MODES = ("serial", "chunked", "symmetric", "copy-engine", "cublasmp")
_FLOAT8_UNIT = 16


@dataclass(frozen=True)
class PointParameters:
    """The shape of the problem, and how it is measured.

    R = ``rows`` = sequence length x batch size, h = ``hidden_size``, f = ``inner_size`` = h x multiplier.
    """

    sequence_length: int = 256
    hidden_size: int = 512
    ffn_multiplier: int = 4
    ffn_size: int | None = None
    batch_size: int = 1
    dtype: str = "float32"
    steps: int = 20
    warmup: int = 10
    seed: int = 0
    mode: str = "serial"
    chunks: int = 4
    backend: str = "auto"
    device: str = "auto"
    direction: str = "forward"
    keep_gathered: bool = False
    burn_in: int = 0
    cuda_graph: bool = False
    comm_max_ctas: int | None = None

    @property
    def rows(self) -> int:
        """The rows of the whole input, R."""
        return self.sequence_length * self.batch_size

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
        return self.ffn_size or self.hidden_size * self.ffn_multiplier

    def validate(self, world_size: int) -> None:
        """Check that ``world_size`` ranks can share the shape evenly."""
        if self.dtype == "float8":
            self._validate_float8(world_size)
        if self.modes == ("chunked",) and (shard := self.rows // world_size) % self.chunks:
            raise UsageError(f"--chunks {self.chunks} does not divide the {shard} rows of a rank.")
        if self.sequence_length % world_size:
            raise UsageError(
                f"--sequence-length {self.sequence_length} is not divisible by {world_size} ranks: "
                f"use {_nearest(self.sequence_length, world_size)}."
            )
        if self.ffn_size and self.ffn_size % world_size:
            raise UsageError(
                f"--ffn-size {self.ffn_size} is not divisible by {world_size} ranks: "
                f"use {_nearest(self.ffn_size, world_size)}."
            )
        if self.inner_size % world_size:
            # h * multiplier is divisible by N exactly when h is by N / gcd(N, multiplier).
            unit = world_size // math.gcd(world_size, self.ffn_multiplier)
            raise UsageError(
                f"--hidden-size {self.hidden_size} times --ffn-multiplier {self.ffn_multiplier} is not "
                f"divisible by {world_size} ranks: use --hidden-size {_nearest(self.hidden_size, unit)}."
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
        """Check that a profiled run has no sweep.

        Raises UsageError if it has one: its profile would mix the steps of all points.
        """
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


def _nearest(value: int, unit: int) -> str:
    """Return the nearest multiples of ``unit`` below and above ``value``, as text."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)
