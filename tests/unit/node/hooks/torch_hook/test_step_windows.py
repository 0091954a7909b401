"""Steps that turn a profiler on and off, and that it shows."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcprof.analysis.steps.step_detection import HOOK
from hpcprof.node.hooks.torch_hook.step_windows import BEGIN, MARK, Nvtx, Roctx, StepWindows, Unitrace

CUDA = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
OPTIMIZER = object()


class Said(list[str]):
    """The calls that a profiler got, between the steps."""

    def resume(self) -> None:
        self.append("resume")

    def pause(self) -> None:
        self.append("pause")

    def mark(self, name: str) -> None:
        self.append({MARK: "mark", BEGIN: "begin"}[name])

    def begin_range(self, name: str) -> None:
        self.append(f"begin {name}")

    def end_range(self) -> None:
        self.append("end")

    def end(self, session: str) -> None:
        self.append(f"end {session}")

    def await_end(self, _: float) -> bool:
        return "lasts" not in self


def windows(said: Said, *spans: tuple[int, int], marked: object = None) -> StepWindows:
    """Steps of a program that makes an optimizer."""
    made = StepWindows(SimpleNamespace(cuda=CUDA), spans, said, lambda: marked)
    made.optimizer_made()
    return made


def test_the_chosen_steps_are_recorded_and_marked() -> None:
    said = Said()
    steps = windows(said, (1, 2), (4, 4))
    for step in range(6):
        said.append(f"step {step}")
        steps.stepped(OPTIMIZER)
    assert said == [
        *("step 0", "resume", "mark", "step 1", "mark", "step 2", "mark", "pause", "step 3"),
        *("resume", "mark", "step 4", "mark", "pause", "step 5"),
    ]


def test_a_full_garbage_collection_is_a_range() -> None:
    said = Said()
    windows(said)
    gc.collect()
    gc.collect(1)
    gc.callbacks.pop()
    assert said == ["begin garbage collection", "end"]


def test_a_chosen_first_step_begins_with_the_optimizer() -> None:
    said = Said()
    steps = windows(said, (0, 0))
    steps.optimizer_made()
    steps.stepped(OPTIMIZER)
    steps.stepped(OPTIMIZER)
    assert said == ["resume", "mark", "mark", "pause"]


def test_a_whole_program_has_a_mark_between_its_steps() -> None:
    said = Said()
    steps = windows(said)
    steps.stepped(OPTIMIZER)
    steps.stepped(OPTIMIZER)
    assert said == ["mark", "mark"]


def test_steps_that_the_program_marks_are_left_to_it() -> None:
    said = Said()
    steps = windows(said, (0, 1), marked=object())
    for _ in range(3):
        steps.stepped(OPTIMIZER)
    assert said == []


def test_the_steps_before_the_window_are_timed_between_synchronizations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0, waits=0)

    def synchronize() -> None:
        clock.now += 40 - clock.waits  # what the GPU has still to do: the host runs ahead in the first steps
        clock.waits = 40

    monkeypatch.setattr("time.perf_counter_ns", lambda: clock.now)
    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, synchronize=synchronize)
    path = tmp_path / "alone" / "rank00000.json"
    steps = StepWindows(SimpleNamespace(cuda=cuda), [(10, 12)], Said(), lambda: None, path)
    for _ in range(14):
        assert path.exists() == (steps._steps >= 10)
        clock.now += 10
        steps.stepped(OPTIMIZER)
    assert json.loads(path.read_text()) == [
        {"steps": 3, "elapsed_ns": 30, "recorded": 3},
        {"steps": 4, "elapsed_ns": 40, "recorded": 3},
    ]


def test_too_few_steps_before_the_window_are_not_timed(tmp_path: Path) -> None:
    path = tmp_path / "alone" / "rank00000.json"
    steps = StepWindows(SimpleNamespace(cuda=CUDA), [(6, 9)], Said(), lambda: None, path)
    for _ in range(12):
        steps.stepped(OPTIMIZER)
    assert not path.exists()


@pytest.mark.parametrize(("step_s", "steps"), [(0.1, 20), (1.0, 10), (60.0, 3)])
def test_a_window_has_the_same_steps_on_all_ranks_and_steps_alone_after_it(
    step_s: float, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    ranks = []
    for rank in range(2):
        said, note = Said(), tmp_path / f"scratch{rank}" / "window"
        note.parent.mkdir()
        notes = (note, tmp_path / "window")
        alone = tmp_path / "alone"
        made = StepWindows(
            SimpleNamespace(cuda=CUDA),
            [],
            said,
            lambda: None,
            alone,
            notes,
            lambda _, said=said: said.append("left out"),  # type: ignore[misc]
        )
        for _ in range(10 + steps + 1):
            clock.now += step_s * (1 + rank)
            made.stepped(OPTIMIZER)
        ranks.append(said)
        # The second rank takes longer for its first steps, and ends with the first.
        assert said[9:12] == ["begin", "mark", "mark"] and note.exists()
        assert said[-2:] == [f"end scratch{rank}", "left out"] and said.count("mark") == 10 + steps
    assert not list(tmp_path.glob(".window*")) and not (tmp_path / "alone").exists()
    for _ in range(13):
        made.stepped(OPTIMIZER)
    assert [span["steps"] for span in json.loads((tmp_path / "alone").read_text())] == [5, 5]


def test_steps_beside_a_recording_that_does_not_end_are_not_timed(tmp_path: Path) -> None:
    said, notes = Said(["lasts"]), (tmp_path / "ended", tmp_path / "window")
    made = StepWindows(SimpleNamespace(cuda=CUDA), [], said, lambda: None, tmp_path / "alone", notes)
    for _ in range(100):
        made.stepped(OPTIMIZER)
    assert notes[0].exists() and not (tmp_path / "alone").exists()


def test_a_program_ends_after_the_session_that_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit, waits = list[Callable[[], bool]](), [(7, 0), (0, 0), (0, 0)]
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("os.posix_spawnp", lambda *_, **__: 7)
    monkeypatch.setattr("os.waitpid", lambda *_: waits.pop())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=None))
    nvtx = Nvtx()
    assert not nvtx.await_end(60)
    nvtx.end("window1")
    assert not nvtx.await_end(0) and len(waits) == 2
    (wait,) = at_exit
    assert wait() and not waits


@pytest.mark.parametrize("steps", [0, 2])
def test_a_program_of_which_nothing_was_recorded_says_why(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, lines = Said(), list[str]()
    monkeypatch.setattr(f"{StepWindows.__module__}.say", lines.append)
    windows = StepWindows(SimpleNamespace(cuda=None), [(3, 4)], said, lambda: None)
    if steps:
        windows.optimizer_made()
    for _ in range(steps):
        windows.stepped(OPTIMIZER)
    windows.close()
    why = "recording begins after 3: give --capture-steps 0-1" if steps else "leave --capture-steps out"
    assert said == [] and len(lines) == 1 and why in lines[0]


def test_those_who_read_profiles_know_the_mark() -> None:
    assert HOOK.pattern.fullmatch(MARK)


@pytest.mark.parametrize("switch", [Nvtx(), Roctx(), Unitrace()])
def test_without_the_profiler_nothing_happens(
    switch: Nvtx | Roctx | Unitrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> None:
        raise RuntimeError("NVTX functions not installed.")

    def asserts() -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    cuda = SimpleNamespace(
        nvtx=SimpleNamespace(range_push=raises), profiler=SimpleNamespace(start=asserts, stop=asserts)
    )
    torch = SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("PTI_ENABLE_COLLECTION", "1")
    switch.resume()
    switch.mark(MARK)
    switch.pause()
