"""The lines that a rank writes about its steps while it runs."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcprof.node import step_lines
from hpcprof.node.step_lines import StepLines
from hpcprof.workloads.capture import Capture
from hpcprof.workloads.rankenv import RankEnvironment

MS = 1_000_000


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 5_000 * MS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(step_lines, "perf_counter_ns", lambda: found.now)
    monkeypatch.setattr(step_lines, "time", lambda: found.now / 1e9)
    return found


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path


def _written(run_dir: Path, rank: int = 3) -> list[dict[str, Any]]:
    path = run_dir / f"state/steps/rank{rank:05d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _run(lines: StepLines, clock: Clock, walls_ms: list[int], first: int = 0) -> None:
    for step, wall in enumerate(walls_ms, first):
        lines.begin()
        clock.now += wall * MS
        lines.end(step)


def test_the_lines_of_a_long_run_are_thinned_out_and_lose_no_step(clock: Clock, run_dir: Path) -> None:
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [500] * (24 * 7200))
    lines.flush()
    written = _written(run_dir)
    assert 15_000 < len(written) < 20_000
    assert (run_dir / "state/steps/rank00003.jsonl").stat().st_size < 2_000_000
    assert sum(line["steps"] for line in written) == 24 * 7200
    assert {line["wall_ns"] for line in written} == {500 * MS}
    gaps = [after["time"] - before["time"] for before, after in pairwise(written)]
    assert max(gaps[:3000]) == pytest.approx(1)
    assert max(gaps) == pytest.approx(10, abs=0.6)


def test_a_line_a_second_has_the_median_and_the_longest_of_the_steps_since_the_last(
    clock: Clock, run_dir: Path
) -> None:
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [200, 100, 100, 100, 400, 300, 100])
    assert _written(run_dir) == [
        {"time": 5.2, "step": 0, "steps": 1, "wall_ns": 200 * MS, "max_ns": 200 * MS, "total_ns": 200 * MS},
        {
            **{"time": 6.2, "step": 5, "steps": 5, "wall_ns": 100 * MS, "max_ns": 400 * MS},
            "total_ns": 1000 * MS,
            "long": [[4, 400 * MS], [5, 300 * MS]],
        },
    ]


def test_a_line_has_the_times_of_its_longest_steps_and_is_short(clock: Clock, run_dir: Path) -> None:
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [1000, *([5] * 25 + [9 + step for step in range(20)]), 2000])
    (_, line) = _written(run_dir)
    assert line["long"] == [*([step, (step - 17) * MS] for step in range(31, 46)), [46, 2000 * MS]]


def test_a_step_lasts_from_the_end_of_the_one_before(clock: Clock, run_dir: Path) -> None:
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [2000])
    clock.now += 500 * MS
    _run(lines, clock, [1000], first=1)
    assert [line["wall_ns"] for line in _written(run_dir)] == [2000 * MS, 1500 * MS]


def test_the_time_of_a_pause_belongs_to_no_step(clock: Clock, run_dir: Path) -> None:
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [2000])
    lines.pause()
    clock.now += 9000 * MS
    _run(lines, clock, [1000], first=1)
    assert [line["wall_ns"] for line in _written(run_dir)] == [2000 * MS, 1000 * MS]


def test_the_time_for_which_a_recording_holds_a_program_up_is_left_out(clock: Clock, run_dir: Path) -> None:
    lines = StepLines(run_dir, 3)
    lines.leave_out(9000 * MS)
    _run(lines, clock, [2000])
    clock.now += 3000 * MS
    lines.leave_out(3000 * MS)
    _run(lines, clock, [1000], first=1)
    assert [line["wall_ns"] for line in _written(run_dir)] == [2000 * MS, 1000 * MS]


def test_without_a_run_nothing_is_written_and_nothing_is_kept(clock: Clock, tmp_path: Path) -> None:
    lines = StepLines(None, 0)
    _run(lines, clock, [2000, 2000])
    lines.close()
    assert not list(tmp_path.iterdir()) and not lines._walls and not lines.unwritten


def test_a_run_that_is_gone_stops_the_lines_and_not_the_program(clock: Clock, run_dir: Path) -> None:
    shutil.rmtree(run_dir / "state")
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [2000, 2000, 2000])
    assert lines.unwritten == 3 and not list(run_dir.iterdir())


def test_a_full_disk_stops_the_lines_and_not_the_program(
    clock: Clock, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [2000])
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda *_: 0)
        _run(lines, clock, [2000])
    _run(lines, clock, [2000, 2000])
    lines.close()
    assert lines.unwritten == 3 and len(_written(run_dir)) == 1


def test_nothing_is_written_after_the_end(clock: Clock, run_dir: Path) -> None:
    lines = StepLines(run_dir, 3)
    lines.close()
    _run(lines, clock, [2000])
    assert not _written(run_dir)


def test_a_capture_writes_the_times_of_its_steps_without_waiting_for_the_gpu(
    clock: Clock, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[None] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(None))
    environment = RankEnvironment(run_dir=run_dir, capture_steps=((1, 1),))

    def barrier() -> None:
        clock.now += 7000 * MS

    with Capture(environment, rank=3, barrier=barrier) as capture:
        for _ in range(4):
            with capture.step():
                clock.now += 1500 * MS
    # What the barriers around the captured step take is no part of a step.
    assert [line["wall_ns"] for line in _written(run_dir)] == [1500 * MS] * 4
    assert [line["step"] for line in _written(run_dir)] == [0, 1, 2, 3]
    assert not waited


def test_what_a_program_counts_is_in_its_lines(
    run_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_lines, "counted", {})
    lines = StepLines(run_dir, 3)
    _run(lines, clock, [1])
    step_lines.count(512)
    step_lines.count(256)
    _run(lines, clock, [2_000], first=1)
    first, second = _written(run_dir)
    assert "items" not in first
    assert second["items"] == 768 and str(second["item"]) == "token"
