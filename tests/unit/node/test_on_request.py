"""Recording steps of a running program on request."""

from __future__ import annotations

import ast
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.node import on_request
from hpcprof.node.on_request import OnRequest, Request, first_step, parse_request, write_request


class Recording:
    """Stands for a use of the PyTorch profiler, and tells what was done with it."""

    calls: list[str]

    def __init__(self, torch: Any, options: dict[str, Any]) -> None:
        self.calls = Recording.calls = ["prepared"]
        self.thread = threading.get_ident()
        self.began: float | None = None
        self.steps = 0

    def begin(self) -> None:
        self.began = 0.0
        self.calls.append("begun")

    def mark(self, step: int) -> None:
        self.calls.append(f"step {step}")

    def end_mark(self) -> None:
        self.steps += 1

    def stop(self) -> None:
        self.calls.append("stopped")

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("trace")


def torch(profiles: bool = False) -> Any:
    cuda = SimpleNamespace(is_initialized=lambda: False)
    return SimpleNamespace(autograd=SimpleNamespace(_profiler_enabled=lambda: profiles), cuda=cuda)


def rank(folder: Path, number: int = 1, slower_pct: float = 0.0, profiles: bool = False) -> OnRequest:
    (folder / "state").mkdir(exist_ok=True)
    module = SimpleNamespace(Recording=Recording)
    return OnRequest(torch(profiles), module, folder, number, slower_pct)


def answer(folder: Path, number: int = 1) -> dict[str, Any]:
    path = folder / f"state/captures/rank{number:05d}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_a_rank_records_the_steps_of_a_request_and_goes_on(tmp_path: Path) -> None:
    one = rank(tmp_path)
    write_request(tmp_path / "state", Request(1, 5, 2, [(0, 3)]))
    one._look()
    assert answer(tmp_path)["state"] == "accepted"
    for steps in range(2, 12):
        one.ended(steps)
    assert Recording.calls == ["prepared", "begun", "step 5", "step 6", "stopped"]
    assert answer(tmp_path) == {"number": 1, "state": "recorded", "first": 5, "last": 6}
    assert (tmp_path / "profiles/rank00001.trace.json.gz").exists()
    one._look()
    one.ended(12)
    assert Recording.calls[-1] == "stopped"


def test_a_rank_that_was_not_asked_removes_its_trace_of_an_earlier_request(tmp_path: Path) -> None:
    one = rank(tmp_path)
    trace = tmp_path / "profiles/rank00001.trace.json.gz"
    trace.parent.mkdir()
    trace.touch()
    write_request(tmp_path / "state", Request(1, 5, 2, [(2, 3), (6, 6)]))
    one._look()
    assert answer(tmp_path) == {}
    assert not trace.exists()


@pytest.mark.parametrize(
    ("steps", "profiles", "error"),
    [
        (7, False, "step 5 had begun before the request was seen"),
        (4, True, "runs the PyTorch profiler itself"),
    ],
)
def test_a_rank_that_cannot_record_says_why(steps: int, profiles: bool, error: str, tmp_path: Path) -> None:
    one = rank(tmp_path, profiles=profiles)
    write_request(tmp_path / "state", Request(1, 5, 2, []))
    one._look()
    one.ended(steps)
    assert answer(tmp_path)["state"] == "failed"
    assert error in answer(tmp_path)["error"]
    assert one._due > 10**9


def test_an_error_of_the_profiler_reaches_the_caller_and_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "begin", lambda self: 1 / 0)
    one = rank(tmp_path)
    write_request(tmp_path / "state", Request(1, 5, 2, []))
    one._look()
    one.ended(5)
    assert "ZeroDivisionError" in answer(tmp_path)["error"]
    assert Recording.calls[-1] == "stopped"


@pytest.mark.parametrize(("steps", "state"), [(4, "failed"), (6, "recorded")])
def test_a_program_that_ends_writes_what_it_has(steps: int, state: str, tmp_path: Path) -> None:
    one = rank(tmp_path)
    write_request(tmp_path / "state", Request(1, 5, 9, []))
    one._look()
    for number in range(3, steps + 1):
        one.ended(number)
    one._close()
    assert answer(tmp_path)["state"] == state
    assert answer(tmp_path).get("last", 5) == 5


GOOD = {"number": 1, "first": 2, "steps": 3, "ranks": [[0, 1]]}


@pytest.mark.parametrize(
    "change",
    [
        {"command": "rm"},
        {"number": "1"},
        {"steps": 0},
        {"steps": 10**6},
        {"first": -1},
        {"first": True},
        {"ranks": "all"},
        {"ranks": [[1]]},
        {"ranks": [["0", "1"]]},
    ],
)
def test_anything_else_than_a_request_is_refused(change: dict[str, Any]) -> None:
    assert parse_request(json.dumps(GOOD)) == Request(1, 2, 3, [(0, 1)])
    with pytest.raises(ValueError, match="it"):
        parse_request(json.dumps({**GOOD, **change}))


def test_a_request_of_another_user_or_behind_a_link_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "capture.json"
    write_request(tmp_path, Request(1, 2, 3, []))
    (tmp_path / "link").symlink_to(path)
    assert on_request.read_request(tmp_path / "link") is None
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(ValueError, match="another user"):
        on_request.read_request(path)


def test_the_first_step_of_a_request_is_some_seconds_ahead() -> None:
    assert first_step(100, 50e6) == 201
    assert first_step(100, 60e9) == 103


def slow_run(one: OnRequest, walls: list[int]) -> None:
    one._walls = walls
    one._steps = 1000 + len(walls)
    one._judge()


def test_slower_steps_are_recorded_with_the_step_since_when_at_most_twice(tmp_path: Path) -> None:
    one = rank(tmp_path, number=0, slower_pct=20)
    slow_run(one, [100] * 200 + [119] * 30)
    assert not (tmp_path / "state/capture.json").exists()
    slow_run(one, [100] * 200 + [500] + [100] * 10 + [123] * 25)
    request = on_request.read_request(tmp_path / "state/capture.json")
    assert request.number == 1
    assert request.first > 1236
    assert json.loads((tmp_path / "state/slower.json").read_text()) == {
        "since": 1211,
        "percent": pytest.approx(23),
        "before_ns": 100,
        "after_ns": 123,
    }
    for number in (2, 3):
        one._number = number - 1
        slow_run(one, [100] * 200 + [130] * 25)
    assert on_request.read_request(tmp_path / "state/capture.json").number == 2


def test_a_single_long_step_or_a_slow_start_is_not_slower(tmp_path: Path) -> None:
    one = rank(tmp_path, number=0, slower_pct=20)
    slow_run(one, [9000] + [100] * 100 + [5000] * 5 + [100] * 14)
    slow_run(one, [500] * 15 + [900] * 20)
    assert not (tmp_path / "state/slower.json").exists()
    assert rank(tmp_path, number=1, slower_pct=20)._slower_pct == 0


def test_the_hook_runs_under_python_3_8() -> None:
    ast.parse(Path(on_request.__file__).read_text(), feature_version=(3, 8))
