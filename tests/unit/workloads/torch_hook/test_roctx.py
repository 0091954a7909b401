"""Steps that turn rocprofv3 on and off."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hpcprof.workloads.torch_hook import roctx
from hpcprof.workloads.torch_hook.roctx import StepWindows

CUDA = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that rocprofv3 got."""
    words: list[str] = []
    monkeypatch.setattr(roctx, "resume", lambda: words.append("resume"))
    monkeypatch.setattr(roctx, "pause", lambda: words.append("pause"))
    return words


def test_the_chosen_steps_are_recorded(said: list[str]) -> None:
    windows = StepWindows(SimpleNamespace(cuda=CUDA), [(1, 2), (4, 4)])
    windows.optimizer_made()
    for step in range(6):
        said.append(f"step {step}")
        windows.stepped(object())
    kept = ("resume", "pause", "step 1", "step 3", "step 4")
    recorded = [word for word in said if word in kept]
    assert recorded == ["resume", "step 1", "pause", "step 3", "resume", "step 4", "pause"]


def test_a_chosen_first_step_begins_with_the_optimizer(said: list[str]) -> None:
    windows = StepWindows(SimpleNamespace(cuda=CUDA), [(0, 0)])
    optimizer = object()
    windows.optimizer_made()
    windows.stepped(optimizer)
    windows.stepped(optimizer)
    assert said == ["resume", "pause"]


def test_without_rocprofv3_nothing_happens() -> None:
    roctx.resume()
    roctx.pause()
