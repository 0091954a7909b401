"""The profiler runs around the measured steps, between barriers that all ranks pass."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from hpcprof.workloads import capture
from hpcprof.workloads.capture import Capture, annotate
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler


def environment(profiler: RankProfiler, folder: Path) -> RankEnvironment:
    return RankEnvironment(profiler=profiler, profile_output=folder / "profiles" / "rank.0")


@pytest.mark.parametrize("profiler", list(RankProfiler))
def test_every_profiler_passes_the_same_barriers(profiler: RankProfiler, tmp_path: Path) -> None:
    happened: list[str] = []
    with Capture(environment(profiler, tmp_path), rank=0, barrier=lambda: happened.append("barrier")):
        happened.append("steps")
    assert happened == ["barrier", "barrier", "steps", "barrier"]


@pytest.mark.parametrize("profiler", [RankProfiler.NSYS, RankProfiler.NCU])
def test_on_cuda_the_capture_range_opens_before_the_last_barrier_and_closes_after_the_next(
    profiler: RankProfiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(capture, "_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: happened.append("synchronize"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: happened.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: happened.append("stop"))
    with Capture(environment(profiler, tmp_path), rank=0, barrier=lambda: happened.append("barrier")):
        happened.append("steps")
    opening = ["synchronize", "barrier", "start", "synchronize", "barrier"]
    assert happened == [*opening, "steps", "synchronize", "barrier", "stop"]


def test_the_torch_profiler_writes_one_trace_of_the_block_alone(tmp_path: Path) -> None:
    with annotate("before"):
        torch.zeros(1)
    with (
        Capture(environment(RankProfiler.TORCH, tmp_path), rank=0, barrier=lambda: None),
        annotate("iteration"),
    ):
        torch.zeros(1)
    (path,) = (tmp_path / "profiles").iterdir()
    assert path.name == "rank.0.trace.json.gz"
    names = [event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
    assert names.count("iteration") == 1
    assert "before" not in names


def test_a_block_that_fails_passes_no_more_barriers_and_writes_no_trace(tmp_path: Path) -> None:
    happened: list[str] = []
    with (
        pytest.raises(ZeroDivisionError),
        Capture(
            environment(RankProfiler.TORCH, tmp_path), rank=0, barrier=lambda: happened.append("barrier")
        ),
    ):
        _ = 1 / 0
    assert happened == ["barrier", "barrier"]
    assert not (tmp_path / "profiles").exists()


def test_without_an_output_the_trace_is_named_by_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Capture(RankEnvironment(profiler=RankProfiler.TORCH), rank=7, barrier=lambda: None):
        pass
    assert (tmp_path / "profiles" / "rank00007.trace.json.gz").exists()


def run_steps(environment: RankEnvironment, steps: int) -> list[str]:
    """Run steps that do nothing; return the order of barriers and steps."""
    happened: list[str] = []
    with Capture(environment, rank=0, barrier=lambda: happened.append("barrier")) as running:
        for number in range(steps):
            with running.step(), annotate("iteration"):
                torch.zeros(1)
                happened.append(str(number))
    return happened


def iterations(path: Path) -> int:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sum(event["name"] == "iteration" for event in events)


@pytest.mark.parametrize(("chosen", "captured"), [((1, 2), 2), ((0, 0), 1), ((3, 9), 1)])
def test_only_the_chosen_steps_are_captured(
    chosen: tuple[int, int], captured: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = RankEnvironment(
        profiler=RankProfiler.TORCH,
        profile_output=tmp_path / "profiles" / "rank00000",
        capture_steps=(chosen,),
    )
    run_steps(asked, 4)
    assert iterations(tmp_path / "profiles/rank00000.trace.json.gz") == captured


def test_each_span_of_steps_is_a_trace_of_its_own(tmp_path: Path) -> None:
    asked = RankEnvironment(
        profiler=RankProfiler.TORCH, profile_output=tmp_path / "r", capture_steps=((0, 0), (2, 4))
    )
    run_steps(asked, 6)
    assert iterations(tmp_path / "r.trace.json.gz") == 1
    assert iterations(tmp_path / "cycle1/r.trace.json.gz") == 3


@pytest.mark.parametrize(("first", "spans"), [(12, [4, 5]), (6, None)])
def test_the_steps_before_the_first_chosen_one_are_noted_without_the_profiler(
    first: int, spans: list[int] | None, tmp_path: Path
) -> None:
    asked = RankEnvironment(
        profiler=RankProfiler.TORCH,
        profile_output=tmp_path / "r",
        capture_steps=((first, first + 1), (first + 4, first + 4)),
        run_dir=tmp_path,
    )
    (tmp_path / "state").mkdir()
    run_steps(asked, first + 5)
    note = tmp_path / "state/alone/rank00000.json"
    noted = json.loads(note.read_text()) if note.exists() else []
    assert ([span["steps"] for span in noted] or None) == spans


def test_every_rank_passes_the_barriers_of_chosen_steps(tmp_path: Path) -> None:
    plain = RankEnvironment(capture_steps=((1, 2),))
    assert run_steps(plain, 4) == ["barrier", "0", "barrier", "barrier", "1", "2", "barrier", "3"]


def test_chosen_steps_that_never_came_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = RankEnvironment(
        profiler=RankProfiler.TORCH, profile_output=tmp_path / "r", capture_steps=((7, 9),)
    )
    run_steps(asked, 4)
    assert (
        capsys.readouterr().err
        == "hpcprof: steps 7 to 9 were selected for capture, but the run had 4 steps.\n"
    )


def test_a_schedule_records_its_active_steps_and_puts_further_cycles_into_folders(tmp_path: Path) -> None:
    options = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}
    asked = RankEnvironment(profiler=RankProfiler.TORCH, profile_output=tmp_path / "r", torch_options=options)
    run_steps(asked, 9)
    assert iterations(tmp_path / "r.trace.json.gz") == 2
    assert iterations(tmp_path / "cycle1/r.trace.json.gz") == 2


def test_a_run_too_short_for_the_schedule_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"wait": 5, "warmup": 2, "active": 2, "repeat": 1}
    asked = RankEnvironment(profiler=RankProfiler.TORCH, profile_output=tmp_path / "r", torch_options=options)
    run_steps(asked, 4)
    said = capsys.readouterr().err
    assert "recorded nothing: its schedule needs 9 steps, but the run had 4" in said


def limited(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> RankEnvironment:
    """Return an environment whose capture is to stop during the second step, by a clock that steps turn."""
    (folder / "state").mkdir()
    hours = iter(range(1, 100))
    monkeypatch.setattr("hpcprof.workloads.capture.time.time", lambda: next(hours))
    values = {"profiler": RankProfiler.TORCH, "run_dir": folder, "profile_output": folder / "rank00003"}
    return RankEnvironment(**{**values, "capture_until": 2, **changes})  # type: ignore[arg-type]


def test_ahead_of_the_walltime_limit_the_trace_is_written_and_the_steps_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    happened: list[str] = []
    asked = limited(tmp_path, monkeypatch)
    with Capture(asked, rank=3, barrier=lambda: happened.append("barrier")) as running:
        for number in range(4):
            with running.step(), annotate("iteration"):
                happened.append(str(number))
            happened.append("written" if (tmp_path / "rank00003.trace.json.gz").exists() else "going on")
    assert happened == [
        *["barrier", "barrier", "0", "going on", "1", "written"],
        *["2", "written", "3", "written", "barrier"],
    ]
    assert iterations(tmp_path / "rank00003.trace.json.gz") == 2
    assert [path.name for path in tmp_path.glob("cycle*")] == []
    done = "after 2 steps and written"
    assert (tmp_path / "state/rank00003.stopped").read_text() == f"{done}\n"
    assert (
        capsys.readouterr().err == f"hpcprof: the walltime limit is near: the capture was stopped {done}.\n"
    )


def test_a_span_that_begins_after_the_time_of_the_capture_has_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = limited(tmp_path, monkeypatch, capture_steps=((0, 2), (4, 6)))
    happened = run_steps(asked, 8)
    assert happened.count("barrier") == 1 + 3 + 3  # as on every other rank
    assert iterations(tmp_path / "rank00003.trace.json.gz") == 2
    assert iterations(tmp_path / "cycle1/rank00003.trace.json.gz") == 1
    assert (tmp_path / "state/rank00003.stopped").read_text() == "after 1 step and written\n"


@pytest.mark.parametrize("active", [1, 3])
def test_a_schedule_is_cut_only_where_it_is_not_over(
    active: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"wait": 0, "warmup": 1, "active": active, "repeat": 1}
    run_steps(limited(tmp_path, monkeypatch, torch_options=options, capture_until=3), 6)
    note = tmp_path / "state/rank00003.stopped"
    assert (tmp_path / "rank00003.trace.json.gz").exists()
    assert note.exists() is (active == 3)


def test_on_cuda_the_range_is_closed_once_ahead_of_the_walltime_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(capture, "_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: happened.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: happened.append("stop"))
    asked = limited(tmp_path, monkeypatch, profiler=RankProfiler.NSYS)
    with Capture(asked, rank=3, barrier=lambda: None) as running:
        for number in range(4):
            with running.step():
                happened.append(str(number))
    assert happened == ["start", "0", "1", "stop", "2", "3"]
    assert (tmp_path / "state/rank00003.stopped").read_text() == "after 2 steps\n"
