"""Injected faults of the training of a rank."""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hpcprof.workloads.capture import annotate
from hpcprof.workloads.ddp.faults import InjectedFault, in_block_with_fault

Hook = Callable[[Any, Any], Any]


class Arithmetic:
    """The precision of the matrix multiplications: ``fp32``, ``tf32``, or ``bf16`` by autocast."""

    def __init__(self, precision: str, device: torch.device) -> None:
        self._wanted = precision
        self._device = device
        self._convolutions = torch.backends.cudnn.allow_tf32
        self._autocasts = False
        self.slow(False)

    def slow(self, on: bool) -> None:
        """Switch to fp32 without TF32, or back to the precision that is wanted."""
        torch.set_float32_matmul_precision("high" if self._wanted == "tf32" and not on else "highest")
        # cuDNN uses TF32 for convolutions by default.
        torch.backends.cudnn.allow_tf32 = self._convolutions and not on
        self._autocasts = self._wanted == "bf16" and not on

    def around_forward(self) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass runs."""
        return torch.autocast(self._device.type, torch.bfloat16) if self._autocasts else nullcontext()


class LateSums:
    """Sums of gradients by ``hook``, DDP's communication hook, that can wait for the whole backward pass."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._held: list[tuple[Any, Any]] = []
        self.late = False

    def start(self, state: Any, bucket: Any) -> Any:
        """Start the sum of a bucket, or of all buckets with the last one."""
        if not self.late:
            return self._launch(state, bucket)
        buffer = bucket.buffer()
        devices = None if buffer.device.type == "cpu" else [buffer.device]
        result: Any = torch.futures.Future(devices=devices)
        self._held.append((bucket, result))
        if bucket.is_last():
            items, self._held = self._held, []
            started = [self._launch(state, item) for item, _ in items]
            for total, (_, waiting) in zip(started, items, strict=True):
                waiting.set_result(total.wait())
        return result

    def _launch(self, state: Any, bucket: Any) -> Any:
        """Launch the communication of a bucket, in a range of the profiler."""
        with annotate(f"allreduce {bucket.index()}"):
            return self._hook(state, bucket)


@dataclass(frozen=True)
class Context:
    """The training of a rank, which faults change; ``sums`` is None if DDP communicates by itself."""

    rank: int
    device: torch.device
    layers: Sequence[Any]
    optimizer: Any
    arithmetic: Arithmetic
    sums: LateSums | None


class Effect:
    """The effect of one injected fault; a method that is not overridden does nothing."""

    def __init__(self, context: Context, values: Any) -> None:
        self.context = context
        self.values = values
        self.is_on_rank = values.get("rank", context.rank) == context.rank

    def switch(self, on: bool) -> None:
        """Start or stop the effect."""

    def in_data(self) -> None:
        """Act in the data phase of a step."""

    def in_forward(self) -> None:
        """Act in the forward phase of a step."""


class _Sleep(Effect):
    _steps = 0

    def switch(self, on: bool) -> None:
        self._steps = 0

    def in_data(self) -> None:
        self._steps += 1
        if self.is_on_rank and self._steps % self.values.get("every", 1) == 0:
            time.sleep(self.values["ms"] / 1000)


class _Garbage(Effect):
    def __init__(self, context: Context, values: Any) -> None:
        super().__init__(context, values)
        # Containers: the collector does not look at other objects.
        self._objects: list[list[None]] = [[] for _ in range(values["objects"])]

    def in_data(self) -> None:
        gc.collect()


class _Synchronize(Effect):
    """Hooks of the layers read the output; the hooks of all steps are the same, so a switch is cheap."""

    def __init__(self, context: Context, values: Any) -> None:
        super().__init__(context, values)
        self._on = False
        for layer in context.layers:
            layer.register_forward_hook(self._read)

    def switch(self, on: bool) -> None:
        self._on = on

    def _read(self, layer: Any, inputs: Any, output: Any) -> None:
        first = _first_tensor(output) if self._on else None
        if first is not None:
            first.flatten()[0].item()


class _Allocate(Effect):
    def in_data(self) -> None:
        fresh = torch.empty(self.values["mb"] * 1_000_000, dtype=torch.uint8, device=self.context.device)
        del fresh
        torch.cuda.empty_cache()


class _Copy(Effect):
    def __init__(self, context: Context, values: Any) -> None:
        super().__init__(context, values)
        self._pageable = torch.zeros(values["mb"] * 1_000_000, dtype=torch.uint8)

    def in_data(self) -> None:
        self._pageable.to(self.context.device)


class _SingleUpdates(Effect):
    def __init__(self, context: Context, values: Any) -> None:
        super().__init__(context, values)
        self._usual = [group.get("foreach") for group in context.optimizer.param_groups]

    def switch(self, on: bool) -> None:
        for group, usual in zip(self.context.optimizer.param_groups, self._usual, strict=True):
            group["foreach"] = False if on else usual


class _Multiply(Effect):
    def __init__(self, context: Context, values: Any) -> None:
        super().__init__(context, values)
        if self.is_on_rank:
            shape = (values["size"], values["size"])
            self._factor = torch.randn(shape, dtype=torch.bfloat16, device=context.device)
            self._product = torch.empty_like(self._factor)

    def in_forward(self) -> None:
        for _ in range(self.values["matmuls"] if self.is_on_rank else 0):
            torch.mm(self._factor, self._factor, out=self._product)


class _Expose(Effect):
    def switch(self, on: bool) -> None:
        assert self.context.sums is not None  # the options are checked
        self.context.sums.late = on


class _SlowMath(Effect):
    def switch(self, on: bool) -> None:
        self.context.arithmetic.slow(on)


EFFECTS: dict[str, type[Effect]] = {
    "none": Effect,
    "host_work": _Sleep,
    "gc": _Garbage,
    "host_sync": _Synchronize,
    "device_allocation": _Allocate,
    "blocking_copy": _Copy,
    "small_kernels": _SingleUpdates,
    "late_rank_host": _Sleep,
    "late_rank_gpu": _Multiply,
    "exposed_communication": _Expose,
    "slow_math": _SlowMath,
    "step_spikes": _Sleep,
}
"""The effect of each fault."""


class FaultInjection:
    """The faults of a training: in all steps or, with ``blocks``, one by epoch in its outer quarters."""

    def __init__(self, faults: Sequence[InjectedFault], context: Context, blocks: bool) -> None:
        self._effects = [EFFECTS[fault.fault.name](context, fault.values) for fault in faults]
        self._blocks = blocks
        self._acting: list[Effect] = []

    def begin_step(self, epoch: int, step: int, steps: int) -> None:
        """Switch faults for a step of a measured epoch; ``epoch`` is negative in the warm-up."""
        wanted = self._effects
        if self._blocks:
            injected = epoch >= 0 and in_block_with_fault(step, steps)
            wanted = [self._effects[epoch % len(self._effects)]] if injected else []
        for effect in self._acting:
            if effect not in wanted:
                effect.switch(False)
        for effect in wanted:
            if effect not in self._acting:
                effect.switch(True)
        self._acting = list(wanted)

    def in_data(self) -> None:
        """Act in the data phase."""
        for effect in self._acting:
            effect.in_data()

    def in_forward(self) -> None:
        """Act in the forward phase."""
        for effect in self._acting:
            effect.in_forward()


def layers_of(model: Any) -> list[Any]:
    """Return the layers of a model: the members of its longest list of modules, else its children."""
    kinds = torch.nn.ModuleList | torch.nn.Sequential
    longest = max((part for part in model.modules() if isinstance(part, kinds)), key=len, default=None)
    return list(model.children() if longest is None else longest)


def _first_tensor(output: Any) -> Any:
    """Return the first tensor in the output of a layer, None without one."""
    parts = output.values() if isinstance(output, dict) else output
    parts = parts if isinstance(output, dict | list | tuple) else (output,)
    return next((part for part in parts if isinstance(part, torch.Tensor)), None)
