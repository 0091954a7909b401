"""Step times by the number of ranks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from hpcprof.analysis.comparison.scaling import scaling
from hpcprof.analysis.framework.outcome import analyze_across
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.framework.run_data import RunData
from tests.unit.analysis.several import run

STEPS: dict[str, list[dict[str, object]]] = {"steps_summary": [{"p50_ns": 900}]}


def at(ranks: int, step: int, length: int, nodes: int = 1, **parameters: int | str) -> RunData:
    """Build a run of so many ranks on a sequence of a length."""
    return run(
        f"{ranks}-{step}-{length}",
        facts={"ranks": ranks, "nodes": nodes},
        parameters={"sequence_length": length, "hidden_size": 8, "steps": ranks, **parameters},
        own=[step] * 3,
    )


def rows(*runs: RunData) -> list[dict[Hashable, Any]]:
    table = analyze_across(ACROSS_RUNS["scaling"], list(runs)).frame
    assert table.columns.tolist() == [column.name for column in ACROSS_RUNS["scaling"].columns]
    return table.to_dict("records")


def test_the_whole_problem_divided_among_more_ranks_is_strong_scaling() -> None:
    one, four = rows(at(1, 1000, 64), at(4, 500, 64, nodes=2))
    assert one["parameters"] == four["parameters"]
    assert str(one["parameters"]).startswith("sequence_length=64 in all hidden_size=8 ")
    assert {one["kind"], four["kind"]} == {"strong"}
    assert (one["ranks"], one["speedup"], one["efficiency"]) == (1, 1.0, 1.0)
    assert (four["ranks"], four["nodes"], four["step_p50_ns"]) == (4, 2, 500)
    assert (four["speedup"], four["efficiency"]) == (2.0, 0.5)


def test_the_same_part_on_each_rank_is_weak_scaling() -> None:
    one, four = rows(at(1, 1000, 64), at(4, 1250, 256))
    assert str(four["parameters"]).startswith("sequence_length=64 a rank ")
    assert {one["kind"], four["kind"]} == {"weak"}
    assert (one["speedup"], one["efficiency"]) == (1.0, 1.0)
    assert (four["speedup"], four["efficiency"]) == (3.2, 0.8)


def test_the_interval_stands_on_runs() -> None:
    found = rows(at(1, 1000, 64), at(1, 1020, 64), at(4, 490, 64), at(4, 510, 64))
    assert [row["runs"] for row in found] == [2, 2]
    assert found[0]["ci_low"] is None
    low, high = (found[1][end] for end in ("ci_low", "ci_high"))
    assert isinstance(low, float) and isinstance(high, float)
    assert low < float(str(found[1]["efficiency"])) < high


def test_runs_that_differ_in_a_parameter_are_no_series() -> None:
    assert rows(at(1, 1000, 64, dtype="float32"), at(4, 500, 64, dtype="bfloat16")) == []
    outcome = scaling([at(1, 1000, 64), run("without steps")])
    assert outcome.reason == (
        "scaling needs runs of one program at two or more rank counts; runs with step times: 1 of 2"
    )
    assert "runs with step times: 0 of 0" in scaling([]).reason


def test_a_program_of_unknown_size_has_a_speedup_and_no_efficiency() -> None:
    runs = [
        run(
            f"r{n}",
            facts={"ranks": n, "program": "train", "workload": f"name of job {n}"},
            tables={"steps_summary": [{"p50_ns": 900 // n}]},
        )
        for n in (1, 3)
    ]
    outcome = scaling(runs)
    assert [row["efficiency"] for row in outcome.rows.to_dict("records")] == [None, None]
    assert outcome.rows["speedup"].tolist() == [1.0, 3.0]
    assert outcome.rows["kind"].tolist() == ["unknown"] * 2
    assert outcome.rows["workload"].tolist() == ["name of job 1", "name of job 3"]
    assert "no efficiency where the parameters do not tell strong from weak scaling" in outcome.reason


def test_different_programs_form_no_series() -> None:
    runs = [
        run(name, facts={"program": name, "ranks": ranks}, tables=STEPS)
        for name, ranks in (("ddp", 1), ("bf16", 2), ("fp32", 4))
    ]
    assert (
        "runs of one program at two or more rank counts; runs with step times: 3 of 3" in scaling(runs).reason
    )


def test_runs_of_unknown_programs_are_left_out_and_named() -> None:
    unknown = [run(f"u{n}", facts={"program": None, "ranks": n}, tables=STEPS) for n in (1, 2, 3, 4)]
    sentence = (
        "left out, because the program is unknown: u1, u2, u3 and 1 more; "
        "hpcprof collect --program NAME names it"
    )
    assert scaling(unknown).reason.endswith(sentence)
    outcome = scaling([*unknown, at(1, 1000, 64), at(4, 500, 64)])
    assert (set(outcome.rows["program"]), len(outcome.rows)) == ({"sequence-parallel"}, 2)
    assert sentence in outcome.reason


def test_a_program_is_compared_by_its_options_where_nothing_recorded_its_parameters() -> None:
    runs = [
        run(
            f"r{n}",
            facts={"ranks": n, "program": "train"},
            tables={"steps_summary": [{"p50_ns": 900}]},
            options={"global-batch": str(64 * n), "lr": str(0.1 * n), "out_dir": f"of_{n}"},
        )
        for n in (1, 2)
    ]
    found = rows(*runs)
    assert [(row["kind"], row["ranks"], row["speedup"], row["efficiency"]) for row in found] == [
        ("weak", 1, 1.0, 1.0),
        ("weak", 2, 2.0, 1.0),
    ]
    assert found[0]["parameters"] == "global-batch=64 a rank GPU=NVIDIA H200 profiler=none site=local"


def mpi_run(ranks: int, *, balance: float = 100.0, counts: Sequence[int] = ()) -> RunData:
    """Build a run whose work is divided, and whose reductions grow with the ranks."""
    work, reduction = 64_000_000 / ranks, 20_000 * ranks
    step = work + reduction
    parallel = 100 * work / step * balance / 100
    pop = {
        **{"scope": "step", "name": "step", "parallel_efficiency_pct": parallel},
        **{"load_balance_pct": balance, "communication_efficiency_pct": 100 * work / step},
    }
    counted = {"scope": "run", **dict(zip(("useful_ns", "instructions", "cycles"), counts, strict=False))}
    calls = [{"rank": rank, "call": "MPI_Allreduce", "total_ns": 10 * reduction} for rank in range(ranks)]
    calls += [{"rank": rank, "call": "MPI_Init", "total_ns": 10**9} for rank in range(ranks)]
    return run(
        f"mpi-{ranks}",
        facts={"ranks": ranks},
        parameters={"sequence_length": 64, "hidden_size": 8},
        own=[round(step)] * 3,
        tables={
            "useful_counters": [counted] if counts else [],
            "pop": [pop],
            "mpi_calls": calls,
            "steps_summary": [{"p50_ns": step, "steps": 10}],
        },
    )


def test_computation_scaling_is_instructions_by_ipc_by_frequency() -> None:
    one, four = rows(mpi_run(1, counts=(100, 300, 200)), mpi_run(4, counts=(100, 240, 240)))
    names = ("instruction_scaling_pct", "ipc_scaling_pct", "frequency_scaling_pct")
    assert [one[name] for name in names] == [100.0] * 3
    # A quarter of the time executes a quarter of 80 % of the instructions, at 1.2 times the frequency.
    assert [four[name] for name in names] == [125.0, 66.67, 120.0]
    assert four["computation_scaling_pct"] == pytest.approx(1.25 * 66.67 * 1.2, abs=0.01)
    assert [row["ipc_scaling_pct"] for row in rows(mpi_run(1), mpi_run(4))] == [None, None]


def test_pops_factors_of_a_series_multiply_to_its_global_efficiency() -> None:
    one, four = rows(mpi_run(1), mpi_run(4))
    assert one["computation_scaling_pct"] == 100.0
    assert four["parallel_efficiency_pct"] == round(100 * 16_000_000 / 16_080_000, 2)
    # All ranks together compute as long as one did.
    assert four["computation_scaling_pct"] == 100.0
    assert four["global_efficiency_pct"] == four["parallel_efficiency_pct"]
    assert rows(at(1, 1000, 64), at(4, 500, 64))[0]["global_efficiency_pct"] is None


def test_the_call_that_stops_scaling_is_named_with_the_ranks_from_which_it_dominates() -> None:
    runs = [mpi_run(ranks) for ranks in (2, 4, 8, 16)]
    outcome = analyze_across(ACROSS_RUNS["scaling_models"], runs)
    assert outcome.reason == "fewer than 6 rank counts cannot show where scaling ends"
    table = outcome.frame
    found = {row["part"]: row for row in table.to_dict("records")}
    assert list(found) == ["step", "computation", "MPI_Allreduce"]
    assert found["MPI_Allreduce"]["model"] == "20.00 µs * p"
    assert found["computation"]["model"] == "64.00 ms * p^-1"
    # 64 ms / p is 20 µs * p at 57 ranks.
    assert 55 <= found["MPI_Allreduce"]["dominates_from"] <= 60
    assert found["computation"]["dominates_from"] is None
    few = analyze_across(ACROSS_RUNS["scaling_models"], runs[:3])
    assert few.reason == "a model needs runs at 4 or more rank counts; found 3"
