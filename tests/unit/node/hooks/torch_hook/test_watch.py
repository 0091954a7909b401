"""The watch of a program's steps and profilers, in a PyTorch that stands for the real one."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import cast

import pytest

from hpcprof.node.hooks.torch_hook import watch
from hpcprof.node.hooks.torch_hook.recorder import Recorder


class Events(list[object]):
    """Stands for a recorder, and keeps what it is told."""

    def program_profiles(self) -> None:
        self.append("profiles")


@pytest.fixture
def events() -> Events:
    """The calls that a recorder gets."""
    return Events()


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
