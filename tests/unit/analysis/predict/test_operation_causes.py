"""Tables of operations are replayed as published, and the slow worker, stage and kind come first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.explain.changes import parse_changes
from hpcprof.analysis.explain.explanation import Cause
from hpcprof.analysis.predict import operation_causes, operation_graph
from hpcprof.analysis.predict.operation_causes import explain_operations, what_if_operations
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles.readers.operations.table import read_tables
from hpcprof.profiles.timeline import Floats

DATA = Path(__file__).parents[3] / "data"

# Of result-ST.json in ByteDance-Seed/StragglerAnalysis: means over the steps, in seconds, and slowdowns.
MEASURED, REPLAYED, IDEAL = 2.2144478, 2.1726968, 1.8432958
SLOWDOWNS = {
    ("replica", "0"): 1.17308,
    ("replica", "1"): 1.17787,
    ("stage", "0"): 0.99805,
    ("stage", "1"): 0.98306,
    ("stage", "2"): 0.98249,
    ("stage", "3"): 1.23226,
    ("name", "forward-compute"): 1.0875,
    ("name", "backward-compute"): 1.07416,
    ("name", "embedding-grads-all-reduce"): 1.00955,
    ("name", "grads-reduce-scatter"): 1.00267,
    ("name", "optimizer-clip-main-grad"): 1.00235,
    ("name", "optimizer"): 1.00148,
    ("name", "params-all-gather"): 1.00113,
}


@pytest.fixture(scope="module")
def job() -> pd.DataFrame:
    """Return the operations of a job of 8 ranks whose last stage has more work."""
    return read_tables([DATA / "pipeline_job.parquet"])


@pytest.fixture(scope="module", params=["replicas", "inferred"])
def explained(request: pytest.FixtureRequest, job: pd.DataFrame) -> tuple[object, pd.DataFrame]:
    """Explain it with the replicas that the table has, and with those that its messages show."""
    table = job if request.param == "replicas" else job.assign(replica=-1)
    return explain_operations(table)


def test_shares_are_of_the_time_that_the_run_takes_for_each_step(job: pd.DataFrame) -> None:
    explanation, _ = explain_operations(job)
    within_step = explanation.step.elapsed_ns
    assert within_step is not None
    longer, _ = explain_operations(job, 2 * within_step)
    share, half = (found.findings[0].share_pct or 0 for found in (explanation, longer))
    assert share == pytest.approx(2 * half, abs=0.002) != 0


def test_a_change_keeps_the_time_between_steps(job: pd.DataFrame) -> None:
    within = what_if_operations(job, parse_changes(["comm*0"]))
    assert within.elapsed_ns is not None
    assert within.measured_elapsed_ns is not None
    longer = what_if_operations(job, parse_changes(["comm*0"]), within.measured_elapsed_ns + 1_000)
    assert longer.elapsed_ns == within.elapsed_ns + 1_000


def test_the_figures_are_those_that_were_published(explained: tuple[object, pd.DataFrame]) -> None:
    table = explained[1].set_index(["by", "value"])
    assert table.loc[("replay", ""), "step_ns"] == pytest.approx(REPLAYED * 1e9, rel=1e-6)
    assert table.loc[("ideal", ""), "step_ns"] == pytest.approx(IDEAL * 1e9, rel=1e-6)
    for key, slowdown in SLOWDOWNS.items():
        assert table.loc[key, "slowdown"] == pytest.approx(slowdown, rel=1e-4), key


def test_the_stage_with_more_work_and_its_kind_are_the_first_finding(job: pd.DataFrame) -> None:
    found = explain_operations(job)[0]
    first = found.findings[0]
    assert (first.cause, first.ranks) == (Cause.PIPELINE_BUBBLE, (6, 7))
    assert first.where == "forward-compute, backward-compute on stage 3"
    assert found.step.elapsed_ns == pytest.approx(MEASURED * 1e9, rel=1e-6)
    # The replay is 2 % off; the share is of the step that is shown.
    assert first.saving_ns is not None and found.step.elapsed_ns is not None
    assert first.share_pct == pytest.approx(100 * first.saving_ns / found.step.elapsed_ns, abs=0.006)


def test_a_worker_with_slow_operations_of_one_kind_is_the_first_finding(job: pd.DataFrame) -> None:
    ideal = job.groupby(["name"])["duration_ns"].transform("median").where(job["kind"] == "compute")
    table = job.assign(duration_ns=ideal.fillna(job["duration_ns"]).astype(np.int64))
    table = table[table["kind"].isin(("compute", "send", "recv"))]
    table = table[table["name"] != "optimizer-clip-main-grad"]
    slow = (table["rank"] == 2) & (table["name"] == "backward-compute")
    table["duration_ns"] = table["duration_ns"].where(~slow, 2 * table["duration_ns"])
    first = explain_operations(table)[0].findings[0]
    assert (first.cause, first.ranks, first.where) == (
        Cause.LATE_RANK_COMPUTE,
        (2,),
        "backward-compute on stage 1",
    )
    assert "No other rank" not in first.remedy
    alone = explain_operations(table[table["replica"] == table["replica"][slow].iloc[0]])[0].findings[0]
    assert alone.ranks == (2,)
    assert "No other rank has its stage 1" in alone.remedy
    # It gains what the other ranks of its stage show, not what a mean with its own times shows.
    like_others = what_if_operations(table, parse_changes(["rank:2=median"])).elapsed_ns
    replayed = what_if_operations(table, []).elapsed_ns
    assert first.saving_ns == pytest.approx(replayed - like_others, rel=1e-6)


def test_waiting_of_a_rank_whose_partners_the_table_lacks_is_not_judged(job: pd.DataFrame) -> None:
    unknown = [explain_operations(table)[0].not_judged for table in (job, job[job["rank"] == 0])]
    assert [any(one.what == "waiting for peers" for one in each) for each in unknown] == [False, True]
    alone = explain_operations(job[job["rank"] == 0])[0]
    assert not any("all ranks" in one.remedy for one in alone.findings)


def test_a_what_if_keeps_only_some_measured_times(job: pd.DataFrame) -> None:
    def step(*changes: str) -> float:
        return what_if_operations(job, parse_changes(changes)).elapsed_ns / 1e9

    assert step() == pytest.approx(REPLAYED, rel=1e-6)
    assert step("ideal") == pytest.approx(IDEAL, rel=1e-6)
    assert step("ideal!stage:3") == pytest.approx(IDEAL * 1.23226, rel=1e-4)
    assert step("ideal@stage:3") < 0.85 * REPLAYED
    assert step("kernel:-compute*0.5") < 0.6 * REPLAYED
    assert step("kernel:-compute*0.5@7") < REPLAYED
    assert step("comm*0") == step("bandwidth*1e12")
    assert step("rank:7=median", "rank:6=median") < REPLAYED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ideal@stage:9", "no operation of 'stage:9'"),
        ("kernel:gemm*0", "no operation of the table has a name that matches 'gemm'"),
        ("copy*0", "copy changes nothing in a table of operations"),
        ("ideal@gemm", "write it as in ideal or ideal@stage:3"),
    ],
)
def test_a_change_of_something_else_is_refused(job: pd.DataFrame, change: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        what_if_operations(job, parse_changes([change]))


def test_steps_that_overlap_are_not_replayed_and_the_busiest_rank_is_named() -> None:
    # Four stages hand on a task every 10 us; the third works all the time.
    times = [3000, 6000, 10000, 5000]
    rows = [
        {"rank": rank, "step": step, "name": f"stage{rank}", "kind": "compute", "duration_ns": took}
        | {"start_ns": 10000 * (step + rank), "stage": rank}
        for step in range(30)
        for rank, took in enumerate(times)
    ]
    with pytest.raises(
        HpcprofError, match=r"the steps overlap.*: rank 2 computes most, 92\.3 % of the time\.$"
    ):
        explain_operations(pd.DataFrame(rows))


def test_of_countless_names_those_that_deviate_most_are_replayed(
    job: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_causes, "_MAX_VALUES", 1)
    explanation, slowdowns = explain_operations(job)
    every = operation_causes.OperationReplay.from_table(job)
    deviation = {
        name: sum(
            float(np.abs(own - ideal)[(graph.rows["name"] == name).to_numpy()].sum())
            for graph, own, ideal in zip(every.graphs, every.measured, every.ideal, strict=True)
        )
        for name in job["name"].unique()
    }
    assert slowdowns["value"][slowdowns["by"] == "name"].tolist() == [
        max(deviation, key=deviation.__getitem__)
    ]
    assert {one.what for one in explanation.not_judged} >= {"each rank", "each name"}


def test_steps_of_countless_kinds_are_replayed_only_where_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds, steps, replays = 30, 40, 0
    walls = operation_graph.OperationGraph.walls

    def counted(graph: operation_graph.OperationGraph, own: Floats) -> Floats:
        nonlocal replays
        replays += 1
        return walls(graph, own)

    for module in (operation_graph, operation_causes):
        monkeypatch.setattr(module, "MAX_KINDS", kinds)
    monkeypatch.setattr(operation_graph.OperationGraph, "walls", counted)
    rows = [(rank, step, f"op{step}", 1000 * step) for rank in range(2) for step in range(steps)]
    table = pd.DataFrame(rows, columns=["rank", "step", "name", "start_ns"]).assign(
        kind="collective", duration_ns=500, stage=-1, microbatch=-1, chunk=-1, replica=-1, group="g", peer=-1
    )
    found, slowdowns = explain_operations(table)
    assert [one.what for one in found.not_judged] == ["causes inside operations", "steps of other kinds"]
    assert found.step.explained_steps == kinds and (slowdowns["by"] == "name").sum() == kinds
    assert replays < 25 * kinds
