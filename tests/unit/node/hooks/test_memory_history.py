"""Snapshots of GPU memory, with a stand-in for PyTorch's allocator."""

from __future__ import annotations

import importlib
import json
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcprof.node import step_lines
from hpcprof.node.hooks import memory_history
from hpcprof.node.hooks.memory_history import NOTES, REQUEST, MemoryHistory, install
from hpcprof.node.step_lines import StepLines

Observer = Callable[[int, int, int, int], None]


class Allocator:
    """Stands in for `torch` where it is about the memory of a GPU."""

    def __init__(self, events: int = 5) -> None:
        self.recorded: dict[str, Any] = {}
        self.observer: Observer | None = None
        self.told: list[str] = []
        self.events = events
        self.optim, self.nn, self.compiler = torch.optim, torch.nn, torch.compiler
        memory = SimpleNamespace(_record_memory_history=self._record, _snapshot=self._snapshot)
        self.cuda = SimpleNamespace(
            _lazy_call=lambda function: function(),
            memory=memory,
            get_device_properties=lambda _: SimpleNamespace(total_memory=8 << 30),
        )
        self._C = SimpleNamespace(
            _cuda_attach_out_of_memory_observer=self._attach, _cuda_setMemoryMetadata=self.told.append
        )

    def _record(self, enabled: str, **options: Any) -> None:
        self.recorded = {"enabled": enabled, **options}

    def _attach(self, observer: Observer) -> None:
        self.observer = observer

    def _snapshot(self) -> dict[str, Any]:
        now = time.time_ns() // 1000
        event = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "frames": []}
        old = [{**event, "time_us": now - 10**9 + number} for number in range(self.events)]
        return {"segments": [], "device_traces": [[*old, {**event, "time_us": now}]]}


@pytest.fixture
def gpu() -> Allocator:
    return Allocator()


@pytest.fixture(autouse=True)
def _own_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks of modules end with the test."""
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called"):
        hooks = getattr(torch.nn.modules.module, name)
        monkeypatch.setattr(torch.nn.modules.module, name, type(hooks)())
    optimizer = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizer, "_global_optimizer_post_hooks", OrderedDict())


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(path.read_bytes())
    return found


def test_a_chosen_step_is_kept_with_its_own_events_alone(gpu: Allocator, tmp_path: Path) -> None:
    history = MemoryHistory(gpu, tmp_path, 3, {1}, 1)
    history.start()
    for ended in (1, 2, 3):
        history.ended(ended)
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["rank00003.step1.pickle"]
    found = _read(tmp_path / "memory/rank00003.step1.pickle")
    assert len(found["device_traces"][0]) == 1
    assert (found[NOTES]["step"], found[NOTES]["event"], found[NOTES]["lost"]) == (1, "step", False)
    assert gpu.recorded["max_entries"] == 100_000


def test_out_of_memory_is_kept_of_all_ranks(
    gpu: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_history, "_LOOK_S", 0.05)
    other = Allocator()
    MemoryHistory(other, tmp_path, 1, set(), 2).start()
    failing = MemoryHistory(gpu, tmp_path, 0, set(), 2)
    failing.start()
    failing.ended(7)
    assert gpu.observer is not None
    # If it waited for the whole time, the test would not end.
    monkeypatch.setattr(memory_history, "_MAX_ANSWER_S", 3600)
    gpu.observer(0, 1 << 30, 8 << 30, 5 << 20)
    assert json.loads((tmp_path / "memory" / REQUEST).read_text())["rank"] == 0
    failed, asked = (_read(tmp_path / f"memory/rank0000{rank}.oom.pickle")[NOTES] for rank in (0, 1))
    assert (failed["event"], failed["asked_bytes"], failed["free_bytes"]) == (
        "out_of_memory",
        1 << 30,
        5 << 20,
    )
    assert (failed["step"], failed["device_bytes"]) == (7, 8 << 30)
    assert asked["event"] == "asked"


def test_a_program_that_catches_the_error_waits_once(
    gpu: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_history, "_MAX_ANSWER_S", 0.2)
    MemoryHistory(gpu, tmp_path, 0, set(), 4).start()
    assert gpu.observer is not None
    began = time.monotonic()
    gpu.observer(0, 1, 2, 3)
    assert time.monotonic() - began >= 0.2
    # If it waited again, the test would not end.
    monkeypatch.setattr(memory_history, "_MAX_ANSWER_S", 3600)
    gpu.observer(0, 1, 2, 3)


def test_a_large_snapshot_loses_its_oldest_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Allocator(events=2000)
    monkeypatch.setattr(memory_history, "_MAX_NOTES_BYTES", 20_000)
    history = MemoryHistory(gpu, tmp_path, 0, {0}, 1)
    history.start()
    history._began = 0.0
    history.ended(1)
    path = tmp_path / "memory/rank00000.step0.pickle"
    found = _read(path)
    assert path.stat().st_size <= 20_000
    assert found[NOTES]["lost"]
    assert 0 < len(found["device_traces"][0]) < 1000


def test_tensors_are_known_by_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(inner)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    weight = inner.weight
    monkeypatch.setattr(memory_history, "_on_gpu", lambda tensor: isinstance(tensor, torch.Tensor))
    found = {address: (kind, name) for kind, name, address in memory_history._tensors(torch, [])}
    assert weight.grad is not None
    expected = {
        weight.data_ptr(): ("parameters", "0.weight"),
        weight.grad.data_ptr(): ("gradients", "0.weight"),
        optimizer.state[weight]["exp_avg"].data_ptr(): ("optimizer", "0.weight"),
    }
    assert found.items() >= expected.items()


def test_the_running_module_is_told(gpu: Allocator, tmp_path: Path) -> None:
    MemoryHistory(gpu, tmp_path, 0, set(), 1).start()
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    torch.nn.ModuleDict({"module": model})  # a wrapper that is never called
    model(torch.ones(1, 2))
    assert gpu.told == ["Sequential", "0", "0.0", "0", "Sequential", ""]

    class Fails(torch.nn.Module):
        def forward(self, _: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        Fails()(torch.ones(1))
    assert gpu.told[-1] == ""


@pytest.mark.parametrize(
    ("text", "rank", "steps"),
    [("5,10", 3, {5, 10}), ("5@0,4-7", 3, set()), ("5@0,4-7", 6, {5}), ("oom", 0, set())],
)
def test_steps_and_ranks_are_those_of_the_option(
    text: str, rank: int, steps: set[int], tmp_path: Path, gpu: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCPROF_MEMORY_HISTORY", text)
    pulse = SimpleNamespace(run=tmp_path, rank=rank, on_end=[])
    install(gpu, pulse)
    assert pulse.on_end[0].__self__._steps == steps


def test_nothing_happens_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCPROF_MEMORY_HISTORY", "5")
    before = threading.active_count()
    pulse = SimpleNamespace(run=tmp_path, rank=0, on_end=[])
    install(torch, pulse)
    assert pulse.on_end == []
    assert threading.active_count() == before


def test_a_line_of_steps_has_the_peaks_of_the_fullest_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stats(device: int) -> dict[str, Any]:
        return {name: {"all": {"peak": 100 * device + 1}} for name in step_lines.MEMORY}

    memory = SimpleNamespace(memory_stats_as_nested_dict=stats)
    cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 2, memory=memory)
    monkeypatch.setattr(torch, "cuda", cuda)
    (tmp_path / "state").mkdir()
    lines = StepLines(tmp_path, 0)
    lines.begin()
    lines.end(0)
    line = json.loads((tmp_path / "state/steps/rank00000.jsonl").read_text())
    assert [line[name] for name in step_lines.MEMORY] == [101, 101, 101]
