"""The log of commands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcprof.common import logs
from hpcprof.common.errors import UsageError
from hpcprof.common.logs import configure, log_command, log_invocation, shown_output


@pytest.fixture(autouse=True)
def _clean_logger() -> Iterator[None]:
    """Return the logger to its state before the test."""
    logger = logging.getLogger("hpcprof")
    yield
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def test_one_v_shows_the_command_and_two_its_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(logs.VERBOSE, "1")
    log_command(["qstat", "--token", "abc"], "exit code 0, 0.12 s", "a job\n", "a warning\n")
    assert capsys.readouterr().err == "$ qstat --token '***'  [exit code 0, 0.12 s]\n"
    monkeypatch.setenv(logs.VERBOSE, "2")
    log_command(["qstat"], "exit code 0, 0.12 s", "a job\n", "PASSWORD=abc\n")
    assert capsys.readouterr().err == (
        "$ qstat  [exit code 0, 0.12 s]\nstdout of qstat:\n    a job\nstderr of qstat:\n    PASSWORD=***\n"
    )


@pytest.mark.parametrize("value", ["", "0"])
def test_without_a_setting_nothing_is_shown(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(logs.VERBOSE, value)
    log_command(["qstat"], "exit code 0, 0.12 s", "a job\n")
    assert capsys.readouterr() == ("", "")


def test_the_file_gets_everything_with_timestamps_after_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hpcprof.log"
    path.write_text("before\n")
    monkeypatch.setenv(logs.LOG_FILE, str(path))
    log_invocation("0.1.0", ["status", "last"])
    log_command(["qstat"], "exit code 0, 0.12 s", "a job\n")
    before, invocation, command, stream, output = path.read_text().splitlines()
    assert (before, output) == ("before", "    a job")
    assert invocation.endswith(" DEBUG hpcprof 0.1.0: hpcprof status last")
    assert command.endswith(" INFO $ qstat  [exit code 0, 0.12 s]")
    assert stream.endswith(" DEBUG stdout of qstat:")
    assert command[:4].isdigit()
    assert capsys.readouterr() == ("", "")


def test_a_log_file_that_cannot_be_written_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(logs.LOG_FILE, str(tmp_path))
    with pytest.raises(UsageError) as raised:
        configure()
    assert str(raised.value) == f"HPCPROF_LOG={tmp_path} cannot be written: Is a directory."


def test_a_program_can_listen_with_its_own_handler(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hpcprof"):
        log_command(["qstat"], "exit code 0, 0.12 s", "a job\n")
    assert caplog.messages == ["$ qstat  [exit code 0, 0.12 s]"]


def test_a_long_output_is_cut_and_cannot_steer_the_terminal() -> None:
    shown = shown_output("\x1b[2J\n" + "x" * 30_000)
    assert shown.startswith(r"    \x1b[2J")
    assert shown.endswith("\n    … and 10,005 more characters")
