"""Commands that hpcprof runs: their output, their limits, and their end."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.common.processes import (
    CommandNotStarted,
    CommandTimedOut,
    piped,
    run_command,
    run_in_terminal,
    start_in_background,
)
from hpcprof.profiles.readers.ncu import reader as ncu_reader
from hpcprof.profiles.readers.nsys import report_export

LIMIT = 60.0


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def ends(pid: int) -> bool:
    deadline = time.monotonic() + LIMIT
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def main_thread_is_in(function: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def test_a_command_returns_its_exit_code_and_both_outputs() -> None:
    done = run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=LIMIT)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert done.command[0] == "sh"
    assert 0 <= done.seconds < LIMIT


def test_a_command_that_a_signal_ended_has_a_negative_exit_code() -> None:
    assert run_command(["sh", "-c", "kill -TERM $$"], timeout=LIMIT).exit_code == -signal.SIGTERM


def test_a_command_goes_through_no_shell() -> None:
    assert run_command(["printf", "%s", "$(touch x) ; *"], timeout=LIMIT).stdout == "$(touch x) ; *"


def test_invalid_bytes_in_the_output_are_replaced() -> None:
    assert run_command(["printf", r"a\377b"], timeout=LIMIT).stdout == "a\ufffdb"


def test_a_command_reads_the_given_text_or_nothing() -> None:
    assert run_command(["cat"], timeout=LIMIT, text_input="naïve\n").stdout == "naïve\n"
    assert run_command(["cat"], timeout=LIMIT).stdout == ""


def test_a_command_runs_in_the_given_directory_and_environment(tmp_path: Path) -> None:
    done = run_command(
        ["/bin/sh", "-c", "pwd; echo $X"], timeout=LIMIT, directory=tmp_path, environment={"X": "1"}
    )
    assert done.stdout.split() == [str(tmp_path.resolve()), "1"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("no-such-program", "it is not on the PATH"),
        ("/nowhere/x", "No such file or directory"),
        ("/etc/passwd", "Permission denied"),
    ],
)
def test_a_program_that_cannot_start_is_one_sentence(program: str, reason: str) -> None:
    with pytest.raises(CommandNotStarted) as raised:
        run_command([program], timeout=LIMIT)
    assert str(raised.value) == f"cannot start {program}: {reason}."
    with pytest.raises(CommandNotStarted):
        run_in_terminal([program])
    with pytest.raises(CommandNotStarted):
        start_in_background([program], Path("/"))


def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandNotStarted, match=r"cannot start true: the directory .*/gone does not exist\."):
        run_command(["true"], timeout=LIMIT, directory=tmp_path / "gone")


def test_a_command_that_times_out_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(CommandTimedOut) as raised:
        run_command(["/bin/sh", "-c", f"trap '' TERM; sleep 600 & echo $! >{pid}; wait; wait"], timeout=10)
    assert str(raised.value) == "/bin/sh did not finish within 10 s and was killed."
    assert ends(int(pid.read_text()))


def test_a_command_whose_caller_is_interrupted_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def interrupt() -> None:
        deadline = time.monotonic() + LIMIT
        while not (pid.is_file() and pid.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.01)
        # The command may begin while the caller still starts it.
        while not main_thread_is_in("communicate") and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_command(["/bin/sh", "-c", f"sleep 600 & echo $! >{pid}; wait"], timeout=LIMIT)
    thread.join()
    assert ends(int(pid.read_text()))


def test_a_process_in_the_background_has_a_session_of_its_own() -> None:
    process = start_in_background([sys.executable, "-c", "import time; time.sleep(600)"], Path("/"))
    try:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
    finally:
        process.kill()
        process.wait()


def test_an_ncu_that_hangs_is_killed_and_its_report_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    script(tmp_path / "bin/ncu", f"echo $$ >{pid}; sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(ncu_reader, "_PACKAGES", tmp_path / "no-packages")
    monkeypatch.setattr(ncu_reader, "_READ_SECONDS", 3.0)
    report = tmp_path / "rank00000.ncu-rep"
    report.write_bytes(b"x")
    with pytest.raises(
        DamagedInput, match=r"cannot read .*rank00000\.ncu-rep: .* within 3 s and was killed\."
    ):
        ncu_reader.read(report)
    assert ends(int(pid.read_text()))


def test_an_nsys_that_hangs_leaves_no_half_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        tmp_path / "bin/nsys",
        'for a; do case $a in --output=*) echo half >"${a#--output=}";; esac; done; sleep 600',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(report_export, "_EXPORT_SECONDS", 1.0)
    report = tmp_path / "profiles/rank00000.nsys-rep"
    report.parent.mkdir()
    report.write_bytes(b"x")
    with pytest.raises(
        DamagedInput, match=r"cannot export .*rank00000\.nsys-rep: .* within 1 s and was killed\."
    ):
        report_export.export_of_report(report)
    assert [path.name for path in report.parent.iterdir()] == [report.name]


def test_an_interrupt_while_a_command_starts_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)
            started.append(self)  # not reached if the interrupt is not held back

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_command(["sleep", "300"], timeout=400)
    assert len(started) == 2
    assert started[0].returncode == -signal.SIGKILL
    assert signal.getsignal(signal.SIGINT) is before


def test_a_program_in_a_terminal_that_missed_a_signal_still_restores_it(tmp_path: Path) -> None:
    script = f"""
trap 'count=x$count; [ $count = x ] || {{ echo restored >{tmp_path}/terminal; exit; }}' TERM
echo ready; while :; do sleep 0.05; done
"""
    with (
        pytest.raises(KeyboardInterrupt),
        piped(["sh", "-c", script], timeout=60, in_terminal=True) as asking,
    ):
        assert asking.stdout.read(6) == b"ready\n"
        raise KeyboardInterrupt
    assert (tmp_path / "terminal").is_file()
