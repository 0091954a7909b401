"""The options of the sequence-parallel workload, parsed on the submit side and on the ranks."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcprof.common.errors import InformationRequested, UsageError, unknown
from hpcprof.workloads.arguments import WorkloadParser, whole_number
from hpcprof.workloads.placement import BACKENDS, DEVICES
from hpcprof.workloads.sequence_parallel.cost_model import sweep_plan
from hpcprof.workloads.sequence_parallel.parameters import DIRECTIONS, DTYPES, MODES, PointParameters, Sweep
from hpcprof.workloads.sweep import Point, label, parse_parameters, points, program_at

# Hidden size and inner width from the published configurations of the models.
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
"""The options that ``--sweep`` accepts; several modes are measured in turns without a sweep."""

_PROGRAM = "sequence-parallel"
# torch.manual_seed takes 64 bits; the workload adds the rank to a multiple of the seed.
_MAX_SEED = 2**32 - 1


def _modes(text: str) -> str:
    for name in text.split(","):
        if name not in (*MODES, "auto"):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MODES)}, auto")
    if len(set(text.split(","))) < text.count(",") + 1 or ("auto" in text and text != "auto"):
        raise argparse.ArgumentTypeError(f"{text!r} names a mode twice")
    return text


_PERCENTAGES = (
    "No mode can beat the bound: the time of the fastest matmuls or of the bytes over the links, each alone, "
    "whichever takes longer. Of the results, 'of bound' is the bound in percent of the step, 'of the parts "
    "alone' the same with the serial mode's matmuls and collectives in place of the bound, 'hidden' the part "
    "of serial - bound that a mode saves, and 'of the peak' the rate in percent of the data sheet's."
)


def _parser() -> WorkloadParser:
    parser = WorkloadParser(
        _PROGRAM,
        "Benchmark a tensor-parallel block: all-gather the rows, multiply twice, reduce-scatter the sums.",
        PointParameters(),
        _PERCENTAGES,
    )
    parser.number(
        "--sequence-length", 1, "rows of one sequence, divisible by the number of ranks", also=["-s"]
    )
    parser.number("--hidden-size", 1, "columns of input and output, h")
    parser.number("--ffn-multiplier", 1, "inner width divided by hidden size, f / h")
    parser.number("--ffn-size", 1, "inner width f, instead of --ffn-multiplier")
    parser.add_argument(
        "--model",
        choices=sorted(MODELS),
        help="take hidden size and inner width from the feed-forward block of this model",
    )
    parser.number("--batch-size", 1, "number of sequences in the input")
    parser.choice("--dtype", DTYPES, "data type of weights and inputs")
    parser.choice("--direction", DIRECTIONS, "what a step runs: the block, its gradients, or both")
    parser.add_argument(
        "--keep-gathered",
        action="store_true",
        help="keep the gathered input for the backward, instead of gathering it again",
    )
    parser.number("--steps", 1, "number of measured steps")
    parser.number(
        "--warmup", 0, "steps before the measured ones; more are added until their times are stable"
    )
    parser.number("--burn-in", 0, "seconds of steps before the warm-up, to heat up the GPUs")
    parser.gone("--step-timeout", "give hpcprof submit --stall-timeout 300s --on-stall stop")
    parser.number("--seed", 0, "seed of the random weights and inputs", maximum=_MAX_SEED)
    parser.add_argument(
        "--mode",
        type=_modes,
        metavar="MODE[,MODE]",
        help=f"order of communication and compute: {', '.join(MODES)}; several modes are measured in turns, "
        "auto means all that can run" + parser.default("--mode"),
    )
    parser.number("--chunks", 1, "number of parts of a rank's rows in the mode chunked")
    parser.choice("--backend", BACKENDS, "communication library; auto means nccl with CUDA, gloo on a CPU")
    parser.add_argument(
        "--cuda-graph",
        action="store_true",
        help="capture the step of each mode in a CUDA graph and replay it",
    )
    parser.number("--comm-max-ctas", 1, "largest number of thread blocks that an NCCL collective may use")
    parser.add_argument(
        "--sweep",
        action="append",
        metavar="KEY=VALUE,…",
        help=f"measure at several values of {', '.join(SWEPT)}; repeat it to measure all combinations",
    )
    parser.add_argument(
        "--plan",
        type=whole_number(1),
        metavar="RANKS",
        help="print memory, operations, bytes and the shortest time for this number of ranks, and exit",
    )
    parser.choice("--device", DEVICES, "device; auto means CUDA if it is available")
    return parser


def parse(arguments: Sequence[str]) -> Sweep:
    """Parse the arguments of the workload.

    Raises UsageError if an option is unknown, or its value is wrong, and InformationRequested if ``--help``
    or ``--plan`` is given.
    """
    given = _parser().given(arguments)
    ranks, swept = given.pop("plan", None), parse_parameters(given.pop("sweep", []), "--sweep")
    for key in swept:
        if key.replace("_", "-") not in SWEPT:
            raise unknown("parameter", key, SWEPT, " of --sweep")
        if key.replace("-", "_") in given:
            raise UsageError(f"--{key.replace('_', '-')} is both given and swept: remove one of them.")
    wanted: dict[str, PointParameters] = {}
    seen: dict[PointParameters, str] = {}
    for point in points(swept):
        name, parameters = label(point), _at(point, given)
        shape = replace(parameters, ffn_size=parameters.inner_size, ffn_multiplier=1)
        if shape in seen:
            raise UsageError(
                f"--sweep: {seen[shape]} and {name} are the same point: a value is repeated, or --model or "
                "--ffn-size overrides it."
            )
        wanted[name], seen[shape] = parameters, name
    sweep = Sweep(wanted)
    if ranks is not None:
        raise InformationRequested(sweep_plan(sweep, ranks))
    return sweep


def _at(point: Point, given: Mapping[str, Any]) -> PointParameters:
    """Return the parameters at a point of the sweep; ``given`` holds the other options."""
    values = {**given, **_parser().given(program_at(point, [], _PROGRAM))}
    model = values.pop("model", None)
    if model:
        values["hidden_size"], values["ffn_size"] = MODELS[model]
    return PointParameters(**values)
