"""The options of the ddp workload, parsed on both sides, its ``--input`` folder, and checks of model files.

The submit side has no torch, so it reads a model file without importing it.
"""

import argparse
import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcprof.common.errors import UsageError, unknown
from hpcprof.workloads.arguments import MAX_SEED, Options, WorkloadParser, option
from hpcprof.workloads.ddp import faults
from hpcprof.workloads.placement import BACKENDS, DEVICES

MODELS = ("bert", "gat", "gpt2", "mlp", "resnet50")
COMM_HOOKS = ("allreduce", "builtin", "bf16", "noop")
CAPTURES = ("step", "backward")
PRECISIONS = ("fp32", "tf32", "bf16")
# The longest sequences that the published models support.
_MAX_SEQUENCE_LENGTH = {"bert": 512, "gpt2": 1024}


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MB above 0")
    return value


@dataclass(frozen=True)
class TrainingParameters(Options):
    """The model and how it is trained.

    ``model`` is the name of a built-in model or the path of a model file. The steps of the epochs after
    ``warmup_epochs`` are measured; None means all epochs but the last. ``capture_steps`` steps in the middle
    of the last epoch are profiled, unless the job selects others; None means 20, or as many as 10 s hold.
    ``fault`` holds the faults as `hpcprof.workloads.ddp.faults.parse_faults` reads them. ``tools`` holds the
    paths of ``python``, ``nsys`` and ``ncu`` that a settings file names.
    """

    model: str = option(
        "mlp",
        f"{', '.join(MODELS)}, or a file with get_model, get_dataloader, forward_pass and backward_pass",
        metavar="NAME|FILE.py",
    )
    bucket_cap_mb: float = option(25.0, "size of DDP's gradient buckets", type=_above_zero, metavar="MB")
    epochs: int = option(3, "total number of epochs", minimum=1)
    warmup_epochs: int | None = option(
        None, "number of epochs before the measured ones (default: all but the last)", minimum=0
    )
    batch_size: int = option(16, "samples per rank and step", minimum=1)
    steps_per_epoch: int = option(100, "batches per epoch, for built-in models", minimum=1)
    sequence_length: int = option(512, "tokens per sample, for gpt2 and bert", minimum=2)
    capture: str = option("step", "part of a captured step that is profiled", choices=CAPTURES)
    capture_steps: int | None = option(
        None,
        "number of steps to capture in the middle of the last epoch (default: 20, or as many as 10 s hold)",
        minimum=1,
    )
    comm_hook: str = option(
        "allreduce",
        "communication of a bucket; builtin means DDP's own, without profiler ranges",
        choices=COMM_HOOKS,
    )
    no_sync: bool = option(False, "do not sum gradients: no communication at all")
    gradient_as_bucket_view: bool = option(
        False, "pass gradient_as_bucket_view=True to DDP: gradients are views of the buckets"
    )
    static_graph: bool = option(False, "pass static_graph=True to DDP: every step uses the same parameters")
    compile: bool = option(False, "compile the model with torch.compile")
    precision: str = option(
        "fp32", "precision of matrix multiplications; bf16 by autocast", choices=PRECISIONS
    )
    fault: str = option(
        "",
        "make every step lose time by a known cause (listed below), to check what a diagnosis finds; "
        "repeatable",
        action="append",
        type=faults.parse_fault,
        metavar="CAUSE[:KEY=VALUE,…]",
    )
    fault_blocks: bool = option(
        False,
        "measure what the faults cost: they take turns by epoch, and each is there in the first and the last "
        "quarter of the steps only",
    )
    seed: int = option(0, "seed of the random weights and data", minimum=0, maximum=MAX_SEED)
    timeout: int = option(
        600, "end the job when a collective has waited this many seconds for a rank", minimum=1
    )
    backend: str = option(
        "auto", "communication library; auto means nccl with CUDA, gloo on a CPU", choices=BACKENDS
    )
    device: str = option("auto", "device; auto means CUDA if it is available", choices=DEVICES)
    world_size: int | None = None
    cuda_visible_devices: str | None = None
    cuda_version: str | None = None
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def built_in(self) -> bool:
        """True if the model is built in."""
        return self.model in MODELS

    @property
    def warmup(self) -> int:
        """The number of epochs before the measured ones."""
        return self.epochs - 1 if self.warmup_epochs is None else self.warmup_epochs

    @property
    def replicas_differ(self) -> bool:
        """True if the parameters of the ranks diverge, because their gradients are not summed."""
        return self.no_sync or self.comm_hook == "noop"

    def validate(self, world_size: int) -> None:
        """Check that the settings are for ``world_size`` ranks."""
        ranks = f"{world_size} rank{'s' * (world_size != 1)}"
        if self.world_size not in (None, world_size):
            raise UsageError(
                f"world_size is {self.world_size} in {LOCAL} or {GLOBAL}, but the job has {ranks}: change "
                "--nodes and --ranks-per-node, or remove the key."
            )
        for injected in faults.parse_faults(self.fault):
            for rank in injected.ranks:
                if rank >= world_size:
                    raise UsageError(
                        f"--fault {injected.text}: the job has {ranks}, so there is no rank {rank}."
                    )


def _parser() -> WorkloadParser:
    parser = WorkloadParser(
        "ddp",
        "Train a model with PyTorch's DistributedDataParallel, and profile some of its steps.",
        TrainingParameters,
        epilog=f"Faults, with the defaults of their keys:\n{faults.describe_faults()}",
    )
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FOLDER",
        help=f"folder with define_model.py, {LOCAL} and {GLOBAL}; command-line options override them",
    )
    parser.add()
    return parser


def parse(arguments: Sequence[str]) -> TrainingParameters:
    """Parse the arguments and the settings files of ``--input``; `InformationRequested` for ``--help``."""
    values = _parser().given(arguments)
    folder = values.pop("input", None)
    if folder is not None:
        values = {**read_settings(folder), **values}
    if "fault" in values:
        values["fault"] = " ".join(injected.text for injected in values["fault"])
    parameters = TrainingParameters(**values)
    if parameters.warmup >= parameters.epochs:
        raise UsageError(
            f"--warmup-epochs {parameters.warmup} leaves none of the {parameters.epochs} epochs to measure."
        )
    longest = _MAX_SEQUENCE_LENGTH.get(parameters.model)
    if longest and parameters.sequence_length > longest:
        raise UsageError(
            f"--sequence-length {parameters.sequence_length}: {parameters.model} supports at most {longest}."
        )
    if not parameters.built_in:
        if not parameters.model.endswith(".py"):
            raise unknown("model", parameters.model, MODELS, " (the name of a model file ends with .py)")
        check_model_file(Path(parameters.model))
    _check_faults(parameters)
    check_on_device(parameters, parameters.device)
    return parameters


def _check_faults(parameters: TrainingParameters) -> None:
    """Check that the faults can show in the training that the other options describe."""
    names = {injected.fault.name for injected in faults.parse_faults(parameters.fault)}
    if "slow_math" in names and parameters.precision == "fp32":
        raise UsageError(
            "--fault slow_math changes nothing with --precision fp32: add --precision tf32 or bf16."
        )
    if "exposed_communication" in names and (parameters.replicas_differ or parameters.comm_hook == "builtin"):
        option = "--no-sync" if parameters.no_sync else f"--comm-hook {parameters.comm_hook}"
        raise UsageError(
            f"--fault exposed_communication does not work with {option}: use --comm-hook allreduce or bf16."
        )
    if parameters.fault_blocks:
        if not names:
            raise UsageError("--fault-blocks needs a --fault.")
        if parameters.built_in:
            check_blocks(parameters, parameters.steps_per_epoch)


def check_blocks(parameters: TrainingParameters, steps: int) -> None:
    """Check that an epoch of ``steps`` steps can be divided into the blocks of ``--fault-blocks``."""
    if parameters.fault_blocks and steps < faults.BLOCKS:
        raise UsageError(
            f"--fault-blocks needs epochs of at least {faults.BLOCKS} steps, but they have {steps}."
        )


def check_on_device(parameters: TrainingParameters, device: str) -> None:
    """Check that the precision and the faults suit a type of device; ``auto`` suits all of them."""
    if device == "cpu" and parameters.precision == "tf32":
        raise UsageError("--precision tf32 needs a GPU. On a CPU, use fp32 or bf16.")
    faults.check_device(faults.parse_faults(parameters.fault), device)


MODEL_FILE = "define_model.py"
LOCAL, GLOBAL = "local_config.json", "global_config.json"

_COUNTS = {"world_size": 1, "epochs": 1, "batchsize": 1, "warmup_epochs": 0}
_PATHS = ("ncu_path", "nsys_path", "python_path")
_TEXTS = ("cuda_visible_devices", "cuda_version_check", *_PATHS)
_REQUIRED_SETTINGS = ("cap_size", "epochs", "batchsize")
_KEYS = ("cap_size", *_COUNTS, *_TEXTS)
_RENAMED_SETTINGS = {
    "cap_size": "bucket_cap_mb",
    "batchsize": "batch_size",
    "cuda_version_check": "cuda_version",
}
"""The names of settings in the options of the workload, where they differ."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Return a folder's settings and model file by names of options; global_config.json wins."""
    if not folder.is_dir():
        raise UsageError(f"--input {folder}: the folder does not exist.")
    values: dict[str, Any] = {}
    source: dict[str, Path] = {}
    for path in (folder / LOCAL, folder / GLOBAL):
        for key, value in _read_json(path).items():
            if key not in _KEYS:
                raise unknown("key", key, _KEYS, f" in {path}")
            _check_setting(path, key, value)
            values[key], source[key] = value, path
    for key in _REQUIRED_SETTINGS:
        if key not in values:
            raise UsageError(f"the key {key} is missing: add it to {folder / LOCAL}.")
    for key in _PATHS:
        if key in values and not Path(values[key]).is_file():
            raise UsageError(f"{source[key]}: {key} is {values[key]}, which does not exist.")
    tools = {key.removesuffix("_path"): values.pop(key) for key in _PATHS if key in values}
    parameters = {_RENAMED_SETTINGS.get(key, key): value for key, value in values.items()}
    return {"model": str((folder / MODEL_FILE).absolute()), "tools": tools, **parameters}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: not JSON: {error.msg}.") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON in UTF-8.") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} must contain a JSON object.")
    return data


def _check_setting(path: Path, key: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in _TEXTS:
        valid, wanted = isinstance(value, str) and value != "", "a text"
    elif key == "cap_size":
        valid, wanted = is_number and 0 < value < float("inf"), "a number of MB above 0"  # type: ignore[operator]
    else:
        least = _COUNTS[key]
        valid = is_number and isinstance(value, int) and value >= least
        wanted = f"a whole number from {least}"
    if not valid:
        raise UsageError(f"{path}: {key} is {json.dumps(value)}: it must be {wanted}.")


FUNCTIONS = {
    "get_model": ("rank", "cap_size"),
    "get_dataloader": ("rank", "batchsize"),
    "forward_pass": ("model", "inputs"),
    "backward_pass": ("output",),
}
"""The functions that a model file must define, with their parameters."""


def check_model_file(path: Path) -> None:
    """Check that a model file is valid Python and defines all functions with the right parameters."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid Python: {error}.") from None
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    if any(alias.name == "*" for node in imports for alias in node.names):
        return
    assigned = _assigned(tree)
    for name, parameters in FUNCTIONS.items():
        if name in defined:
            _check_parameters(path, defined[name], parameters)
        elif name not in assigned:
            functions = [f"{key} in line {node.lineno}" for key, node in defined.items() if key in FUNCTIONS]
            raise UsageError(
                f"{path} does not define {name}({', '.join(parameters)}); it defines "
                f"{', '.join(functions) or 'none of ' + ', '.join(FUNCTIONS)}."
            )


def _check_parameters(path: Path, function: ast.FunctionDef, parameters: tuple[str, ...]) -> None:
    signature = function.args
    positional = [argument.arg for argument in (*signature.posonlyargs, *signature.args)]
    required = len(positional) - len(signature.defaults)
    keywords = [
        a.arg for a, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True) if not default
    ]
    enough = signature.vararg is not None or len(positional) >= len(parameters)
    if required > len(parameters) or keywords or not enough:
        raise UsageError(
            f"{path}, line {function.lineno}: {function.name} takes ({', '.join(positional + keywords)}), "
            f"but is called with ({', '.join(parameters)})."
        )


def _assigned(tree: ast.Module) -> set[str]:
    """Return the names that the file binds in other ways: by imports, assignments, or in branches."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.If | ast.Try):
            names |= {child.name for child in ast.walk(node) if isinstance(child, ast.FunctionDef)}
    return names
