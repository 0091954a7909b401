"""The efficiencies of hosts and devices of programs with GPUs are those that TALP defines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.framework.outcome import Outcome, Values, analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.mpi.efficiencies import run_limits, with_branches
from hpcprof.analysis.mpi.tables import pop
from hpcprof.profiles.timeline import Category
from tests.unit.analysis.explain.programs import MS, US, Host, Instruction, Launch, Mpi, Wait, simulate

STEPS = 5


def program(compute: int, copy: int, transfer: int = 2 * MS) -> list[Instruction]:
    """Return a step: 1 ms on the host, a kernel and a copy, waited for, and a reduction."""
    moved = Launch(copy, name="copy", category=Category.MEM)
    return [Host(MS), Launch(compute), moved, Wait(), Mpi(transfer)]


def times(*ranks: list[Instruction]) -> pd.DataFrame:
    """Return the rows of ``offload`` of all ranks."""
    found = simulate(ranks, STEPS)
    return pd.concat([analyze_rank(ANALYSES["offload"], one, rank).frame for rank, one in found.items()])


def branches(rows: pd.DataFrame, scope: str, parallel: float = 50.0) -> dict[str, float]:
    name = "" if scope == "run" else "iteration"
    pop: dict[str, Values] = {"scope": [scope], "name": [name], "parallel_efficiency_pct": [parallel]}
    found = with_branches(Outcome(pop), rows).columns()
    return {column: values[0] for column, values in found.items() if column.endswith("_pct")}


def test_the_time_of_a_rank_is_that_of_its_program() -> None:
    rows = times(program(4 * MS, MS), program(2 * MS, MS))
    own = rows[(rows["rank"] == 0) & (rows["scope"] == "run")].iloc[0]
    # The run begins with its first step, before any call of MPI and after its part on the host.
    assert own["devices"] == 1
    assert own["gpu_useful_ns"] == STEPS * 4 * MS
    assert own["gpu_active_ns"] == STEPS * 5 * MS
    assert own["useful_ns"] == (STEPS - 1) * MS
    assert own["elapsed_ns"] == own["useful_ns"] + own["gpu_calls_ns"] + STEPS * 2 * MS


def test_the_branches_are_products_of_their_factors() -> None:
    rows = times(program(4 * MS, MS), program(2 * MS, MS))
    own = rows[rows["scope"] == "run"]
    found = branches(rows, "run")
    assert found["device_load_balance_pct"] == pytest.approx(75)
    assert found["device_communication_efficiency_pct"] == pytest.approx(80)
    elapsed = own["elapsed_ns"].max()
    assert found["device_orchestration_efficiency_pct"] == pytest.approx(100 * 25 * MS / elapsed, abs=0.01)
    product = 0.75 * 0.8 * found["device_orchestration_efficiency_pct"]
    assert found["device_efficiency_pct"] == pytest.approx(product, abs=0.01)
    useful = own["useful_ns"].sum()
    offloads = 100 * useful / (useful + own["gpu_calls_ns"].sum())
    assert found["offload_efficiency_pct"] == pytest.approx(offloads, abs=0.01)
    assert found["host_efficiency_pct"] == pytest.approx(offloads / 2, abs=0.01)


def test_a_run_with_a_single_call_of_mpi_lasts_as_long_as_its_steps() -> None:
    start, end, first, last = np.array([[40], [50], [60], [90]])
    limits = run_limits(["MPI_Barrier"] * 2, start, end, first, last)
    assert limits.tolist() == [40, 90]
    limits = run_limits(["MPI_Init", "MPI_Finalize"], np.array([0, 80]), np.array([10, 85]), limits, limits)
    assert limits.tolist() == [10, 80]


def test_steps_have_branches_of_their_own() -> None:
    rows = times(program(4 * MS, MS), program(4 * MS, MS))
    found = branches(rows, "step")
    assert found["device_load_balance_pct"] == pytest.approx(100)
    # Each of 5 steps takes 5 ms on the GPU and 2 ms in MPI; to the next one it is 1 ms on the host.
    assert found["device_efficiency_pct"] == pytest.approx(100 * 20 / (5 * 5 + 5 * 2 + 4), rel=0.01)


def test_programs_without_gpus_have_no_branches() -> None:
    rows = times([Host(MS), Mpi(100 * US)], [Host(MS), Mpi(100 * US)])
    assert not len(rows)
    assert set(branches(rows, "run").values()) == {50.0, None}


def test_a_program_whose_steps_hardly_call_mpi_has_no_rows() -> None:
    (timeline,) = simulate([program(4 * MS, MS)], STEPS).values()
    calls = timeline.mpi_calls
    before = timeline.ranges.start.min() - 1000 * MS
    barrier = replace(calls.take(np.arange(1)), start=np.array([before]), end=np.array([before + MS]))
    found = analyze_rank(ANALYSES["offload"], replace(timeline, mpi_calls=barrier), 0)
    assert not len(found.rows)
    assert "hardly a step calls MPI" in found.reasons[0]


def test_a_gpu_program_whose_steps_hardly_call_mpi_has_no_efficiencies() -> None:
    found = {"pop": Outcome({"scope": ["run"], "name": [""], "parallel_efficiency_pct": [99.8]})}
    none, gpus = pd.DataFrame(), pd.DataFrame({"rank": [0]})
    assert not len(pop([found], {"offload": none, "breakdown": gpus}))
    assert len(pop([found], {"offload": none, "breakdown": none})) == 1
