"""Tests of the explanation of runs without GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.changes import parse_changes
from hpcprof.analysis.explain.explanation import Finding
from hpcprof.analysis.explain.on_host import explain_on_host, late_in_mpi, predict_on_host
from hpcprof.common.errors import UsageError

Milliseconds = NDArray[np.float64]

# Two processes of JAX on two cores that others used too; rank 1 sleeps for 100 ms in each step. In ms.
COMPUTE = np.array(
    [
        [295, 233, 38, 46, 85, 80, 41, 40, 40, 49, 44, 109, 60, 57, 148, 48, 273, 216],
        [368, 245, 107, 115, 42, 37, 94, 45, 117, 40, 83, 38, 42, 43, 69, 45, 54, 78],
    ],
    float,
).T
IDLE = np.array(
    [
        [264, 4, 3, 2, 9, 10, 1, 4, 4, 2, 3, 10, 3, 5, 1, 4, 3, 8],
        [684, 105, 106, 114, 102, 104, 129, 103, 141, 104, 117, 103, 101, 101, 101, 113, 101, 112],
    ],
    float,
).T


def explained(compute: Milliseconds, idle: Milliseconds, counted: int = 1000) -> list[Finding]:
    """Explain steps in which each rank computes and is idle for so long; arrays have shape (steps, ranks).

    The account of the step counts the first ``counted`` steps.
    """
    steps, ranks = compute.shape
    own = compute + idle
    account = pd.DataFrame(
        {
            "step": np.repeat(np.arange(steps), ranks),
            "rank": np.tile(np.arange(ranks), steps),
            "wall_ns": (1e6 * np.repeat(own.max(axis=1), ranks)).astype(int),
            "compute_ns": (1e6 * compute).astype(int).ravel(),
            "idle_ns": (1e6 * idle).astype(int).ravel(),
            "exposed_comm_ns": 0,
        }
    )
    causes = pd.DataFrame(
        {
            "rank": np.arange(ranks),
            "range": "augment",
            "idle_ns_per_step": (1e6 * idle.mean(axis=0)).astype(int),
        }
    )
    kinds = pd.DataFrame({"idle_ns": [1e6 * idle[:counted].mean()]})
    nothing = pd.DataFrame(columns=["rank", "phase", "name", "p50_ns", "self_host_ns"])
    tables = {"step_account": account, "idle_causes": causes, "phases": nothing, "operators": nothing}
    tables |= {"step_kinds": kinds, "skew_summary": nothing, "rank_collectives": nothing}
    return [*explain_on_host(tables)]


def test_a_changed_step_is_predicted_by_the_parts_of_the_recorded_ones() -> None:
    steps, ranks = 4, 2
    index = {"step": np.repeat(np.arange(steps), ranks), "rank": np.tile(np.arange(ranks), steps)}
    account = pd.DataFrame(
        {**index, "wall_ns": 100, "compute_ns": [40, 70] * 4, "idle_ns": 20, "exposed_comm_ns": [40, 10] * 4}
    )
    times = pd.DataFrame({**index, "phase": "load", "wall_ns": [30, 25] * 4})
    tables = {
        "step_account": account,
        "phase_times": times,
        "step_kinds": pd.DataFrame({"elapsed_ns": [110]}),
    }

    def step(*texts: str) -> tuple[int, int]:
        made = predict_on_host(tables, parse_changes(texts))
        assert made.replay_error_pct is None
        return made.wall_p50_ns, made.elapsed_ns

    assert step() == (100, 110)
    assert step("range:load*0") == (75, 85)  # each rank spends 25 ns or more there
    assert step("range:load*0.5", "comm*0") == (78, 88)
    assert step("range:load+5ns") == (105, 115)
    assert step("range:load*2") == (130, 140)  # the steps wait for the rank that becomes longer by 30 ns
    assert step("comm*2") == (140, 150)
    assert step("rank:1=median") == (70, 80)
    for text, said in (
        ("range:save*0", "Valid: load"),
        ("copy*0", "only range:NAME"),
        ("range:load*0@1", "all ranks"),
    ):
        with pytest.raises(UsageError, match=said):
            step(text)


def test_a_pause_that_came_once_is_not_part_of_the_saving_of_each_step() -> None:
    compute, idle = np.full((20, 1), 50.0), np.full((20, 1), 20.0)
    idle[-1] = 420.0
    (all_steps,), (usual_steps,) = explained(compute, idle), explained(compute, idle, counted=19)
    assert (all_steps.saving_ns, usual_steps.saving_ns) == (40 * 10**6, 20 * 10**6)


def test_a_pause_of_one_rank_in_every_step_is_found_where_its_computing_is_uneven() -> None:
    late, *_ = explained(COMPUTE, IDLE)
    assert (late.cause, late.ranks, late.where) == (Cause.LATE_RANK_HOST, (1,), "augment")
    assert late.saving_low_ns is not None
    assert late.saving_high_ns is not None
    assert late.saving_low_ns > 10e6
    assert late.saving_low_ns < 100e6 < late.saving_high_ns


def test_computing_that_is_uneven_alone_is_no_late_rank() -> None:
    shown = [
        one for one in explained(COMPUTE, IDLE[:, :1].repeat(2, axis=1)) if (one.saving_low_ns or 0) > 5e6
    ]
    assert not [one for one in shown if one.cause is Cause.LATE_RANK_HOST]


def test_a_rank_that_computes_longer_is_late_by_all_of_it() -> None:
    compute = np.full((20, 4), 50.0) + np.random.default_rng(1).normal(size=(20, 4))
    compute[:, 2] += 20
    late, *_ = explained(compute, np.full((20, 4), 2.0))
    assert (late.cause, late.ranks) == (Cause.LATE_RANK_HOST, (2,))
    assert 18e6 < (late.saving_ns or 0) < 22e6


def test_a_loader_that_is_late_in_every_other_step_has_a_lower_end() -> None:
    # Two workers of a loader: a batch is there, or both are still at work. In ms.
    idle = np.tile([[0.5], [16.0]], (10, 1))
    (finding,) = explained(np.full((20, 1), 8.0), idle)
    assert (finding.saving_ns, finding.where) == (8_250_000, "augment")
    assert 2e6 < (finding.saving_low_ns or 0) < 5e6
    assert (finding.saving_high_ns or 0) > 12e6


RANKS, STEPS = 4, 60
LateTimes = Callable[[int, int], float]


def late_in_ring(late: LateTimes, ranks: int = RANKS, *, coupled: bool = True) -> list[Finding]:
    """Explain a ring of ranks that compute for 10 ms with 1 % noise, and ``late(rank, step)`` ms longer."""
    generator, moment, rows = np.random.default_rng(44), np.zeros(ranks), []
    for step in range(STEPS):
        extra = np.array([late(rank, step) for rank in range(ranks)])
        own = 10 * (1 + 0.01 * generator.standard_normal(ranks)) + extra
        ready = moment + own
        # In an exchange with both neighbours, lateness passes on by one rank in each step.
        end = np.max([np.roll(ready, shift) for shift in (-1, 0, 1)], axis=0) if coupled else ready
        end += 0.05
        rows += [
            {"rank": rank, "step": step, "wall_ns": 1e6 * wall, "compute_ns": 1e6 * work}
            for rank, (wall, work) in enumerate(zip(end - moment, own, strict=True))
        ]
        moment = end
    account = pd.DataFrame(rows).assign(idle_ns=0)
    nothing = pd.DataFrame(columns=["rank", "range", "phase", "name", "p50_ns", "self_host_ns"])
    tables = dict.fromkeys(("idle_causes", "phases", "operators", "skew_summary"), nothing)
    account = account.assign(exposed_comm_ns=account["wall_ns"] - account["compute_ns"])
    return [*late_in_mpi({"step_account": account, **tables})]


@pytest.mark.parametrize("late", [(2,), (1, 3)])
def test_a_rank_whose_lateness_passes_along_a_ring_is_named_without_messages(late: tuple[int, ...]) -> None:
    (finding,) = late_in_ring(lambda rank, _: 6 * (rank in late))
    assert (finding.cause, finding.ranks, finding.confidence) == (Cause.LATE_RANK_HOST, late, "medium")
    assert finding.saving_ns == pytest.approx(6e6, rel=0.03)
    assert finding.evidence
    assert finding.saving_low_ns is not None and finding.saving_high_ns is not None
    assert finding.saving_low_ns < 6e6 < finding.saving_high_ns


def test_a_rank_with_more_work_saves_what_the_next_one_does_not_need() -> None:
    (finding,) = late_in_ring(lambda rank, _: {2: 6, 3: 4}.get(rank, 0))
    assert finding.ranks == (2, 3)
    assert finding.saving_ns == pytest.approx(6e6, rel=0.03)


@pytest.mark.parametrize(
    "late",
    [
        lambda *_: 0,
        lambda rank, step: 6 * (step % 4 == rank),
        lambda rank, step: 6 * (step % 2 == rank % 2),
        lambda rank, step: 6 * (rank * 15 <= step < rank * 15 + 15),
        lambda rank, step: 600 * (rank == 2 and step == 30),
    ],
    ids=["balanced", "in turn", "every other step", "in blocks", "one pause"],
)
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_no_rank_is_late_in_mpi_by_noise_in_turn_or_once(late: LateTimes, ranks: int) -> None:
    assert not late_in_ring(late, ranks)


def test_a_rank_that_is_late_in_most_steps_saves_the_mean_of_all() -> None:
    (finding,) = late_in_ring(lambda rank, step: 6 * (rank == 2 and step % 5 < 3))
    assert finding.ranks == (2,)
    assert finding.saving_ns == pytest.approx(3.6e6, rel=0.1)


def test_one_of_two_ranks_that_is_late_more_often_by_chance_is_not_late() -> None:
    assert not late_in_ring(lambda rank, step: 6 * (rank == (step % 12 < 7)), 2)


def test_more_work_that_no_rank_waits_for_makes_none_late() -> None:
    assert not late_in_ring(lambda rank, _: 6 * (rank == 2), coupled=False)
