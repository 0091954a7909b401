"""Snapshots of PyTorch's GPU memory: after chosen steps, and of all ranks when one runs out of memory.

``memory/rankNNNNN.stepS.pickle`` and ``memory/rankNNNNN.oom.pickle`` in the run are what PyTorch's own
``torch.cuda.memory._dump_snapshot`` writes, with the events of one step and one more key, `NOTES`. The rank
that runs out of memory writes `REQUEST`, and waits until the others have answered it.
"""

from __future__ import annotations

import _thread
import gc
import itertools
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

FOLDER, REQUEST = "memory", "request.json"
"""The folder in the run, and the file there that asks all ranks for a snapshot."""

NOTES = "hpcprof"
"""The key of a snapshot with what the allocator does not know: the step, and what tensors are for."""

_MAX_EVENTS = 100_000
"""Maximum number of events that the allocator keeps on the host, 100 to 200 bytes each beside the stacks."""

_MAX_NOTES_BYTES = 32 << 20
_MAX_TENSORS = 200_000
_LOOK_S = 1.0
_MAX_ANSWER_S = 10.0
"""Maximum seconds that the rank that ran out of memory waits for the snapshots of the others."""


class MemoryHistory:
    """Records GPU memory; writes snapshots after each of ``steps``, and of all ``ranks`` on request."""

    def __init__(self, torch: Any, run: Path, rank: int, steps: set[int], ranks: int) -> None:
        self._torch, self._folder, self._rank = torch, run / FOLDER, rank
        self._steps, self._ranks = steps, ranks
        self._records = False
        self._answered = _thread.allocate_lock()
        self._last_step: int | None = None
        self._began = time.time()
        self._modules = _Modules(torch)
        self._optimizers: WeakSet[Any] = WeakSet()

    def start(self) -> None:
        """Record from the first use of a GPU on, and look for requests."""
        self._torch.cuda._lazy_call(self._record)
        _thread.start_new_thread(self._watch, ())

    def _record(self) -> None:
        try:
            self._torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=_MAX_EVENTS
            )
            self._torch._C._cuda_attach_out_of_memory_observer(self._on_out_of_memory)
            self._modules.follow()
            # A frozen garbage collector hides the objects that existed when it was frozen. PyTorch takes the
            # name of this module out of its package.
            sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(
                lambda optimizer, _args, _kwargs: self._optimizers.add(optimizer)
            )
            self._records = True
        except Exception as error:
            os.write(2, f"hpcprof: no memory history of rank {self._rank}: {error!r}.\n".encode())

    def ended(self, steps: int) -> None:
        """Note that a step has ended; ``steps`` counts the ended ones."""
        step = self._last_step = steps - 1
        if step in self._steps and self._records:
            self._write(f"step{step}", event="step", step=step)
        self._began = time.time()

    def _on_out_of_memory(self, device: int, size: int, _limit: int, free: int) -> None:
        """Write what the memory holds when an allocation has failed, and wait until all ranks have."""
        if not self._answered.acquire(blocking=False):
            return
        with suppress(Exception):
            self._ask()
            total = self._torch.cuda.get_device_properties(device).total_memory
            self._write_failed(
                event="out_of_memory",
                device=int(device),
                asked_bytes=int(size),
                free_bytes=int(free),
                device_bytes=int(total),
                module=self._modules.current(),
            )
            until = time.monotonic() + _MAX_ANSWER_S
            while time.monotonic() < until and len([*self._folder.glob("rank*.oom.pickle")]) < self._ranks:
                time.sleep(0.05)

    def _ask(self) -> None:
        """Ask all ranks for a snapshot; the first that runs out of memory is named."""
        self._folder.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            file = os.open(self._folder / REQUEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(file, json.dumps({"rank": self._rank, "time": time.time()}).encode())
            os.close(file)

    def _watch(self) -> None:
        while not (self._records and (self._folder / REQUEST).exists()):
            time.sleep(_LOOK_S)
        if self._answered.acquire(blocking=False):
            with suppress(Exception):
                self._write_failed(event="asked")

    def _write_failed(self, **notes: Any) -> None:
        step = 0 if self._last_step is None else self._last_step + 1
        self._write("oom", step=step, **notes)

    def _write(self, name: str, **notes: Any) -> None:
        """Write a snapshot with the events since the begin of the step, the last ones if they are many."""
        snapshot = self._torch.cuda.memory._snapshot()
        traces = snapshot.get("device_traces", [])
        began = self._began * 1e6
        snapshot["device_traces"] = [
            [event for event in trace if event.get("time_us", began) >= began] for trace in traces
        ]
        objects = [*self._optimizers, *self._modules.called()]
        full = (trace for trace in traces if len(trace) >= _MAX_EVENTS)
        snapshot[NOTES] = {
            "version": 1,
            "rank": self._rank,
            "begin_us": int(began),
            "end_us": time.time_ns() // 1000,
            # A ring that is full has lost the events before its oldest one.
            "lost": any(trace[0].get("time_us", 0) > began for trace in full),
            "tensors": list(itertools.islice(_tensors(self._torch, objects), _MAX_TENSORS)),
            **notes,
        }
        data = pickle.dumps(snapshot, protocol=4)
        while len(data) > _MAX_NOTES_BYTES and any(snapshot["device_traces"]):
            snapshot["device_traces"] = [trace[len(trace) // 2 + 1 :] for trace in snapshot["device_traces"]]
            snapshot[NOTES]["lost"] = True
            data = pickle.dumps(snapshot, protocol=4)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"rank{self._rank:05d}.{name}.pickle"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(path)


class _RunningModules(_thread._local):
    """The names of the modules that a thread runs, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[str] = []


class _Modules:
    """Tells the allocator which module of the program runs; PyTorch keeps its name from version 2.10 on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._running = _RunningModules()
        self._tell: Callable[[str], None] = getattr(torch._C, "_cuda_setMemoryMetadata", lambda _: None)

    def follow(self) -> None:
        hooks = self._torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self._enter)
        hooks.register_module_forward_hook(self._leave, always_call=True)

    def called(self) -> list[Any]:
        return list(self._names)

    def current(self) -> str:
        """Return the module that this thread runs; empty if it runs none."""
        return self._running.stack[-1] if self._running.stack else ""

    def _enter(self, module: Any, _: Any) -> None:
        if self._torch.compiler.is_compiling():
            return
        stack = self._running.stack
        if module not in self._names and not stack:
            for name, inner in module.named_modules():
                self._names[inner] = _short_name(name) or type(module).__name__
        stack.append(self._names.get(module) or type(module).__name__)
        self._tell(self.current())

    def _leave(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if self._running.stack and not self._torch.compiler.is_compiling():
            self._running.stack.pop()
            self._tell(self.current())


def _short_name(name: str) -> str:
    """Return the name of a module without the names of wrappers such as DDP."""
    while name.startswith(("module.", "_orig_mod.", "_fsdp_wrapped_module.")):
        name = name.partition(".")[2]
    return "" if name in ("module", "_orig_mod", "_fsdp_wrapped_module") else name


def _tensors(torch: Any, owners: list[Any]) -> Iterator[tuple[str, str, int]]:
    """Yield purpose, name and address of tensors; ``owners`` are the modules and optimizers seen."""
    objects = {id(item): item for item in owners}
    for item in gc.get_objects():
        if issubclass(type(item), (torch.optim.Optimizer, torch.nn.Module)):
            objects[id(item)] = item
    optimizers = [item for item in objects.values() if isinstance(item, torch.optim.Optimizer)]
    modules = [item for item in objects.values() if isinstance(item, torch.nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    names: dict[int, str] = {}
    for root in (module for module in modules if id(module) not in inner):
        for name, tensor in itertools.chain(root.named_parameters(), root.named_buffers()):
            if id(tensor) not in names:
                names[id(tensor)] = _short_name(name)
                yield from _parameter_tensors(names[id(tensor)], tensor)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in names:
                    names[id(parameter)] = ""
                    yield from _parameter_tensors("", parameter)
        for parameter, state in list(optimizer.state.items()):
            name = names.get(id(parameter), "")
            yield from (("optimizer", name, address) for address in _addresses(state))


def _parameter_tensors(name: str, tensor: Any) -> Iterator[tuple[str, str, int]]:
    for kind, owner in (("parameters", tensor), ("gradients", tensor.grad)):
        yield from ((kind, name, address) for address in _addresses(owner))


def _addresses(value: Any) -> Iterator[int]:
    """Yield the addresses of the memory of tensors on GPUs, also of those in lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _addresses(item)
        return
    local = getattr(value, "_local_tensor", value)  # of a DTensor
    with suppress(Exception):
        address = local.untyped_storage().data_ptr() if _on_gpu(local) else 0
        if address:
            yield address


def _on_gpu(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "") == "cuda"


def install(torch: Any, pulse: Any) -> None:
    """Begin to record, if the user asked for it and this build of PyTorch has GPUs of CUDA's kind."""
    wanted = os.environ.get("HPCPROF_MEMORY_HISTORY", "")
    if not wanted or not hasattr(torch._C, "_cuda_attach_out_of_memory_observer"):
        return
    steps, _, ranks = wanted.partition("@")
    spans = [span.partition("-") for span in ranks.split(",") if span]
    chosen = not spans or any(int(low) <= pulse.rank <= int(high or low) for low, _, high in spans)
    numbers = {int(step) for step in steps.split(",") if step.isdigit()} if chosen else set()
    world = int(os.environ.get("WORLD_SIZE") or 1)
    history = MemoryHistory(torch, pulse.run, pulse.rank, numbers, world)
    pulse.on_end.append(history.ended)
    history.start()
