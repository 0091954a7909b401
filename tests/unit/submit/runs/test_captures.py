"""Asking a running job to record steps."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.node.on_request import Request, read_request
from hpcprof.runs.directory import Run
from hpcprof.submit.runs import captures
from hpcprof.submit.runs.captures import await_capture, request_capture
from hpcprof.submit.schedulers.base import JobState, JobStatus
from tests.unit.submit.runs.test_failures import make_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    made = make_run(tmp_path, ranks=3)
    (tmp_path / "state/started").write_text("2020-01-01T00:00:00Z\n")
    steps = tmp_path / "state/steps"
    steps.mkdir()
    for rank in range(3):
        line = {"time": time.time(), "step": 40 + rank, "steps": 9, "wall_ns": 10**9, "max_ns": 10**9}
        (steps / f"rank{rank:05d}.jsonl").write_text(json.dumps(line) + "\n")
    answer_state(monkeypatch, JobState.RUNNING)
    monkeypatch.setattr(captures, "_LOCAL_PERIOD_S", 0.01)
    return made


def answer_state(monkeypatch: pytest.MonkeyPatch, state: JobState) -> None:
    monkeypatch.setattr(captures, "poll", lambda runs, seconds: {one.id: JobStatus(state) for one in runs})


def answer(run: Run, rank: int, state: str, number: int = 1, error: str = "") -> None:
    folder = run.path / "state/captures"
    folder.mkdir(exist_ok=True)
    values = {"number": number, "state": state, "first": 48, "last": 52, "error": error}
    (folder / f"rank{rank:05d}.json").write_text(json.dumps(values))


def test_the_first_step_is_ahead_of_the_rank_that_is_farthest(run: Run) -> None:
    request, asked = request_capture(run, 5)
    assert (request.number, request.steps, request.ranks, asked) == (1, 5, [], [0, 1, 2])
    assert 43 + 5 <= request.first <= 43 + 8
    assert read_request(run.path / "state/capture.json") == request


def test_the_answers_of_the_asked_ranks_are_awaited(run: Run) -> None:
    request, asked = request_capture(run, 5, "1-2")
    assert (request.ranks, asked) == ([(1, 2)], [1, 2])
    for rank in asked:
        answer(run, rank, "recorded")
    assert sorted(await_capture(run, request, asked)) == [1, 2]
    assert request_capture(run, 5)[0].number == 2


def test_the_reasons_of_ranks_reach_the_caller(run: Run) -> None:
    request, asked = request_capture(run, 5)
    answer(run, 0, "recorded")
    for rank in (1, 2):
        answer(run, rank, "failed", error="no luck")
    with pytest.raises(HpcprofError, match=r"ranks 1, 2: no luck \(1 other rank recorded\)\."):
        await_capture(run, request, asked)


def test_ranks_that_say_nothing_are_named_when_the_job_has_ended(run: Run) -> None:
    request, asked = request_capture(run, 5)
    answer(run, 0, "recorded")
    answer(run, 1, "accepted")
    answer(run, 2, "recorded", number=7)
    (run.path / "state/finished").write_text("0\n")
    with pytest.raises(HpcprofError, match="recorded nothing: its job has ended"):
        await_capture(run, request, asked)


def test_an_open_request_is_not_replaced(run: Run) -> None:
    request_capture(run, 5)
    with pytest.raises(HpcprofError, match="already records steps"):
        request_capture(run, 5)


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_a_number_of_steps_has_limits(steps: int, run: Run) -> None:
    with pytest.raises(UsageError, match="--steps"):
        request_capture(run, steps)


@pytest.mark.parametrize(
    ("ranks", "message"), [("9", "rank 9"), ("2-1", "is empty"), ("all", "give ranks such as")]
)
def test_ranks_that_are_none_are_refused(ranks: str, message: str, run: Run) -> None:
    with pytest.raises(UsageError, match=message):
        request_capture(run, 5, ranks)


def test_a_job_that_cannot_record_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(**values: object) -> Run:
        assert run.manifest is not None
        job = msgspec.structs.replace(run.manifest.job, **values)
        return Run(run.id, run.path, msgspec.structs.replace(run.manifest, job=job))

    with pytest.raises(UsageError, match="--no-hook"):
        request_capture(changed(no_hook=True), 5)
    with pytest.raises(UsageError, match="runs under torch"):
        request_capture(changed(profiler="torch", profile_ranks="all"), 5)
    (run.path / "state/capture.json").write_text('{"run": "this"}')
    with pytest.raises(HpcprofError, match="is not a request of yours"):
        request_capture(run, 5)
    for path in (run.path / "state/steps").iterdir():
        path.unlink()
    with pytest.raises(HpcprofError, match="no rank of run has ended a step yet"):
        request_capture(run, 5)
    answer_state(monkeypatch, JobState.QUEUED)
    for job in (run, changed(profiler="eztrace", profile_ranks="all")):
        with pytest.raises(HpcprofError, match="is queued: only a running job"):
            request_capture(job, 5)


def test_a_request_is_what_the_hook_reads(run: Run) -> None:
    assert Request(*request_capture(run, 2)[0]).is_for(2)
