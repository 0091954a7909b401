"""The options of the ddp workload; the submit side checks them with the same code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.common.errors import UsageError, unknown
from hpcprof.workloads.arguments import WorkloadParser
from hpcprof.workloads.ddp.model_file import check_model_file
from hpcprof.workloads.ddp.settings import GLOBAL, LOCAL, read_settings
from hpcprof.workloads.placement import BACKENDS, DEVICES

MODELS = ("bert", "gat", "gpt2", "mlp", "resnet50")
COMM_HOOKS = ("allreduce", "builtin", "bf16", "noop")
CAPTURES = ("step", "backward")
# Positions that the models were published with.
_LONGEST = {"bert": 512, "gpt2": 1024}

_PROGRAM = "ddp"
_MAX_SEED = 2**32 - 1
_SWITCHES = {
    "no_sync": "leave gradients where they are: no communication at all",
    "gradient_as_bucket_view": "DDP's option: gradients are views of the buckets",
    "static_graph": "DDP's option: every step uses the same parameters",
    "compile": "compile the model with torch.compile",
}


@dataclass(frozen=True)
class Parameters:
    """What is trained and how.

    ``model`` is a built-in's name or the path of a model file. The measured steps are those of the epochs
    after ``warmup_epochs``, which are all but the last where it is None; ``capture_steps`` of them, in the
    middle of the last epoch, are profiled unless the job chooses others. ``tools`` are paths of
    ``python``, ``nsys`` and ``ncu`` that a settings file names.
    """

    model: str = "mlp"
    bucket_cap_mb: float = 25.0
    epochs: int = 3
    warmup_epochs: int | None = None
    batch_size: int = 16
    steps_per_epoch: int = 100
    sequence_length: int = 512
    capture: str = "step"
    capture_steps: int = 5
    comm_hook: str = "allreduce"
    no_sync: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    compile: bool = False
    seed: int = 0
    timeout: int = 600
    backend: str = "auto"
    device: str = "auto"
    world_size: int | None = None
    cuda_visible_devices: str | None = None
    cuda_version: str | None = None
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def built_in(self) -> bool:
        """Whether the model is one of ours."""
        return self.model in MODELS

    @property
    def warmup(self) -> int:
        """The epochs before the measured ones."""
        return self.epochs - 1 if self.warmup_epochs is None else self.warmup_epochs

    @property
    def replicas_differ(self) -> bool:
        """Whether the ranks train apart, since nothing sums their gradients."""
        return self.no_sync or self.comm_hook == "noop"

    def validate(self, world_size: int) -> None:
        """Refuse what cannot run on ``world_size`` ranks.

        Raises
        ------
        UsageError
            The settings are for another number of ranks.
        """
        if self.world_size not in (None, world_size):
            raise UsageError(
                f"{LOCAL} or {GLOBAL} says world_size {self.world_size}, but the job has {world_size} ranks: "
                "make them equal by --nodes and --ranks-per-node, or leave the key out."
            )

    def validate_profiled(self) -> None:
        """Accept every profiled run: all of them can be profiled."""


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MB above 0")
    return value


def _parser() -> WorkloadParser:
    default = Parameters()
    parser = WorkloadParser(
        _PROGRAM,
        "Train a model with PyTorch's DistributedDataParallel, and profile steps in the middle.",
        default,
    )
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FOLDER",
        help=f"a folder with define_model.py, {LOCAL} and {GLOBAL}; options given here come before them",
    )
    parser.add_argument(
        "--model",
        metavar="NAME|FILE.py",
        help=f"{', '.join(MODELS)}, or a file with get_model, get_dataloader, forward_pass and backward_pass"
        + parser.default("--model"),
    )
    parser.add_argument(
        "--bucket-cap-mb",
        type=_above_zero,
        metavar="MB",
        help=f"DDP's size of a bucket of gradients (default: {default.bucket_cap_mb:g})",
    )
    parser.number("--epochs", 1, "epochs in all")
    parser.number("--warmup-epochs", 0, "epochs before the measured ones (default: all but the last)")
    parser.number("--batch-size", 1, "samples of a rank in a step")
    parser.number("--steps-per-epoch", 1, "batches of an epoch, of a built-in model")
    parser.number("--sequence-length", 2, "tokens of a sample, of gpt2 and bert")
    parser.choice("--capture", CAPTURES, "what the profiler sees of a captured step")
    parser.number("--capture-steps", 1, "steps to capture, in the middle of the last epoch")
    parser.choice(
        "--comm-hook", COMM_HOOKS, "what is done with a bucket; builtin is DDP's own, without ranges"
    )
    for name, text in _SWITCHES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)
    parser.number("--seed", 0, "seed of weights and data", maximum=_MAX_SEED)
    parser.number("--timeout", 1, "seconds that a collective waits for a rank before the job ends")
    parser.choice("--backend", BACKENDS, "communication library; auto is nccl on CUDA and gloo on a CPU")
    parser.choice("--device", DEVICES, "auto is CUDA where there is one")
    return parser


def parse(arguments: Sequence[str]) -> Parameters:
    """Parse the workload's arguments, and the settings of ``--input``.

    Raises
    ------
    UsageError
        An option is unknown, or its value or a setting is wrong.
    InformationRequested
        ``--help`` is given.
    """
    given = _parser().given(arguments)
    folder = given.pop("input", None)
    if folder is not None:
        settings = read_settings(folder)
        given = {"model": str(settings.model), **settings.parameters, **given, "tools": settings.tools}
    parameters = Parameters(**given)
    if parameters.warmup >= parameters.epochs:
        raise UsageError(
            f"{parameters.warmup} warm-up epochs of {parameters.epochs}: no epoch is left to measure."
        )
    longest = _LONGEST.get(parameters.model)
    if longest and parameters.sequence_length > longest:
        raise UsageError(
            f"--sequence-length {parameters.sequence_length}: {parameters.model} takes at most {longest}."
        )
    if not parameters.built_in:
        if not parameters.model.endswith(".py"):
            raise unknown("model", parameters.model, MODELS, " (a model file ends in .py)")
        check_model_file(Path(parameters.model))
    return parameters
