"""What tells the recorder of a program's steps and profilers, in a PyTorch that stands for the real one."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcprof.workloads.torch_hook import watch
from hpcprof.workloads.torch_hook.recorder import Recorder


class Optimizer:
    """Wraps the step of each class when the first one is made, as PyTorch's does."""

    def __init__(self) -> None:
        if not hasattr(type(self).step, "hooked"):
            type(self).step = self.profile_hook_step(type(self).step)  # type: ignore[method-assign]
            type(self).step.hooked = True  # type: ignore[attr-defined]

    def step(self) -> str:
        return "stepped"

    @staticmethod
    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(step)(lambda *args: step(*args))


class Derived(Optimizer):
    def step(self) -> str:
        return super().step() + " twice"


class Events(list[object]):
    """Stands for a recorder, and keeps what it is told."""

    def optimizer_made(self) -> None:
        self.append("made")

    def stepped(self, optimizer: object) -> None:
        self.append(optimizer)

    def program_profiles(self) -> None:
        self.append("profiles")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """What a recorder is told of this module's optimizers, each of which is new to PyTorch."""
    for kind in (Optimizer, Derived):
        monkeypatch.setattr(kind, "step", kind.__dict__["step"])
    for name in ("profile_hook_step", "__init__"):
        monkeypatch.setattr(Optimizer, name, Optimizer.__dict__[name])
    return Events()


def watch_optimizers(events: Events, compiling: bool = False) -> None:
    compiler = SimpleNamespace(is_compiling=lambda: compiling)
    torch = SimpleNamespace(optim=SimpleNamespace(Optimizer=Optimizer), compiler=compiler)
    watch._watch_optimizers(torch, cast("Recorder", events))


def test_a_step_is_told_after_it_has_been_taken_with_its_result_unchanged(events: Events) -> None:
    watch_optimizers(events)
    optimizer = Optimizer()
    assert events == ["made"]
    assert optimizer.step() == "stepped"
    assert events == ["made", optimizer]


def test_a_step_that_calls_the_step_of_its_base_class_counts_once(events: Events) -> None:
    watch_optimizers(events)
    Optimizer()
    optimizer = Derived()
    assert optimizer.step() == "stepped twice"
    assert events == ["made", "made", optimizer]


def test_a_step_that_fails_does_not_count_and_the_next_one_does(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ZeroDivisionError]

    def step(self: Optimizer) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(Optimizer, "step", step)
    watch_optimizers(events)
    optimizer = Optimizer()
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert events == ["made"]
    optimizer.step()
    assert events == ["made", optimizer]


def test_a_step_that_is_being_compiled_is_left_to_the_compiler(events: Events) -> None:
    watch_optimizers(events, compiling=True)
    assert Optimizer().step() == "stepped"
    assert events == ["made"]


def test_a_pytorch_without_hooks_for_steps_is_left_as_it_is(events: Events) -> None:
    old = SimpleNamespace(optim=SimpleNamespace(Optimizer=object))
    watch._watch_optimizers(old, cast("Recorder", events))
    assert events == []


def test_profilers_of_both_kinds_are_told_before_they_are_made(events: Events) -> None:
    def profile() -> type:
        return type("profile", (), {"__init__": lambda self, name: events.append(name)})

    new, old = profile(), profile()
    torch = SimpleNamespace(
        profiler=SimpleNamespace(profile=new),
        autograd=SimpleNamespace(profiler=SimpleNamespace(profile=old)),
    )
    watch._watch_profilers(torch, cast("Recorder", events))
    new("new")
    old(name="old")
    assert events == ["profiles", "new", "profiles", "old"]


def test_the_main_thread_is_called_when_a_window_is_due_and_not_before() -> None:
    called: list[str] = []

    class Waiting:
        waits = True

        def is_due(self) -> bool:
            return True

        def tick(self) -> None:
            called.append(threading.current_thread().name)
            self.waits = False

    waiting = Waiting()
    watch._watch_time(cast("Recorder", waiting))
    deadline = time.monotonic() + 60
    while waiting.waits and time.monotonic() < deadline:
        pass  # The call comes between two instructions.
    assert called[0] == threading.main_thread().name
