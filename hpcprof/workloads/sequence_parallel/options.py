"""The options of the sequence-parallel workload; the submit side checks them with the same code."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hpcprof.common.errors import HpcprofError, UsageError, unknown
from hpcprof.submit.jobs.sweep import Point, label, parse_parameters, points, program_at
from hpcprof.workloads.arguments import WorkloadParser, whole
from hpcprof.workloads.placement import BACKENDS, DEVICES

DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8")
DIRECTIONS = ("forward", "backward", "both")
MODES = ("serial", "chunked", "symmetric", "copy-engine")
# Hidden size and inner width, as the models' published configurations have them.
MODELS = {
    "gpt2": (768, 3072),
    "gpt3-175b": (12288, 49152),
    "llama3-8b": (4096, 14336),
    "llama3-70b": (8192, 28672),
    "llama3-405b": (16384, 53248),
}

SWEPT = (
    "sequence-length",
    "hidden-size",
    "ffn-multiplier",
    "ffn-size",
    "model",
    "batch-size",
    "dtype",
    "direction",
    "chunks",
)
"""What ``--sweep`` may have several values of; the modes are measured in turns anyway."""

_PROGRAM = "sequence-parallel"
_FLOAT8_UNIT = 16
# torch.manual_seed takes 64 bits; the workload adds the rank to a multiple of the seed.
_MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class Parameters:
    """The shape of the problem and how it is run.

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
    step_timeout: int = 300
    cuda_graph: bool = False
    comm_max_ctas: int | None = None

    @property
    def rows(self) -> int:
        """Rows of the whole input, R."""
        return self.sequence_length * self.batch_size

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes to measure; ``auto`` is every one."""
        return MODES if self.mode == "auto" else tuple(self.mode.split(","))

    @property
    def forward(self) -> bool:
        """Whether a measured step goes forward."""
        return self.direction != "backward"

    @property
    def backward(self) -> bool:
        """Whether a measured step goes backward."""
        return self.direction != "forward"

    @property
    def inner_size(self) -> int:
        """Columns between the two matmuls on all ranks together, f."""
        return self.ffn_size or self.hidden_size * self.ffn_multiplier

    def validate(self, world_size: int) -> None:
        """Refuse a shape that ``world_size`` ranks cannot share evenly.

        Raises
        ------
        UsageError
            With the nearest valid values.
        """
        if self.dtype == "float8":
            self._validate_float8(world_size)
        if self.modes == ("chunked",) and (shard := self.rows // world_size) % self.chunks:
            raise UsageError(f"the {shard} rows of a rank cannot be cut into --chunks {self.chunks}.")
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
            raise UsageError("--dtype float8 goes forward only: use --direction forward, or bfloat16.")
        if self.modes == ("symmetric",):
            raise UsageError("--dtype float8: the mode symmetric multiplies none; use another mode.")
        # What cuBLAS asks of the operands of a scaled matmul.
        for name, columns in (("h", self.hidden_size), ("f / N", self.inner_size // world_size)):
            if columns % _FLOAT8_UNIT:
                raise UsageError(
                    f"--dtype float8 needs h and f / N in multiples of {_FLOAT8_UNIT}: {name} is {columns}."
                )


@dataclass(frozen=True)
class Sweep:
    """The points to measure in one start, by their names; without ``--sweep`` a single one without a name."""

    points: dict[str, Parameters]

    @property
    def first(self) -> Parameters:
        """The first point; what cannot be swept is the same at all."""
        return next(iter(self.points.values()))

    @property
    def swept(self) -> bool:
        """Whether the points have names."""
        return "" not in self.points

    def validate(self, world_size: int) -> None:
        """Refuse points that ``world_size`` ranks cannot share evenly.

        Raises
        ------
        UsageError
            With the first of them and the nearest valid values.
        """
        for name, parameters in self.points.items():
            with blamed(name):
                parameters.validate(world_size)

    def validate_profiled(self) -> None:
        """Refuse a sweep of which any rank is profiled.

        Raises
        ------
        UsageError
            A profile would mix the steps of all points.
        """
        if self.swept:
            raise UsageError(
                "--sweep measures without a profiler, as a profile would mix the points: profile one of "
                "them, or each in a run of its own by hpcprof sweep -P KEY=VALUE,VALUE."
            )


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Put the point before the sentence of what goes wrong inside."""
    try:
        yield
    except HpcprofError as error:
        raise type(error)(at(name, str(error))) from None


def at(name: str, sentence: str) -> str:
    """Put the point that a sentence is about before it."""
    return f"at {name}: {sentence}" if name else sentence


def _nearest(value: int, unit: int) -> str:
    """Name the multiples of ``unit`` on both sides of ``value``, which is none itself."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)


def _modes(text: str) -> str:
    for name in text.split(","):
        if name not in (*MODES, "auto"):
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(MODES)}, auto")
    if len(set(text.split(","))) < text.count(",") + 1 or ("auto" in text and text != "auto"):
        raise argparse.ArgumentTypeError(f"{text!r} names a mode twice")
    return text


def _parser() -> WorkloadParser:
    parser = WorkloadParser(
        _PROGRAM,
        "All-gather the input's rows, multiply twice, reduce-scatter the sums, step after step.",
        Parameters(),
    )
    parser.number("--sequence-length", 1, "rows of one sequence, divisible by the ranks", also=["-s"])
    parser.number("--hidden-size", 1, "columns of input and output, h")
    parser.number("--ffn-multiplier", 1, "inner width over hidden size, f / h")
    parser.number("--ffn-size", 1, "inner width f itself, instead of --ffn-multiplier")
    parser.add_argument(
        "--model", choices=sorted(MODELS), help="hidden size and inner width of a model's feed-forward block"
    )
    parser.number("--batch-size", 1, "sequences in the input")
    parser.choice("--dtype", DTYPES, "type of weights and data")
    parser.choice(
        "--direction", DIRECTIONS, "what a step is: the block, its gradients, or one after the other"
    )
    parser.add_argument(
        "--keep-gathered",
        action="store_true",
        help="keep the gathered input for the backward instead of gathering it again",
    )
    parser.number("--steps", 1, "measured steps")
    parser.number("--warmup", 0, "steps before the measured ones, and more until their time is stable")
    parser.number("--burn-in", 0, "seconds of steps before the warm-up, so that the GPUs are warm")
    parser.number("--step-timeout", 1, "seconds without progress after which the job ends")
    parser.number("--seed", 0, "seed of weights and data", maximum=_MAX_SEED)
    parser.add_argument(
        "--mode",
        type=_modes,
        metavar="MODE[,MODE]",
        help=f"how communication and compute are ordered: {', '.join(MODES)}; several are measured in turns, "
        "auto is all that can run here" + parser.default("--mode"),
    )
    parser.number("--chunks", 1, "parts of a rank's rows in the mode chunked")
    parser.choice("--backend", BACKENDS, "communication library; auto is nccl on CUDA and gloo on a CPU")
    parser.add_argument(
        "--cuda-graph", action="store_true", help="capture each mode's step in a CUDA graph, and replay it"
    )
    parser.number("--comm-max-ctas", 1, "thread blocks that a collective of NCCL may use at most")
    parser.add_argument(
        "--sweep",
        action="append",
        metavar="KEY=VALUE,…",
        help=f"measure at each value of {', '.join(SWEPT)}; repeatable: every combination is a point",
    )
    parser.add_argument(
        "--plan",
        type=whole(1),
        metavar="RANKS",
        help="print memory, operations, bytes and the time at least for so many ranks, and end",
    )
    parser.choice("--device", DEVICES, "auto is CUDA where there is one")
    return parser


def parse(arguments: Sequence[str]) -> Sweep:
    """Parse the workload's arguments.

    Raises
    ------
    UsageError
        With one sentence.
    SystemExit
        With status 0, after ``--help`` or a plan is printed.
    """
    given = _parser().given(arguments)
    ranks, swept = given.pop("plan", None), parse_parameters(given.pop("sweep", []), "--sweep")
    for key in swept:
        if key.replace("_", "-") not in SWEPT:
            raise unknown("parameter", key, SWEPT, " of --sweep")
        if key.replace("-", "_") in given:
            raise UsageError(f"--{key.replace('_', '-')} is given and swept: leave one of them out.")
    wanted: dict[str, Parameters] = {}
    seen: dict[Parameters, str] = {}
    for point in points(swept):
        name, parameters = label(point), _at(point, given)
        shape = replace(parameters, ffn_size=parameters.inner_size, ffn_multiplier=1)
        if shape in seen:
            raise UsageError(
                f"--sweep: {seen[shape]} and {name} are the same: a value stands there twice, or --model or "
                "--ffn-size decides instead."
            )
        wanted[name], seen[shape] = parameters, name
    sweep = Sweep(wanted)
    if ranks is not None:
        from hpcprof.workloads.sequence_parallel.plan import plans

        print(plans(sweep, ranks))
        raise SystemExit(0)
    return sweep


def _at(point: Point, given: Mapping[str, Any]) -> Parameters:
    """Return the parameters at a point of the sweep; ``given`` are the options beside it."""
    values = {**given, **_parser().given(program_at(point, [], _PROGRAM))}
    model = values.pop("model", None)
    if model:
        values["hidden_size"], values["ffn_size"] = MODELS[model]
    return Parameters(**values)
