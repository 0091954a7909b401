"""The log that the page of a running job shows."""

from __future__ import annotations

import pytest

from hpcprof.common.units import capitalized
from hpcprof.runs.live_steps import describe_live_steps
from hpcprof.serve.api import LOG_BYTES, live_state, logs
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run


def test_a_log_is_shown_as_text_without_its_secrets(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "logs").mkdir()
    text = "epoch 1\tloss 2\n\x1b[31mAPI_TOKEN=abcdef\n<b>bold</b>\r\n"
    (run.path / "logs" / "rank00000.out").write_text(text)
    (shown,) = logs(run, None)
    assert shown == {
        "name": "rank00000.out",
        "text": "epoch 1 loss 2\n\\x1b[31mAPI_TOKEN=***\n<b>bold</b>",
        "cut": False,
    }
    assert logs(run, 7) == []


def test_an_ended_job_is_not_said_to_hang(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "state" / "steps").mkdir(parents=True)
    line = '{"time": 1000, "step": 3, "steps": 2, "wall_ns": 9, "max_ns": 9}\n'
    (run.path / "state/steps/rank00000.jsonl").write_text(line)
    assert live_state(run, now=2000.0)["warnings"] == ["No rank has ended a step for 1000 s."]
    ended = live_state(run, running=False, now=2000.0)
    assert (ended["warnings"], ended["progress"]) == ([], capitalized(describe_live_steps(run)))


def test_of_a_long_log_whole_lines_of_the_end_are_shown(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "logs").mkdir()
    secret = "password=" + "x" * (LOG_BYTES + 10)
    (run.path / "logs" / "rank00003.out").write_text(f"{secret}\nlast\n")
    (shown,) = logs(run, 3)
    assert (shown["text"], shown["cut"]) == ("last", True)


@pytest.mark.parametrize("state", ["", "\n", "\ufffd"])
def test_an_empty_log_has_no_lines(make_run: MakeRun, state: str) -> None:
    run = make_run()
    (run.path / "logs").mkdir()
    (run.path / "logs" / "job.out").write_text(state)
    assert logs(run, None)[0]["text"] == state.strip()
