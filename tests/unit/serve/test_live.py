"""What the page of a running job warns of, and the log that it shows."""

from __future__ import annotations

import pytest

from hpcprof.serve import live
from hpcprof.serve.live import LOG_BYTES, logs, warnings
from hpcprof.submit.runs.live_steps import LiveSteps, StepLine
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run

MS = 1_000_000


def lines(time: float, wall_ms: float = 100, longest_ms: float = 110, count: int = 3) -> LiveSteps:
    """Return the last lines of a rank, one a second up to a time."""
    return LiveSteps(
        tuple(
            StepLine(time - after, 100 - after, 10, round(wall_ms * MS), round(longest_ms * MS))
            for after in reversed(range(count))
        )
    )


def test_nothing_is_said_of_ranks_that_go_on() -> None:
    assert warnings({}, 1000.0) == []
    assert warnings({0: lines(1000.0), 1: lines(995.0)}, 1001.0) == []


def test_a_rank_that_stops_while_others_go_on_is_named() -> None:
    assert warnings({0: lines(1000.0), 1: lines(960.0), 2: lines(999.0)}, 1001.0) == [
        "Rank 1 has ended no step for 40 s, while others go on."
    ]
    assert warnings({0: lines(1000.0), 1: lines(960.0), 2: lines(950.0), 3: lines(1000.0)}, 1001.0) == [
        "Ranks 1, 2 have ended no step for 50 s, while others go on."
    ]


def test_a_rank_with_long_steps_has_not_stopped() -> None:
    slow = {rank: lines(1000.0 - 40 * rank, wall_ms=20_000, longest_ms=21_000, count=1) for rank in (0, 1)}
    assert warnings(slow, 1010.0) == []


def test_a_run_that_stops_as_a_whole_is_named() -> None:
    steps = {0: lines(1000.0), 1: lines(1000.5)}
    assert warnings(steps, 1029.0) == []
    assert warnings(steps, 1040.5) == ["No rank has ended a step for 40 s."]


def test_a_step_of_three_times_the_median_is_named() -> None:
    assert warnings({0: lines(1000.0), 1: lines(1000.0, longest_ms=299)}, 1001.0) == []
    assert warnings({0: lines(1000.0), 1: lines(1000.0, longest_ms=300)}, 1001.0) == [
        "A step of 1 rank (rank 1) took up to 300.0 ms, 3.0 times the median of 100.0 ms."
    ]


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


def test_of_a_long_log_whole_lines_of_the_end_are_shown(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "logs").mkdir()
    secret = "password=" + "x" * (LOG_BYTES + 10)
    (run.path / "logs" / "rank00003.out").write_text(f"{secret}\nlast\n")
    (shown,) = live.logs(run, 3)
    assert (shown["text"], shown["cut"]) == ("last", True)


@pytest.mark.parametrize("state", ["", "\n", "\ufffd"])
def test_an_empty_log_has_no_lines(make_run: MakeRun, state: str) -> None:
    run = make_run()
    (run.path / "logs").mkdir()
    (run.path / "logs" / "job.out").write_text(state)
    assert live.logs(run, None)[0]["text"] == state.strip()
