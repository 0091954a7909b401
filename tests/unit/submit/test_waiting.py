"""Waiting for a run."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from hpcprof.common.errors import SchedulerError
from hpcprof.runs.directory import Run
from hpcprof.submit import waiting
from hpcprof.submit.runs.failures import _last_output_of_rank
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.waiting import (
    cancel_and_wait,
    describe_change,
    describe_failure,
    poll_seconds,
    wait_until_ended,
    watch,
)
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run


def test_the_scheduler_is_asked_often_at_first_and_never_less_than_every_ten_seconds() -> None:
    pauses = list(islice(poll_seconds(), 40))
    assert pauses[0] < 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10


def test_each_state_and_all_output_of_rank_0_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "rank00000.out"
    log.parent.mkdir()
    states = [
        ("", JobStatus(JobState.QUEUED, "Priority")),
        ("one\ntw", JobStatus(JobState.RUNNING)),
        ("o\n", JobStatus(JobState.RUNNING)),
        ("", JobStatus(JobState.RUNNING)),
        ("three", JobStatus(JobState.COMPLETED)),
    ]

    def poll(runs: list[Run], seconds: float | None = None) -> dict[str, JobStatus]:
        printed, status = states.pop(0)
        with log.open("a") as file:
            file.write(printed)
        return {runs[0].id: status}

    monkeypatch.setattr(waiting, "poll", poll)
    monkeypatch.setattr("hpcprof.submit.waiting.time.sleep", lambda seconds: None)
    run = Run("r", tmp_path)
    lines: list[str] = []
    output: list[str] = []
    ended = wait_until_ended(run, lambda status, seconds: lines.append(str(status)), output.append)
    assert ended.state is JobState.COMPLETED
    assert lines == ["queued: Priority", "running"]
    assert output == ["one\n", "two\n", "three"]


def test_lines_of_standard_error_are_shown_whole_after_those_of_standard_output(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    log = waiting._Log(Run("r", tmp_path))
    (logs / "rank00000.out").write_text("epoch 1\nepo")
    (logs / "rank00000.err").write_text("10 %\r20 %")
    assert log.read_new(ended=False) == "epoch 1\n"
    with (logs / "rank00000.err").open("a") as file:
        file.write("\rdone\n")
    assert log.read_new(ended=False) == "10 %\r20 %\rdone\n"
    assert log.read_new(ended=True) == "epo"


def test_what_the_library_of_the_pytorch_profiler_logs_is_left_out_but_for_warnings(
    make_run: MakeRun,
) -> None:
    run = make_run()
    assert run.manifest is not None
    job = msgspec.structs.replace(run.manifest.job, profiler="torch")
    run = replace(run, manifest=msgspec.structs.replace(run.manifest, job=job))
    (run.path / "logs").mkdir()
    (run.path / "logs/rank00000.err").write_text(
        "USDT:2026-11-22 10:34:17 15364:15364 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
        "WARNING:2026-11-22 10:34:18 15364:15364 init.cpp:178] CUPTI initialization failed\n"
        "INFO: epoch 1\n"
    )
    shown = waiting._Log(run).read_new(ended=False).splitlines()
    assert [line.partition(":")[0] for line in shown] == ["WARNING", "INFO"]
    assert _last_output_of_rank(run, 0) == shown


def test_a_change_is_described_with_the_time_that_it_took() -> None:
    running = JobStatus(JobState.RUNNING)
    assert describe_change(running, 0.4) == "running"
    assert (
        describe_change(JobStatus(JobState.QUEUED, "Priority"), 190) == "queued: Priority (after 3 min 10 s)"
    )


def polled(monkeypatch: pytest.MonkeyPatch, *states: JobState) -> list[str]:
    """Have each poll return the next state of the one run, and return the list of what is done."""
    done: list[str] = []
    left = iter(states)

    def poll(runs: list[Run], seconds: float | None = None) -> dict[str, JobStatus]:
        done.append("poll")
        return {"r": JobStatus(next(left))}

    monkeypatch.setattr(waiting, "poll", poll)
    monkeypatch.setattr(waiting, "cancel", lambda runs: done.append("cancel"))
    monkeypatch.setattr("hpcprof.submit.waiting.time.sleep", lambda seconds: None)
    return done


RUNS = [cast(Run, SimpleNamespace(id="r"))]


def test_runs_are_watched_until_all_have_ended_and_yielded_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polled(monkeypatch, JobState.QUEUED, JobState.RUNNING, JobState.RUNNING, JobState.FAILED)
    states = [states["r"].state for states in watch(RUNS)]
    assert states == [JobState.QUEUED, JobState.RUNNING, JobState.FAILED]


def test_a_cancelled_run_is_polled_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done = polled(monkeypatch, JobState.RUNNING, JobState.CANCELLED)
    assert cancel_and_wait(RUNS)["r"].state is JobState.CANCELLED
    assert done == ["cancel", "poll", "poll"]


def test_the_deletion_of_a_run_that_still_runs_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    done = polled(monkeypatch, JobState.RUNNING, JobState.RUNNING, JobState.CANCELLED)
    monkeypatch.setattr(waiting, "_REPEAT_SECONDS", 0.0)
    cancel_and_wait(RUNS)
    assert done == ["cancel", "poll", "cancel", "poll", "cancel", "poll"]


def test_a_cancelled_run_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    polled(monkeypatch, JobState.RUNNING, JobState.RUNNING)
    monkeypatch.setattr(waiting, "_CANCEL_SECONDS", -1.0)
    with pytest.raises(SchedulerError, match=r"not cancelled after .* s: r is running"):
        cancel_and_wait(RUNS)


def test_open_mpis_refusal_of_root_names_the_variables_that_allow_it(make_run: MakeRun) -> None:
    run = make_run(started="now")
    (run.path / "logs").mkdir()
    refusal = "mpirun has detected an attempt to run as root.\nRunning as root is strongly discouraged.\n"
    (run.path / "logs/job.err").write_text(refusal)
    assert describe_failure(run, JobStatus(JobState.FAILED, "exit code 1", 1))[-1] == (
        "Open MPI refuses to start ranks as root. Set OMPI_ALLOW_RUN_AS_ROOT=1 and "
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or do not run as root."
    )


def test_a_failure_shows_what_a_plain_script_printed_and_cuts_long_lines(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "logs").mkdir()
    (run.path / "logs/job.out").write_text(f"working\n{'x' * 3000}\n")
    said = describe_failure(run, JobStatus(JobState.FAILED, "exit code 3", 3))
    assert said[1:] == ["job.out:", "  working", f"  {'x' * 500}…"]
