"""Running a scheduler's commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers.command import (
    Unreachable,
    run_scheduler_command,
)


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_command_leaves_its_exit_code_and_what_it_printed() -> None:
    done = run_scheduler_command(python("import sys; print('a'); print('b', file=sys.stderr); sys.exit(153)"))
    assert (done.exit_code, done.stdout, done.stderr) == (153, "a\n", "b\n")


def test_arguments_reach_the_command_as_they_are() -> None:
    assert (
        run_scheduler_command([*python("import sys; print(sys.argv[1])"), "$(touch x) ; *"]).stdout
        == "$(touch x) ; *\n"
    )


def test_a_command_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(SchedulerError) as missing:
        run_scheduler_command(["no-such-sbatch"])
    assert (
        str(missing.value)
        == "cannot start no-such-sbatch: it is not on the PATH; is this a login node of the site?"
    )


def test_a_working_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match=r"cannot start .*: the directory .*/gone does not exist\."):
        run_scheduler_command(python(""), tmp_path / "gone")


def test_a_command_that_does_not_end_is_a_scheduler_that_does_not_answer() -> None:
    with pytest.raises(Unreachable, match=r"did not answer within 0.1 s"):
        run_scheduler_command(python("import signal; signal.pause()"), seconds=0.1)


def test_a_users_settings_for_squeue_do_not_hide_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    printed = run_scheduler_command(
        python("import os; print(sorted(n for n in os.environ if n.startswith('S')))")
    ).stdout
    assert "SQUEUE_PARTITION" not in printed
    assert "SLURM_TIME_FORMAT" not in printed
