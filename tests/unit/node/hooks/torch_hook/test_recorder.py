"""Records and messages of the start-up hook, for a program that marks nothing."""

from __future__ import annotations

import ast
import gc
import gzip
import importlib.machinery
import json
import os
import re
import sys
import threading
import types
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcprof.node.hooks import window
from hpcprof.node.hooks.torch_hook import recorder as hook
from hpcprof.node.hooks.torch_hook.recorder import Recorder, chosen_spans
from hpcprof.node.hooks.torch_hook.recording import Recording
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.profilers.base import Target

MODULES = PROFILERS["torch"].start_up(Target(None, ranks=1))


@pytest.fixture(autouse=True)
def _unmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program be one that has not imported hpcprof's own capture, on a machine without GPUs."""
    monkeypatch.delitem(sys.modules, "hpcprof.workloads.capture", raising=False)
    monkeypatch.setattr(hook, "_GPUS", ())


def recorder(folder: Path, **variables: str) -> Recorder:
    environ = {"HPCPROF_PROFILE_OUTPUT": str(folder / "profiles/rank00000"), "TMPDIR": str(folder)}
    return Recorder(torch, {**environ, "HPCPROF_WORLD_SIZE": "2", **variables})


def train(running: Recorder, steps: int) -> None:
    """Take steps, each with an operation, as a program does after it has made its optimizer."""
    running.optimizer_made()
    for _ in range(steps):
        torch.ones(2).add(1)
        running.stepped(running)


def ranges(trace: Path) -> list[str]:
    """Return the steps in a trace, those that have not ended in brackets."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    marks = [event for event in events if event["name"].startswith("ProfilerStep#")]
    numbers = [(event["name"].partition("#")[2], event["args"].get("finished", True)) for event in marks]
    return [number if finished else f"({number})" for number, finished in numbers]


def trace(folder: Path, cycle: str = "") -> Path:
    return folder / "profiles" / cycle / "rank00000.trace.json.gz"


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return the sentences of the hook, without the lines of PyTorch's own logs."""
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("hpcprof: ")]


def test_full_garbage_collections_are_ranges_of_the_steps_that_are_recorded(tmp_path: Path) -> None:
    running = recorder(tmp_path, HPCPROF_CAPTURE_STEPS="1-3")
    running.optimizer_made()
    callbacks = [*gc.callbacks]
    for _ in range(5):
        gc.collect()
        gc.collect(0)
        running.stepped(running)
    events = json.loads(gzip.decompress(trace(tmp_path).read_bytes()))["traceEvents"]
    assert sum(event["name"] == "garbage collection" for event in events) == 3
    assert gc.callbacks == callbacks


def test_a_garbage_collection_is_no_operation_of_a_graph_that_is_traced() -> None:
    recording = Recording(torch, {})
    recording.begin()
    try:
        graph = torch.jit.trace(lambda x: (x.sin(), gc.collect())[0], torch.ones(3)).graph
    finally:
        recording.stop()
    assert [node.kind() for node in graph.nodes()] == ["aten::sin"]


def test_a_program_may_remove_the_callbacks_of_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = recorder(tmp_path, HPCPROF_CAPTURE_STEPS="1-3")
    train(running, 2)
    monkeypatch.setattr(gc, "callbacks", [])
    train(running, 3)
    assert ranges(trace(tmp_path)) == ["1", "2", "3"]


def test_by_default_the_twenty_steps_after_the_first_five_are_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = recorder(tmp_path)
    train(running, 30)
    assert said(capfd) == ["hpcprof: recorded optimizer steps 5 to 24 of Recorder, counted from 0."]
    assert ranges(trace(tmp_path)) == [str(step) for step in range(5, 25)]
    running.close()
    assert said(capfd) == []


def test_steps_are_recorded_for_ten_seconds_at_most_unless_the_job_chose_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "MAX_DEFAULT_S", 0.0)  # every step is longer
    train(recorder(tmp_path), 30)
    assert said(capfd) == ["hpcprof: recorded optimizer step 5 of Recorder, counted from 0."]
    assert ranges(trace(tmp_path)) == ["5"]
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    train(recorder(chosen, HPCPROF_CAPTURE_STEPS="5-9"), 30)
    assert ranges(trace(chosen)) == ["5", "6", "7", "8", "9"]


def test_of_a_program_that_ends_while_it_is_recorded_the_steps_that_it_took_are_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = recorder(tmp_path)
    train(running, 7)
    running.close()
    assert ranges(trace(tmp_path)) == ["5", "6", "(7)"]
    (sentence,) = said(capfd)
    assert sentence.endswith(
        "steps 5 to 6 of Recorder, counted from 0; the program ended before the end of step 7."
    )


@pytest.mark.parametrize(("steps", "recorded"), [(3, ["0", "1", "2", "(3)"]), (5, ["0", "1", "2", "3"])])
def test_of_a_program_with_fewer_steps_the_first_ones_are_recorded(
    steps: int, recorded: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = recorder(tmp_path)
    running.use_windows()
    running.tick()
    train(running, steps)
    running.close()
    assert ranges(trace(tmp_path)) == recorded
    (sentence,) = said(capfd)
    assert sentence.endswith(f"since it took only {steps} optimizer steps.")


def test_the_first_steps_are_recorded_also_when_the_window_before_them_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = recorder(tmp_path)
    running.use_windows()
    running.tick()
    torch.ones(2).add(1)
    monkeypatch.setattr(hook, "_WINDOW_S", 0.0)
    running.tick()
    assert ranges(trace(tmp_path)) == []
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "hpcprof.workloads.capture", raising=False)
    train(running, 3)
    running.close()
    assert ranges(trace(tmp_path)) == ["0", "1", "2", "(3)"]


def test_no_window_begins_while_the_program_imports_the_compiler_for_the_profiler_fails_on_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "torch._inductor.config"
    part = types.ModuleType(name)
    part.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(part.__spec__)["_initializing"] = True
    running = recorder(tmp_path)
    running.use_windows()
    with monkeypatch.context() as importing:
        importing.setitem(sys.modules, name, part)
        importing.setitem(sys.modules, "torch._inductor", types.ModuleType("torch._inductor"))
        running.tick()
    assert said(capfd) == []
    running.tick()
    train(running, 3)
    running.close()
    assert ranges(trace(tmp_path)) == ["0", "1", "2", "(3)"]


def test_a_window_that_the_end_of_the_program_cuts_short_does_not_replace_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "WINDOWS_S", (0.0, 1e-9))
    running = recorder(tmp_path)
    running.use_windows()
    running.tick()
    torch.ones(2).add(1)
    with monkeypatch.context() as short:
        short.setattr(hook, "_WINDOW_S", 0.0)
        running.tick()
    whole = trace(tmp_path).read_bytes()
    running.tick()
    torch.ones(2).add(1)
    running.close()
    assert trace(tmp_path).read_bytes() == whole


def test_steps_that_cannot_be_recorded_any_more_are_said_with_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = recorder(tmp_path, HPCPROF_CAPTURE_STEPS="20-22")
    train(running, 7)
    running.close()
    assert not trace(tmp_path).exists()
    assert said(capfd) == [
        "hpcprof: no trace: the program took only 7 optimizer steps, and recording begins after 20: give "
        "--capture-steps 0-6."
    ]


def test_each_span_of_chosen_steps_is_a_trace_of_its_own(tmp_path: Path) -> None:
    train(recorder(tmp_path, HPCPROF_CAPTURE_STEPS="0-1,2,5-6"), 8)
    assert [ranges(trace(tmp_path, cycle)) for cycle in ("", "cycle1", "cycle2")] == [
        ["0", "1"],
        ["2"],
        ["5", "6"],
    ]


def test_a_schedule_chooses_the_steps_of_each_cycle() -> None:
    options = {"wait": 2, "warmup": 1, "active": 2, "repeat": 2}
    assert list(chosen_spans("5-9", options)) == [(3, 4), (8, 9)]
    endless = chosen_spans("5-9", {**options, "repeat": 0})
    assert list(islice(endless, 3)) == [(3, 4), (8, 9), (13, 14)]
    assert list(chosen_spans("5-9", {**options, "active": 0})) == [(5, 9)]


def test_the_options_of_the_profiler_are_those_that_the_user_gave(tmp_path: Path) -> None:
    train(recorder(tmp_path, HPCPROF_TORCH_OPTIONS='{"active": 0, "record_shapes": true}'), 25)
    assert b'"Input Dims"' in gzip.decompress(trace(tmp_path).read_bytes())


def test_with_python_stacks_nothing_but_steps_is_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = recorder(tmp_path, HPCPROF_TORCH_OPTIONS='{"with_stack": true}')
    running.use_windows()
    running.tick()
    torch.ones(2).add(1)
    running.close()
    assert not trace(tmp_path).exists()
    (sentence,) = said(capfd)
    assert sentence.endswith("the program took no optimizer step, and with_stack=true records only steps.")


def test_without_an_optimizer_windows_are_recorded_by_time_and_the_last_one_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "_WINDOW_S", 0.0)
    monkeypatch.setattr(hook, "WINDOWS_S", (0.0, 1e-9))
    running = recorder(tmp_path)
    running.use_windows()
    for size in (3, 5):
        running.tick()
        torch.ones(size).add(1)
        running.tick()
    running.close()
    (sentence,) = said(capfd)
    assert re.fullmatch(
        r"hpcprof: recorded \S+ s of the program, \S+ s after it imported torch, since it took no optimizer "
        r"step\.",
        sentence,
    )
    assert ranges(trace(tmp_path)) == []


def test_a_process_that_runs_no_operation_leaves_no_trace_and_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launcher = recorder(tmp_path)
    launcher.use_windows()
    launcher.tick()
    launcher.close()
    assert not trace(tmp_path).exists()
    assert said(capfd) == []


def test_a_gpu_that_the_program_has_not_used_yet_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "_GPUS", (tmp_path,))
    running = recorder(tmp_path)
    running.use_windows()
    assert not running.is_due()
    running.tick()
    torch.ones(2).add(1)
    running.close()
    assert not trace(tmp_path).exists()


def test_of_several_processes_of_a_rank_the_first_that_takes_steps_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorder(tmp_path)
    with monkeypatch.context() as other:
        other.setattr(os, "getpid", lambda: 1)
        second = recorder(tmp_path)
    train(first, 5)
    train(second, 30)
    assert not trace(tmp_path).exists()
    train(first, 20)
    assert ranges(trace(tmp_path)) == [str(step) for step in range(5, 25)]


def test_a_program_that_marks_what_to_profile_is_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hpcprof.workloads.capture", torch)
    running = recorder(tmp_path)
    running.use_windows()
    running.tick()
    train(running, 30)
    running.close()
    assert not trace(tmp_path).exists()
    assert said(capfd) == []


def test_a_program_that_starts_the_profiler_itself_is_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = recorder(tmp_path)
    train(running, 3)
    running.program_profiles()
    train(running, 30)
    running.close()
    assert not trace(tmp_path).exists()
    (sentence,) = said(capfd)
    assert sentence.startswith(
        "hpcprof: no trace: the program runs the PyTorch profiler itself; hpcprof open "
    )


def test_a_profiler_that_the_program_starts_ends_a_recording(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = recorder(tmp_path)
    train(running, 8)
    running.program_profiles()
    assert ranges(trace(tmp_path)) == ["5", "6", "7", "(8)"]
    assert "; the program started the PyTorch profiler itself before the end of step 8." in said(capfd)[0]


@pytest.mark.parametrize(
    ("steps", "note"), [(3, "after 3 steps and written\n"), (7, "after 2 steps and written\n")]
)
def test_ahead_of_the_walltime_limit_the_trace_is_written_and_noted_in_the_run(
    steps: int, note: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr("time.time", lambda: 100.0)
    running = recorder(tmp_path, HPCPROF_RUN_DIR=str(tmp_path), HPCPROF_CAPTURE_UNTIL="200")
    running.use_windows()
    running.tick()
    train(running, steps)
    assert not trace(tmp_path).exists()
    assert running.waits
    monkeypatch.setattr("time.time", lambda: 200.0)
    running.tick()
    assert (tmp_path / "state/rank00000.stopped").read_text() == note
    assert len(ranges(trace(tmp_path))) > 2
    assert len(said(capfd)) == 1
    assert not running.waits
    train(running, 30)
    running.close()
    assert said(capfd) == []


def test_a_limit_that_comes_after_the_steps_were_recorded_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    running = recorder(tmp_path, HPCPROF_RUN_DIR=str(tmp_path), HPCPROF_CAPTURE_UNTIL="4e9")
    train(running, 26)
    monkeypatch.setattr("time.time", lambda: 5e9)
    train(running, 1)
    assert len(ranges(trace(tmp_path))) == 20
    assert not list((tmp_path / "state").iterdir())


def test_an_error_of_the_hook_is_one_sentence_and_the_program_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Recording, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recording, "write", full)
    running = recorder(tmp_path)
    train(running, 30)
    running.close()
    (sentence,) = said(capfd)
    assert sentence.startswith(
        "hpcprof: the PyTorch profiler stopped: OSError(28, 'No space left on device')"
    )


def test_a_forked_child_of_a_recorded_program_neither_records_nor_writes(tmp_path: Path) -> None:
    running = recorder(tmp_path)
    train(running, 6)
    with running.lock:  # as if another thread of the parent were inside
        running.forked()
    try:
        train(running, 30)
        running.close()
        assert not trace(tmp_path).exists()
    finally:
        torch.autograd._enable_record_function(True)
        torch.autograd._disable_profiler()


def test_steps_in_another_thread_than_the_open_window_are_counted_and_not_recorded(tmp_path: Path) -> None:
    running = recorder(tmp_path)
    running.use_windows()
    running.tick()
    torch.ones(2).add(1)
    trainer = threading.Thread(target=train, args=(running, 20))
    trainer.start()
    trainer.join()
    running.close()
    assert ranges(trace(tmp_path)) == []


@pytest.mark.parametrize("path", sorted(MODULES))
def test_the_hook_runs_under_python_3_8_and_without_hpcprof(path: str) -> None:
    tree: Any = ast.parse(MODULES[path], feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert imported <= set(sys.stdlib_module_names)


def test_only_a_program_of_the_users_gets_the_hook() -> None:
    assert "sitecustomize.py" in MODULES
    for name in ("torch", "nsys", "ncu", "rocprofv3"):
        assert PROFILERS[name].start_up(Target("ddp", ranks=1)) == {}
        assert PROFILERS[name].start_up(Target(None, ranks=1)) == MODULES


def test_a_program_that_is_to_be_left_alone_gets_it_from_the_pytorch_profiler_only() -> None:
    alone = Target(None, ranks=1, no_hook=True)
    assert PROFILERS["torch"].start_up(alone) == MODULES
    assert PROFILERS["nsys"].start_up(alone) == {}
