"""Running a scheduler's commands."""

from __future__ import annotations

import time

import pytest

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers import command
from hpcprof.submit.schedulers.command import (
    Unreachable,
    answer_time_limit,
    ask_again_while_silent,
    seconds_left,
)


def test_a_silent_scheduler_is_asked_again_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_PAUSES", (0.0, 0.0))
    asked: list[int] = []

    def ask(answers_at: int) -> int:
        asked.append(len(asked))
        if len(asked) < answers_at:
            raise Unreachable("no answer")
        return len(asked)

    assert ask_again_while_silent(lambda: ask(3)) == 3
    asked.clear()
    with pytest.raises(Unreachable):
        ask_again_while_silent(lambda: ask(4))


def test_an_answer_that_is_an_error_is_not_asked_for_again() -> None:
    asked: list[int] = []

    def refuse() -> None:
        asked.append(1)
        raise SchedulerError("no")

    with pytest.raises(SchedulerError):
        ask_again_while_silent(refuse)
    assert asked == [1]


def test_all_questions_together_stop_at_their_limit() -> None:
    asked: list[float] = []

    def silent() -> None:
        asked.append(seconds_left("squeue", 120))
        raise Unreachable("no answer")

    with answer_time_limit(0.2):
        with pytest.raises(Unreachable, match="no answer"):
            ask_again_while_silent(silent)
        assert len(asked) == 1
        assert asked[0] <= 0.2
    with answer_time_limit(0), pytest.raises(Unreachable, match="squeue was not asked"):
        seconds_left("squeue", 120)
    assert seconds_left("squeue", 120) == 120


def test_what_a_scheduler_said_is_not_lost_when_the_limit_cuts_a_further_question_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_PAUSES", (0.0, 0.0))
    reasons = iter(["the server is down", "no answer within 0 s"])

    def silent() -> None:
        reason = next(reasons)
        if reason.startswith("no answer"):
            time.sleep(0.2)
        raise Unreachable(reason)

    with answer_time_limit(0.2), pytest.raises(Unreachable, match="the server is down"):
        ask_again_while_silent(silent)
