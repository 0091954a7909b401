"""The pulse of a rank."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.node import pulse, step_lines
from hpcprof.node.pulse import Pulse
from hpcprof.node.step_lines import StepLines


class Lines:
    """The writer of lines about steps."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self, step: int) -> None:
        self.calls.append(f"end {step}")

    def flush(self) -> None:
        """Write nothing."""


@pytest.fixture(autouse=True)
def marks_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the program mark no steps, whatever other tests have done in this process."""
    monkeypatch.setattr(step_lines, "current", None)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def of_rank(tmp_path: Path, lines: Lines) -> Pulse:
    (tmp_path / "state").mkdir()
    return Pulse(tmp_path, 3, 12.0, lines)


def test_each_step_of_an_optimizer_ends_a_step(of_rank: Pulse, lines: Lines) -> None:
    optimizer = object()
    for _ in range(3):
        of_rank.stepped(optimizer)
    assert lines.calls == ["begin", "end 1", "end 2"]


def test_steps_that_a_program_in_jax_marks_end_steps_with_its_numbers(of_rank: Pulse, lines: Lines) -> None:
    class Annotation:
        def __init__(self, name: str, **metadata: object) -> None:
            self.metadata = metadata

        def __enter__(self) -> Annotation:
            return self

        def __exit__(self, *error: object) -> None:
            return None

    pulse.watch_jax(SimpleNamespace(profiler=SimpleNamespace(StepTraceAnnotation=Annotation)), of_rank.ended)
    for number in (7, 8, 9):
        with Annotation("train", step_num=number) as step:
            assert step.metadata == {"step_num": number}
    with pytest.raises(ZeroDivisionError), Annotation("train", step_num=10):
        raise ZeroDivisionError
    with Annotation("train"):
        pass
    assert lines.calls == ["begin", "end 8", "end 9", "end 3"]


def test_a_program_that_marks_its_steps_is_not_counted_twice(
    of_rank: Pulse, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_lines, "current", StepLines(None, 0))
    of_rank.stepped(object())
    assert lines.calls == []


def test_evidence_has_the_stacks_of_all_threads_and_the_last_step(of_rank: Pulse, tmp_path: Path) -> None:
    optimizer = object()
    for _ in range(2):
        of_rank.stepped(optimizer)
    writer = threading.Thread(target=of_rank._write_evidence)
    writer.start()
    writer.join()
    told = json.loads((tmp_path / "stall" / "rank00003.json").read_text())
    assert (told["rank"], told["last_step"], told["steps"]) == (3, 1, 2)
    main = told["threads"][0]
    assert main["main"]
    assert any(frame["filename"] == __file__ for frame in main["frames"])


def test_each_stall_of_a_run_has_its_evidence(
    of_rank: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = tmp_path / "state/stalled"
    written: list[float] = []
    moments = iter((100, 100, 200, 200))  # another rank goes on between the two stalls

    real_sleep, watching = time.sleep, threading.get_ident()

    def nap(seconds: float) -> None:
        if threading.get_ident() != watching:  # a thread that another test has left
            return real_sleep(seconds)
        if len(written) == 0 and not stalled.exists():
            stalled.touch()
            of_rank._timeout_s = 0.0
        moment = next(moments)
        os.utime(stalled, (moment, moment))

    monkeypatch.setattr(time, "sleep", nap)
    monkeypatch.setattr(of_rank, "_write_evidence", lambda: written.append(stalled.stat().st_mtime))
    with pytest.raises(StopIteration):
        of_rank._watch()
    assert written == [100, 200]


def test_the_name_of_the_thread_tells_how_far_a_rank_is_and_whether_it_waits(of_rank: Pulse) -> None:
    names: list[str] = []

    def tell() -> None:
        of_rank._set_thread_name(12_345_678_901, True)
        names.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())

    thread = threading.Thread(target=tell)
    thread.start()
    thread.join()
    assert names == ["hpw2345678901"]


def test_collectives_that_have_not_ended_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, Any]] = [
        {"op_id": 41, "pg_id": 0, "retired": True, "state": "scheduled"},
        {"op_id": 42, "pg_id": 0, "retired": False, "state": "completed"},
        {"op_id": 1, "pg_id": 1, "retired": False, "state": "started"},
    ]
    monkeypatch.setattr(pulse, "_last_collectives", lambda with_stacks: {"entries": entries})
    assert pulse.collectives() == (42, True)
    entries[-1]["retired"] = True
    assert pulse.collectives() == (43, False)


@pytest.mark.parametrize(("on_gpus", "expected"), [(True, [True, False]), (False, [False, False])])
def test_a_rank_with_gpus_in_a_function_in_which_ranks_meet_waits(
    on_gpus: bool, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(is_initialized=lambda: on_gpus))
    lock = threading.Lock()
    found: list[bool] = []

    def look() -> None:
        time.sleep(0.05)
        found.append(pulse.waits_in_rendezvous())
        lock.release()

    code = "def wait(acquire): acquire()"  # no frame of Python is below it
    for file in ("/venv/torch/distributed/distributed_c10d.py", "/home/me/train.py"):
        namespace: dict[str, Any] = {}
        exec(compile(code, file, "exec"), namespace)
        lock.acquire()
        threading.Thread(target=look).start()
        namespace["wait"](lock.acquire)
        lock.release()
    assert found == expected


def test_only_the_program_of_a_rank_has_its_pulse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    monkeypatch.setenv("HPCPROF_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HPCPROF_RANK", "3")
    monkeypatch.setenv("HPCPROF_PULSE", str(os.getpid() + 1))
    assert pulse.install(lambda run, rank: lines) is None
    monkeypatch.delenv("HPCPROF_PULSE")
    assert pulse.install(lambda run, rank: lines) is not None
    assert os.environ["HPCPROF_PULSE"] == str(os.getpid())


def test_the_workers_of_torchrun_are_ranks_and_torchrun_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    monkeypatch.setenv("HPCPROF_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HPCPROF_RANK", "0")
    monkeypatch.delenv("HPCPROF_PULSE", raising=False)
    for words in (["python", "-m", "torch.distributed.run", "x.py"], ["python", "/usr/bin/torchrun", "x.py"]):
        monkeypatch.setattr("sys.orig_argv", words, raising=False)
        assert pulse.install(lambda run, rank: lines) is None
    monkeypatch.setattr("sys.orig_argv", ["python", "-u", "x.py"], raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", "5")
    ranks: list[int] = []

    def lines_of(run: Path, rank: int) -> Lines:
        ranks.append(rank)
        return lines

    assert pulse.install(lines_of) is not None
    assert ranks == [5]


def test_a_process_of_no_rank_has_no_pulse(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    monkeypatch.delenv("HPCPROF_RUN_DIR", raising=False)
    assert pulse.install(lambda run, rank: lines) is None


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


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Events of this module's optimizers, each of which is new to PyTorch."""
    for kind in (Optimizer, Derived):
        monkeypatch.setattr(kind, "step", kind.__dict__["step"])
    for name in ("profile_hook_step", "__init__"):
        monkeypatch.setattr(Optimizer, name, Optimizer.__dict__[name])
    return []


def watch_optimizers(events: list[object], compiling: bool = False) -> None:
    compiler = SimpleNamespace(is_compiling=lambda: compiling)
    torch = SimpleNamespace(optim=SimpleNamespace(Optimizer=Optimizer), compiler=compiler)
    pulse.watch_optimizers(torch, events.append, lambda: events.append("made"))


def test_a_step_is_told_after_it_has_been_taken_with_its_result_unchanged(events: list[object]) -> None:
    watch_optimizers(events)
    optimizer = Optimizer()
    assert events == ["made"]
    assert optimizer.step() == "stepped"
    assert events == ["made", optimizer]


def test_optimizers_that_take_turns_make_one_step_together(events: list[object]) -> None:
    watch_optimizers(events)
    generator, critic = Optimizer(), Optimizer()
    events.clear()
    for _ in range(3):
        generator.step()
        critic.step()
    assert events == [generator, generator, generator]


def test_a_step_that_calls_the_step_of_its_base_class_counts_once(events: list[object]) -> None:
    watch_optimizers(events)
    Optimizer()
    optimizer = Derived()
    assert optimizer.step() == "stepped twice"
    assert events == ["made", "made", optimizer]


def test_a_step_that_fails_does_not_count_and_the_next_one_does(
    events: list[object], monkeypatch: pytest.MonkeyPatch
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


def test_a_step_that_is_being_compiled_is_left_to_the_compiler(events: list[object]) -> None:
    watch_optimizers(events, compiling=True)
    assert Optimizer().step() == "stepped"
    assert events == ["made"]


def test_a_pytorch_without_hooks_for_steps_is_left_as_it_is(events: list[object]) -> None:
    old = SimpleNamespace(optim=SimpleNamespace(Optimizer=object))
    pulse.watch_optimizers(old, events.append)
    assert events == []
