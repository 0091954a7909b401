"""The options of the sequence-parallel workload, parsed on the submit side and on the ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcprof.common.errors import InformationRequested, UsageError, unknown
from hpcprof.workloads.arguments import WorkloadParser, whole_number
from hpcprof.workloads.sequence_parallel.cost_model import sweep_plan
from hpcprof.workloads.sequence_parallel.parameters import PointParameters, Sweep
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
    *("sequence-length", "hidden-size", "ffn-multiplier", "ffn-size", "model"),
    *("batch-size", "dtype", "direction", "chunks"),
)
"""The options that ``--sweep`` accepts; several modes are measured in turns without a sweep."""

_PROGRAM = "sequence-parallel"
_PERCENTAGES = (
    "No mode can beat the bound: the time of the fastest matmuls or of the bytes over the links, each alone, "
    "whichever takes longer. In the results, 'of bound' is the bound in percent of the step, 'of the parts "
    "alone' the same with the serial mode's matmuls and collectives in place of the bound, 'hidden' the part "
    "of serial - bound that a mode saves, and 'of the peak' the rate in percent of the data sheet's."
)


def _parser() -> WorkloadParser:
    parser = WorkloadParser(
        _PROGRAM,
        "Benchmark a tensor-parallel block: all-gather the rows, multiply twice, reduce-scatter the sums.",
        PointParameters,
        _PERCENTAGES,
    )
    parser.add("sequence_length", "hidden_size", "ffn_multiplier", "ffn_size")
    parser.add_argument(
        "--model",
        choices=sorted(MODELS),
        help="take hidden size and inner width from the feed-forward block of this model",
    )
    parser.add("batch_size", "dtype", "direction", "keep_gathered", "steps", "warmup", "burn_in", "seed")
    parser.add("mode", "chunks", "backend", "cuda_graph", "comm_max_ctas")
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
    parser.add("device")
    return parser


def parse(arguments: Sequence[str]) -> Sweep:
    """Parse the arguments of the workload; `InformationRequested` for ``--help`` and ``--plan``."""
    values = _parser().given(arguments)
    ranks, swept = values.pop("plan", None), parse_parameters(values.pop("sweep", []), "--sweep")
    for key in swept:
        if key.replace("_", "-") not in SWEPT:
            raise unknown("parameter", key, SWEPT, " of --sweep")
        if key.replace("-", "_") in values:
            raise UsageError(f"--{key.replace('_', '-')} is both given and swept: remove one of them.")
    wanted: dict[str, PointParameters] = {}
    shapes: dict[PointParameters, str] = {}
    for point in points(swept):
        name, parameters = label(point), _at(point, values)
        shape = replace(parameters, ffn_size=parameters.inner_size, ffn_multiplier=1)
        if shape in shapes:
            raise UsageError(
                f"--sweep: {shapes[shape]} and {name} are the same point: a value is repeated, or --model or "
                "--ffn-size overrides it."
            )
        wanted[name], shapes[shape] = parameters, name
    sweep = Sweep(wanted)
    if ranks is not None:
        raise InformationRequested(sweep_plan(sweep, ranks))
    return sweep


def _at(point: Point, options: Mapping[str, Any]) -> PointParameters:
    """Return the parameters at a point of the sweep; ``options`` holds the other options."""
    values = {**options, **_parser().given(program_at(point, [], _PROGRAM))}
    model = values.pop("model", None)
    if model:
        values["hidden_size"], values["ffn_size"] = MODELS[model]
    return PointParameters(**values)
