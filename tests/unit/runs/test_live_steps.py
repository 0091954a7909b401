"""Progress of the ranks of a run, by the ends of the files that they write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcprof.cli.status import _detail
from hpcprof.results.collect.run_memory import growing_memory
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import (
    LiveSteps,
    StepLine,
    describe_live_steps,
    noted_step_time,
    noted_steps,
    read_live_steps,
    step_warnings,
)
from hpcprof.runs.step_time import StepTime
from hpcprof.submit.schedulers.base import JobState, JobStatus

STARTED = 1_790_000_000
STARTED_UTC = "2026-09-21T14:13:20Z"
NOW = STARTED + 20.0
"""Shortly after the lines."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "state/steps").mkdir(parents=True)
    (tmp_path / "state/started").write_text(f"{STARTED_UTC}\n")
    return Run("run", tmp_path)


MS = 1_000_000


def _line(step: int, wall_ms: int = 5, after: float = 10.0) -> str:
    wall_ns = wall_ms * 10**6
    values = {"time": STARTED + after, "step": step, "steps": 2, "wall_ns": wall_ns, "max_ns": wall_ns + 1}
    return json.dumps(values) + "\n"


def _write(run: Run, rank: int, text: str) -> None:
    (run.path / f"state/steps/rank{rank:05d}.jsonl").write_text(text)


def test_each_rank_has_its_last_lines(run: Run) -> None:
    _write(run, 11, _line(3) + _line(7, wall_ms=6))
    _write(run, 2, _line(5))
    found = read_live_steps(run)
    assert list(found) == [2, 11]
    assert found[11][-1] == StepLine(7, STARTED + 10.0, 2, 6 * 10**6, 6 * 10**6 + 1)
    assert [line.step for line in found[11]] == [3, 7]


def test_only_the_end_of_a_long_file_is_read(run: Run) -> None:
    _write(run, 0, "".join(_line(step) for step in range(5_000)))
    lines = read_live_steps(run)[0]
    assert lines[-1].step == 4_999 and 10 < len(lines) < 100


@pytest.mark.parametrize(
    "damaged",
    [
        '{"time": 1790000010, "step": 9',
        "[]\n",
        "null\n",
        "\0\0\0\n",
        "[" * 3000 + "\n",
        _line(9).replace('"step": 9', '"step": "<b>"'),
        _line(9).replace('"step": 9', '"step": true'),
        _line(9).replace('"step": 9', '"step": -1'),
        _line(9).replace('"step": 9', '"step": 1e400'),
        _line(9).replace('"steps"', '"stops"'),
        _line(9).replace(f"{STARTED + 10.0}", "NaN"),
    ],
)
def test_a_line_that_is_damaged_or_not_complete_is_left_out(run: Run, damaged: str) -> None:
    _write(run, 0, _line(8) + damaged)
    assert [line.step for line in read_live_steps(run)[0]] == [8]


def test_lines_of_an_earlier_start_of_the_job_are_left_out(run: Run) -> None:
    _write(run, 0, _line(900, after=-100.0) + _line(1))
    _write(run, 1, _line(900, after=-100.0))
    assert {rank: steps[-1].step for rank, steps in read_live_steps(run).items()} == {0: 1}


def test_other_files_and_a_run_without_lines_are_no_error(run: Run, tmp_path: Path) -> None:
    _write(run, 0, "")
    (tmp_path / "state/steps/notes.txt").write_text(_line(1))
    (tmp_path / "state/steps/rank00001.jsonl").mkdir()
    os.mkfifo(tmp_path / "state/steps/rank00002.jsonl")
    assert read_live_steps(run) == {}
    assert read_live_steps(Run("none", tmp_path / "none")) == {}
    assert describe_live_steps(run, NOW) == ""


def test_the_status_of_a_running_job_tells_its_steps_unless_a_rank_has_failed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.cli.status.time.time", lambda: NOW)
    _write(run, 0, _line(3))
    assert _detail(run, JobStatus(JobState.RUNNING)) == (
        "step 3 on 1 rank, now 5.000 ms a step (median of the last 2 steps)"
    )
    assert _detail(run, JobStatus(JobState.QUEUED, "Priority")) == "Priority"
    (run.path / f"state/failed.{STARTED_UTC}").write_text("0 2\n")
    assert _detail(run, JobStatus(JobState.RUNNING)) == "rank 0 failed first: exit code 2"


def test_the_status_of_a_running_job_tells_whose_memory_grows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.cli.status.time.time", lambda: NOW)
    for rank in (0, 1):
        _write(run, rank, "".join(_line(at, after=float(at)) for at in range(1, 61)))
    names = ["rank0 resident_bytes", "rank1 resident_bytes", "node memory_used_bytes"]
    place = {"cores": [0], "gpus": [], "devices": ""}
    header = {"limits": {"memory_bytes": 7e9}, "ranks": {"0": place, "1": place}, "fast": [], "slow": names}
    header |= {"gpus": [], "missing": {}}
    samples = [
        [STARTED + at, [], [10**9, 10**9 + 10**7 * at + 7 * at % 5 * 10**4, 6 * 10**9]] for at in range(60)
    ]
    (run.path / "telemetry").mkdir()
    file = run.path / "telemetry/n1.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in [header, *samples]))
    detail = _detail(run, JobStatus(JobState.RUNNING))
    assert detail.startswith(
        "step 60 on 2 ranks, now 5.000 ms a step (median of the last 94 steps). Memory on the host grows: "
        "rank 1: 10.00 MB more"
    )
    assert detail.endswith("the node is full at step 159, in 1 min 40 s")
    assert "Memory" not in _detail(run, JobStatus(JobState.COMPLETED))
    # More than can be read while somebody waits.
    monkeypatch.setattr("hpcprof.results.collect.run_memory._MAX_SNAPSHOT_BYTES", file.stat().st_size - 1)
    assert _detail(run, JobStatus(JobState.RUNNING)) == (
        "step 60 on 2 ranks, now 5.000 ms a step (median of the last 94 steps)"
    )


def test_status_looks_closely_only_at_memory_that_has_risen(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr("hpcprof.results.collect.node_samples.run_telemetry", lambda run: looked.append(run))
    _write(run, 0, "".join(_line(at, after=float(at)) for at in range(1, 61)))
    header = {"limits": {}, "fast": ["rank0 resident_bytes"], "slow": [], "gpus": [], "missing": {}}
    header |= {"ranks": {"0": {"cores": [0], "gpus": [], "devices": ""}}}
    (run.path / "telemetry").mkdir()
    for last, close in ((10**9, False), (10**9 + (16 << 20), True)):
        # The first third of the time does not count.
        sizes = [10**8] * 10 + [10**9] * 49 + [last]
        samples = [[STARTED + 1 + at, [size]] for at, size in enumerate(sizes)]
        text = "".join(f"{json.dumps(one)}\n" for one in [header, *samples])
        (run.path / "telemetry/n1.jsonl").write_text(text)
        assert growing_memory(run) == ""
        assert bool(looked) == close


def test_the_description_says_how_far_the_ranks_are(run: Run) -> None:
    for rank, step in enumerate([40, 42, 41]):
        _write(run, rank, _line(step, wall_ms=5 + rank))
    assert describe_live_steps(run, NOW) == (
        "steps 40 to 42 on 3 ranks, now 6.000 ms a step (median of the last 2 steps)"
    )
    for rank in range(3):
        _write(run, rank, _line(43))
    assert describe_live_steps(run, NOW) == (
        "step 43 on 3 ranks, now 5.000 ms a step (median of the last 2 steps)"
    )
    _write(run, 1, _line(9, after=-15.0))
    assert describe_live_steps(run, NOW) == (
        "steps 9 to 43 on 3 ranks, now 5.000 ms a step (median of the last 2 steps). Rank 1 has ended no "
        "step for 25 s, while others go on."
    )


def test_the_steps_of_a_run_that_has_ended_are_told_without_a_warning(run: Run) -> None:
    _write(run, 0, _line(43))
    takes = "5.000 ms a step (2 steps of the program; median about 5.000 ms)"
    assert describe_live_steps(run) == f"step 43 on 1 rank, {takes}"


def test_steps_that_became_slower_are_told(run: Run) -> None:
    _write(
        run,
        0,
        "".join(_line(step, wall_ms=5) for step in range(60))
        + "".join(_line(step, 6) for step in range(60, 120)),
    )
    assert describe_live_steps(run, NOW) == (
        "step 119 on 1 rank, now 6.000 ms a step (median of the last 94 steps), 20 % slower than at the start"
    )


def test_a_step_in_which_the_job_was_suspended_is_no_start_that_was_slower(run: Run) -> None:
    for count in range(2, 9):
        walls = [1000, 1000, 16000, *[1000] * count]
        noted = [
            {"time": STARTED + n, "step": n, "steps": 1, "wall_ns": w * MS, "max_ns": w * MS}
            for n, w in enumerate(walls)
        ]
        _write(run, 0, "".join(f"{json.dumps(line)}\n" for line in noted))
        assert "at the start" not in describe_live_steps(run, STARTED + len(walls))


def test_an_earlier_attempt_with_many_lines_is_no_start(run: Run) -> None:
    lines = [
        {"time": STARTED + n - 5000 * (n < 80), "step": n, "steps": 1, "wall_ns": MS, "max_ns": MS}
        for n in range(110)
    ]
    _write(run, 0, "".join(f"{json.dumps(line)}\n" for line in lines))
    assert describe_live_steps(run, STARTED + 110).startswith("step 109 on 1 rank, now 1.000 ms a step")


def test_lines_that_vary_as_much_at_the_start_tell_no_trend(run: Run) -> None:
    uneven = [_line(step, wall_ms=9 if step in (4, 5, 7) else 6) for step in range(9)]
    _write(run, 0, "".join(uneven))
    assert describe_live_steps(run, NOW) == (
        "step 8 on 1 rank, now 6.000 ms a step (median of the last 18 steps)"
    )


def test_the_noted_steps_are_those_of_the_slowest_of_some_ranks(run: Run) -> None:
    for rank in range(40):
        _write(run, rank, _line(1, wall_ms=5) + _line(3, wall_ms=7 if rank == 20 else 6))
    assert noted_steps(run) == [5 * MS] * 2 + [7 * MS] * 2
    assert noted_step_time(run) == StepTime(6.0 * MS, 6.0 * MS, 4, 4)


def test_the_noted_steps_take_as_long_as_the_program(run: Run) -> None:
    # The medians of these lines are above the mean of the steps that are not long, and ranks write apart.
    long = {0: [[4, 90 * MS], [8, 80 * MS]], 1: [[3, 90 * MS], [7, 80 * MS]]}
    for rank, pairs in long.items():
        line = {"time": STARTED, "step": 9, "steps": 10, "wall_ns": 20 * MS, "max_ns": 90 * MS, "long": pairs}
        _write(run, rank, json.dumps({**line, "total_ns": 250 * MS}) + "\n")
    assert noted_steps(run) == [10 * MS] * 4 + [90 * MS] + [10 * MS] * 3 + [80 * MS, 10 * MS]
    assert (time := noted_step_time(run)) is not None
    assert time.elapsed_ns == 25 * MS


def test_every_step_counts_once_however_many_share_a_line(run: Run) -> None:
    slow = [
        {"time": STARTED + at, "step": at, "steps": 1, "wall_ns": 400 * MS, "max_ns": 400 * MS}
        for at in range(12)
    ]
    quick = [
        {
            "time": STARTED + 12 + at,
            "step": 111 + 100 * at,
            "steps": 100,
            "wall_ns": 10 * MS,
            "max_ns": 10 * MS,
        }
        for at in range(2)
    ]
    _write(run, 0, "".join(f"{json.dumps(line)}\n" for line in slow + quick))
    assert noted_step_time(run) == StepTime((12 * 400 + 200 * 10) * MS / 212, 10 * MS, 212, 212)
    takes = (
        "32.08 ms a step (212 steps of the program; median about 10.00 ms)",
        "now 10.00 ms a step (median of the last 212 steps)",
    )
    for now, told in zip((None, STARTED + 15.0), takes, strict=True):
        said = describe_live_steps(run, now)
        assert said == f"step 211 on 1 rank, {told}"  # the start is the warm-up
    assert sorted(noted_steps(run)) == [10 * MS] * 200 + [400 * MS] * 12


def test_a_long_step_counts_with_its_own_time(run: Run) -> None:
    line = {"time": STARTED + 1, "step": 3, "steps": 4, "wall_ns": 5 * MS, "max_ns": 90 * MS}
    _write(run, 0, json.dumps(line | {"long": [[1, 90 * MS]]}) + "\n")
    assert noted_steps(run) == [5 * MS, 90 * MS, 5 * MS, 5 * MS]


def lines(time: float, wall_ms: float = 100, longest_ms: float = 110, count: int = 3) -> LiveSteps:
    """Return the last lines of a rank, one a second up to a time."""
    return tuple(
        StepLine(100 - after, time - after, 10, round(wall_ms * MS), round(longest_ms * MS))
        for after in reversed(range(count))
    )


def test_nothing_is_said_of_ranks_that_go_on() -> None:
    assert step_warnings({}, 1000.0) == []
    assert step_warnings({0: lines(1000.0), 1: lines(995.0)}, 1001.0) == []


def test_a_rank_that_stops_while_others_go_on_is_named() -> None:
    assert step_warnings({0: lines(1000.0), 1: lines(960.0), 2: lines(999.0)}, 1001.0) == [
        "Rank 1 has ended no step for 40 s, while others go on."
    ]
    assert step_warnings({0: lines(1000.0), 1: lines(960.0), 2: lines(950.0), 3: lines(1000.0)}, 1001.0) == [
        "Ranks 1, 2 have ended no step for 50 s, while others go on."
    ]


def test_ranks_whose_lines_come_rarely_have_not_stopped() -> None:
    rare = [StepLine(9, time, 100, 100 * MS, 110 * MS) for time in (970.0, 980.0, 990.0)]
    assert step_warnings({0: tuple(rare), 1: tuple(rare[:-1])}, 1019.0) == []


def test_a_rank_with_long_steps_has_not_stopped() -> None:
    slow = {rank: lines(1000.0 - 40 * rank, wall_ms=20_000, longest_ms=21_000, count=1) for rank in (0, 1)}
    assert step_warnings(slow, 1010.0) == []


def test_a_run_that_stops_as_a_whole_is_named() -> None:
    steps = {0: lines(1000.0), 1: lines(1000.5)}
    assert step_warnings(steps, 1029.0) == []
    assert step_warnings(steps, 1040.5) == ["No rank has ended a step for 40 s."]


def test_a_step_of_three_times_the_median_is_named() -> None:
    assert step_warnings({0: lines(1000.0), 1: lines(1000.0, longest_ms=299)}, 1001.0) == []
    assert step_warnings({0: lines(1000.0), 1: lines(1000.0, longest_ms=300)}, 1001.0) == [
        "A step of 1 rank (rank 1) took up to 300.0 ms, 3.0 times the median of 100.0 ms."
    ]


def test_lines_may_say_how_many_tokens_were_counted(run: Run) -> None:
    _write(run, 0, _line(3) + _line(7).replace("}", ', "items": 40, "item": "token"}'))
    before, after = read_live_steps(run)[0]
    assert (before.items, before.item, after.items, after.item) == (0, "", 40, "token")
    _write(run, 1, _line(3).replace("}", ', "items": 40, "item": 512}'))
    assert read_live_steps(run)[1][-1].item == "512"


@pytest.mark.parametrize(
    ("long", "known"),
    [
        ("[[6, 9], [7, 8]]", ((6, 9), (7, 8))),
        ("[[7, 9]]", ((7, 9),)),
        ("[[7, 8], [6, 9]]", ()),
        ("[[5, 9]]", ()),
        ("[[8, 9]]", ()),
        ("[[7, -1]]", ()),
        ("[[7]]", ()),
        ("[7]", ()),
        ("7", ()),
        ("0", ()),
        ("null", ()),
        ('""', ()),
    ],
)
def test_a_line_has_the_long_ones_of_its_steps(run: Run, long: str, known: tuple[object, ...]) -> None:
    _write(run, 0, _line(7).replace("}", f', "long": {long}}}'))
    assert read_live_steps(run)[0][-1].long == known
