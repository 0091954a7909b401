"""Progress shown while a command waits for runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcprof.cli.progress import SearchingLine, WaitingLine
from hpcprof.study.runs import Message, MessageKind
from hpcprof.submit.schedulers.base import JobState, JobStatus

QUEUED, RUNNING = JobStatus(JobState.QUEUED, "Priority"), JobStatus(JobState.RUNNING)


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int = 100) -> None:
    """Make both outputs a terminal; a fixture cannot, since pytest changes them after it."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))


def drawn(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return every line that was printed or drawn, without the codes that move the cursor."""
    printed = capsys.readouterr()
    assert printed.err == ""
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", printed.out)) if line]


def test_on_a_terminal_the_state_and_the_times_are_one_line_below_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch)
    clock = [100.0]
    monkeypatch.setattr("hpcprof.cli.progress.time.monotonic", lambda: clock[0])
    with WaitingLine(limit=3600) as line:
        clock[0] += 80
        line.show_state(RUNNING, 80.0)
        line.print("epoch 1\nepoch 2\n", nl=False)
    lines = drawn(capsys)
    state = "running, 1 min 20 s elapsed, limit 01:00:00"
    assert lines[-1] == state
    assert [line for line in lines if line != state] == ["epoch 1", "epoch 2"]


def test_elsewhere_each_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with WaitingLine(limit=3600) as line:
        line.show_state(QUEUED, 0.1)
        line.show_state(RUNNING, 95.0)
        line.print("epoch 1\n", nl=False)
    assert drawn(capsys) == ["queued: Priority", "running (after 1 min 35 s)", "epoch 1"]


def test_on_a_terminal_a_study_shows_which_run_it_is_at_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch)
    clock = [0.0]
    monkeypatch.setattr("hpcprof.cli.progress.time.monotonic", lambda: clock[0])
    with WaitingLine() as line:
        line.show_message(Message("run 1 of 8: alone", run=1, runs=8))
        clock[0] = 250.0
        line.show_message(Message("run 3 of 8: alone", run=3, runs=8, seconds_left=600.0))
        clock[0] = 280.0
        line.show_message(Message("running", MessageKind.STATE))
        line.show_message(Message("epoch 1\n", MessageKind.OUTPUT))
        line.show_message(Message("no kernels", MessageKind.WARNING))
    lines = drawn(capsys)
    assert "run 3 of 8: alone" in lines and "epoch 1" in lines and "hpcprof: no kernels" in lines
    assert "running" not in lines
    assert lines[-1] == "run 3 of 8, running, 4 min 40 s elapsed, about 9 min 30 s left"


def test_elsewhere_each_message_of_a_study_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with WaitingLine() as line:
        line.show_message(Message("run 1 of 2: nsys", run=1, runs=2))
        line.show_message(Message("running", MessageKind.STATE))
        line.show_message(Message("epoch 1\n", MessageKind.OUTPUT))
        line.show_message(Message("no kernels", MessageKind.WARNING))
    assert capsys.readouterr() == ("run 1 of 2: nsys\nrunning\nepoch 1\n", "hpcprof: no kernels\n")


def test_the_line_is_cut_at_the_edge_of_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch, width=30)
    with WaitingLine(limit=3600) as line:
        line.show_state(QUEUED, 0.0)
    assert max(map(len, drawn(capsys))) == 30


def test_of_a_line_that_a_program_redraws_the_end_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_terminal(monkeypatch)
    with WaitingLine() as line:
        line.print("10 %\r50 %\rdone\r\n", nl=False)
    assert drawn(capsys) == ["done"]


def test_a_long_search_for_runs_says_so_once_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr("hpcprof.cli.progress.time.monotonic", lambda: clock[0])
    with SearchingLine() as line:
        line(Path("/data"), 0)
        clock[0] += 3
        line(Path("/data"), 1)
        line(Path("/data"), 1)
    assert capsys.readouterr().err == "hpcprof: searching /data for runs and profiles\n"
