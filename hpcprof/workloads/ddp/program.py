"""The program that is trained: the four functions of a model file or of a built-in model."""

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.workloads.ddp.options import FUNCTIONS, TrainingParameters

_MODELS = "hpcprof.workloads.ddp.models"
_LEARNING_RATE = 2e-5


@dataclass(frozen=True)
class Program:
    """The functions that a training step calls; ``file`` is the model file, None for a built-in model.

    ``backward_pass`` may return the loss. The first argument of ``get_model`` and ``get_dataloader`` is a
    device as ``tensor.to`` accepts it: the index of the rank's GPU, or the CPU device.
    """

    get_model: Callable[[Any, float], Any]
    get_dataloader: Callable[[Any, int], Any]
    forward_pass: Callable[[Any, Any], Any]
    backward_pass: Callable[[Any], Any]
    get_optimizer: Callable[[Iterable[Any]], Any]
    file: Path | None = None

    @contextlib.contextmanager
    def errors_in(self, place: str) -> Iterator[None]:
        """Turn exceptions raised inside into an `HpcprofError` with ``place``, the error and its line."""
        try:
            yield
        except HpcprofError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            detail = f": {lines[0].rstrip('.')}" if lines else ""
            raise HpcprofError(f"{place}: {type(error).__name__}{detail}{self._where(error)}.") from error

    def _where(self, error: Exception) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if self.file and frame.filename == str(self.file)]
        return f" ({self.file}, line {lines[-1]})" if lines else ""


def adam_w(parameters: Iterable[Any]) -> Any:
    """Return the optimizer of model files and of built-in models without one of their own."""
    return torch.optim.AdamW(parameters, lr=_LEARNING_RATE)


def load_program(parameters: TrainingParameters, ddp: type[DistributedDataParallel]) -> Program:
    """Load the model file or the built-in model."""
    return _built_in(parameters, ddp) if parameters.built_in else _from_file(Path(parameters.model), ddp)


def configured_ddp(parameters: TrainingParameters, device: torch.device) -> type[DistributedDataParallel]:
    """Return a DistributedDataParallel with the job's options, which runs on a CPU as on GPUs."""

    class ConfiguredDDP(DistributedDataParallel):
        def __init__(
            self,
            module: Any,
            device_ids: Any = None,
            output_device: Any = None,
            *positional: Any,
            **options: Any,
        ) -> None:
            for name in ("gradient_as_bucket_view", "static_graph"):
                if getattr(parameters, name):
                    options[name] = True
            if device.type == "cpu":
                device_ids = output_device = None
            super().__init__(module, device_ids, output_device, *positional, **options)

    return ConfiguredDDP


@contextlib.contextmanager
def ddp_replaced_by(ddp: type[DistributedDataParallel]) -> Iterator[None]:
    """Replace ``torch.nn.parallel.DistributedDataParallel`` by ``ddp``, for model files that import it."""
    module: Any = torch.nn.parallel
    module.DistributedDataParallel = ddp
    try:
        yield
    finally:
        module.DistributedDataParallel = DistributedDataParallel


def _from_file(path: Path, ddp: type[DistributedDataParallel]) -> Program:
    path = path.absolute()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    # As for a script, modules in the same folder can be imported.
    sys.path.insert(0, str(path.parent))
    neighbour = (path.parent / "transformer.py").is_file()
    # Model files of this form use these names without importing them.
    module.torch, module.DDP = torch, ddp  # type: ignore[attr-defined]
    module.transformer = importlib.import_module(  # type: ignore[attr-defined]
        "transformer" if neighbour else f"{_MODELS}.transformer"
    )
    try:
        with ddp_replaced_by(ddp):
            spec.loader.exec_module(module)
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise UsageError(f"{path}{where}: {type(error).__name__}: {error}.") from error
    for name in FUNCTIONS:
        if not callable(getattr(module, name, None)):
            raise UsageError(f"{path} does not define {name}.")
    return Program(**{name: getattr(module, name) for name in FUNCTIONS}, get_optimizer=adam_w, file=path)


def _built_in(parameters: TrainingParameters, ddp: type[DistributedDataParallel]) -> Program:
    source = importlib.import_module(f"{_MODELS}.{parameters.model}")

    def get_model(rank: Any, cap_size: float) -> Any:
        return source.build().to(rank)

    def get_dataloader(rank: Any, batchsize: int) -> Any:
        # Consecutive batches differ, as with a real loader; a few of them rotate, to save memory.
        count = min(parameters.steps_per_epoch, 4)
        batches = [source.batch(parameters, rank) for _ in range(count)]
        return [batches[step % count] for step in range(parameters.steps_per_epoch)]

    def backward_pass(output: Any) -> Any:
        output.backward()
        return output

    optimizer = getattr(source, "optimizer", adam_w)
    return Program(get_model, get_dataloader, source.loss, backward_pass, optimizer)
