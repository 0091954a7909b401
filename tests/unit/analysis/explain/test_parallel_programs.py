"""Programs in data, tensor and pipeline groups: which rank the others wait for, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.collectives.matches import MatchedGroup
from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import WAITING, Explanation
from hpcprof.analysis.explain.rank_activity import HostCalls, Work, pace_of, predecessors
from hpcprof.analysis.explain.run_graph import MESSAGE, CommonClock, Coupling, clock_parts, pipeline_stages
from hpcprof.analysis.explain.whole_run import unexplained_waiting
from hpcprof.analysis.statistics.confidence_intervals import grows_with
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from tests.data.many_ranks import write_program
from tests.data.parallel_program import Program
from tests.unit.analysis.explain.programs import (
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Place,
    StreamWait,
    Wait,
    inputs_of,
    simulate,
)

STEPS = 600


def explained(folder: Path, program: Program) -> Explanation:
    write_program(folder, program)
    timelines = {}
    for rank, path in enumerate(sorted(folder.iterdir())):
        timelines[rank] = read_profile(path)
    return explain_run(inputs_of({r: one for r, one in timelines.items() if isinstance(one, Timeline)}))[0]


def waiting(found: Explanation) -> list[str]:
    return [one.reason for one in found.not_judged if one.what == WAITING]


@pytest.mark.parametrize(
    ("program", "cause", "ranks"),
    [
        pytest.param(Program(8, STEPS, slow={5: 6.0}), Cause.LATE_RANK_GPU, (5,), id="data, slow GPU"),
        pytest.param(Program(8, STEPS, stalled={5: 6.0}), Cause.LATE_RANK_HOST, (5,), id="data, slow host"),
        pytest.param(
            Program(8, STEPS, tensor=2, slow={5: 6.0}), Cause.LATE_RANK_GPU, (5,), id="tensor, slow GPU"
        ),
        pytest.param(
            Program(8, STEPS, pipeline=2, slow={5: 6.0}), Cause.LATE_RANK_GPU, (5,), id="pipeline, slow GPU"
        ),
    ],
)
def test_the_rank_that_makes_the_others_wait_is_found_with_what_it_costs(
    tmp_path: Path, program: Program, cause: Cause, ranks: tuple[int, ...]
) -> None:
    found = explained(tmp_path, program).shown()[0]
    assert (found.cause, found.ranks, found.confidence) == (cause, ranks, "medium")
    assert found.saving_ns == pytest.approx(6 * MS, rel=0.2)


def test_a_stage_that_is_slow_on_all_of_its_ranks_is_the_slow_one(tmp_path: Path) -> None:
    slow = {2: 20.0, 3: 20.0}
    found = explained(tmp_path, Program(8, STEPS, pipeline=4, slow=slow)).shown()[0]
    assert (found.cause, found.ranks) == (Cause.PIPELINE_BUBBLE, (2, 3))


def test_a_slow_stage_below_the_bar_is_named_beside_the_waiting(tmp_path: Path) -> None:
    found = explained(tmp_path, Program(8, STEPS, pipeline=4, slow={2: 8.0, 3: 8.0}))
    assert not found.shown()
    (reason,) = waiting(found)
    assert "The stage of ranks 2, 3 has the most work; to balance the stages would save " in reason


def test_a_pipeline_of_equal_stages_has_no_finding_but_says_that_its_schedule_makes_ranks_wait(
    tmp_path: Path,
) -> None:
    found = explained(tmp_path, Program(8, STEPS, pipeline=4))
    assert not found.shown()
    (reason,) = waiting(found)
    assert "for others. No slow rank or stage explains most of that" in reason


def test_where_too_little_aligns_the_clocks_no_schedule_is_blamed(tmp_path: Path) -> None:
    found = explained(tmp_path, Program(8, 300, pipeline=4, slow={3: 6.0}))
    assert not found.shown()
    (reason,) = waiting(found)
    assert "Why is unknown: the clocks of 4 ranks cannot be aligned" in reason
    (late,) = (one.reason for one in found.not_judged if one.what == "late ranks")
    assert late.startswith("the clocks of 4 of 8 ranks cannot be aligned with the others")


def test_late_ranks_of_groups_without_a_common_collective_are_found_together() -> None:
    def program(rank: int) -> list[Instruction]:
        reduction = Launch(MS, 17, collective=True, group=(0, 1) if rank < 2 else (2, 3))
        late = Place("data", (Host({1: 9, 3: 6}.get(rank, 0) * MS),))
        return [late, Launch(4 * MS), StreamWait(17, 7), reduction, StreamWait(7, 17), Wait()]

    found = explain_run(inputs_of(simulate([program(rank) for rank in range(4)], 20)))[0]
    first = found.shown()[0]
    assert (first.cause, first.where, first.ranks) == (Cause.LATE_RANK_HOST, "data", (1, 3))
    assert first.saving_ns == pytest.approx(9 * MS, rel=0.01)
    assert not found.not_judged


def test_what_aligns_clocks_joins_ranks_that_it_shares() -> None:
    rows = np.zeros(1, np.int64)

    def group(*ranks: int, aligned: bool = True) -> MatchedGroup:
        return MatchedGroup("AllReduce", np.array(ranks), rows, rows, rows, aligned)

    clock = CommonClock({}, clock_parts((0, 1), [group(4, 5), group(2, 3), group(5, 2)]), {})
    assert clock.agree(np.array([3, 4]))
    assert not clock.agree(np.array([1, 4]))
    assert CommonClock({}, clock_parts((0, 1), [group(2, 1)]), {}).agree(np.array([0, 2]))
    alone = CommonClock({}, clock_parts((0, 1), [group(2, 3, aligned=False)]), {})
    assert not alone.agree(np.array([2, 3]))


def test_ranks_with_equal_work_have_no_finding_and_do_not_wait(tmp_path: Path) -> None:
    found = explained(tmp_path, Program(8, STEPS))
    assert not found.shown()
    assert not waiting(found)
    assert any("the host pauses until the GPU has done its work" in one.reason for one in found.not_judged)


def test_communication_without_aligned_clocks_is_named_as_possible_waiting() -> None:
    account = pd.DataFrame({"rank": [0, 1], "wait_for_peer_ns": [None, 0], "exposed_comm_ns": [40, 0]})
    tables = {"step_account": account, "rank_collectives": pd.DataFrame()}
    inputs = replace(inputs_of(simulate([[]], 1)), tables=tables)
    (found,) = unexplained_waiting(inputs, (), 100.0, pipeline=True, unaligned=1)
    assert "takes 40.00 ns of a step (40 %) on rank 0. How much of it is waiting is unknown" in found.reason


def test_stages_are_joined_by_their_own_collectives_but_not_by_those_across_a_pipeline() -> None:
    # Ranks 0 and 1 send to 2 and 3, and these to 4 and 5; the first and the last stage share a weight.
    sends = [(0, 2), (1, 3), (2, 4), (3, 5)]
    groups = [(0, 1), (2, 3), (4, 5), (0, 4), (1, 5), tuple(range(6))]
    couplings = [Coupling(0, MESSAGE, np.array(one)) for one in sends]
    couplings += [Coupling(0, "AllReduce", np.array(one)) for one in groups]
    assert pipeline_stages(couplings, np.arange(6), 6).tolist() == [0, 0, 1, 1, 2, 2]
    assert pipeline_stages(couplings[len(sends) :], np.arange(6), 6).tolist() == [0] * 6


def one_after_another(ahead_us: int, kernels: int = 30, kernel_us: int = 500) -> tuple[HostCalls, Work]:
    """Return kernels, each launched so long before the one before it has ended, or after that."""
    row = np.arange(kernels)
    start = row * (kernel_us + 10 + max(0, -ahead_us)) * US
    zero, none = np.zeros_like(row), np.full_like(row, NONE)
    call = np.where(row > 0, start - (10 + max(0, ahead_us)) * US, -20 * US)
    calls = HostCalls(row, call, call + 4 * US, zero, zero, zero, zero, zero, row - 1, zero)
    columns = (zero, zero, zero, zero, zero, row, zero, zero, none)
    return calls, Work(row, start, start + kernel_us * US, *columns)


def test_a_host_keeps_pace_if_it_launches_just_when_the_gpu_runs_dry() -> None:
    pace = pace_of(*one_after_another(5))
    assert pace.call.tolist() == list(range(1, 30))
    assert pace.work.tolist() == list(range(29))


def test_few_long_pauses_end_some_time_after_the_gpu_in_a_program_without_a_recorded_wait() -> None:
    calls, work = one_after_another(-600, 8, 30_000)
    assert pace_of(calls, work).call.tolist() == list(range(1, 8))
    one_waits = replace(calls, kind=np.where(calls.before == 3, int(CallKind.WAIT), calls.kind))
    assert not len(pace_of(one_waits, work).call)
    assert not len(pace_of(*one_after_another(-2_000, 8, 30_000)).call)


def test_a_thread_that_others_wait_for_was_asked_by_them() -> None:
    # A thread launches, has its input copied by two others in turn, and launches again when that is done.
    rng = np.random.default_rng(4)
    step, took = np.arange(60) * MS, rng.integers(100, 400, 60) * US
    launch, copied = step + 10 * US, step + 20 * US + took
    start = np.concatenate((launch, copied, copied + 9 * US))
    order = np.argsort(start)
    thread = np.concatenate((np.zeros(60, int), 1 + np.arange(60) % 2, np.zeros(60, int)))[order]
    before = predecessors(start[order], start[order] + 4 * US, thread)
    copies = np.flatnonzero(thread > 0)
    assert before[copies].tolist() == (copies - 1).tolist()
    # Copies at any time are those of a thread that runs beside.
    beside = np.concatenate((launch, step + 20 * US + took, step + 600 * US))
    order = np.argsort(beside)
    before = predecessors(beside[order], beside[order] + 4 * US, thread)
    assert (before[copies[2:]] == copies[:-2]).all()


@pytest.mark.parametrize(("later_us", "woken"), [(0, True), (3_000, False)])
def test_threads_of_a_pool_are_woken_by_what_wakes_the_first(later_us: int, woken: bool) -> None:
    # The main thread launches, a thread of a pool copies the next input, and two others do so beside it.
    main = (0, 100 + 8 * np.arange(60))
    copies = later_us + 45 + 5 * np.arange(3)
    pool = (1, 10 * np.arange(5)), (2, copies), (3, copies + 2)
    steps = 10_000 * np.arange(8)[:, None]
    start = np.concatenate([(steps + times).ravel() for _, times in (main, *pool)]) * US
    thread = np.concatenate([np.full(8 * len(times), number) for number, times in (main, *pool)])
    order = np.argsort(start)
    start, thread = start[order], thread[order]
    before = predecessors(start, start + 2 * US, thread)
    for number in (2, 3):
        first = np.flatnonzero(thread == number)[3::3]
        assert (thread[before[first]] == (1 if woken else number)).all()


@pytest.mark.parametrize(("slope", "waits"), [(1.0, True), (0.0, False)])
def test_what_waits_grows_with_what_it_waits_for(slope: float, waits: bool) -> None:
    rng = np.random.default_rng(2)
    cause = rng.integers(4, 6, 100) * MS + rng.integers(0, MS, 100)
    effect = (slope * cause + (1 - slope) * 8 * MS).astype(int) + rng.integers(0, MS, 100)
    assert grows_with(cause, effect).all() == waits
    # Without a difference between repetitions nothing can be told.
    assert not grows_with(np.full(100, MS), effect).any()


@pytest.mark.parametrize("ahead_us", [200, -200])
def test_a_host_that_runs_ahead_or_comes_late_does_not_keep_pace(ahead_us: int) -> None:
    assert not len(pace_of(*one_after_another(ahead_us)).call)
