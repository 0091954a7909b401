"""The tables about the memory of a run, and the findings that they give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.framework.outcome import in_declared_columns
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.memory.findings import TABLES, memory_findings
from hpcprof.analysis.memory.tables import (
    RankSnapshot,
    RunMemory,
    growth,
    memory_difference,
    memory_tables,
)
from hpcprof.analysis.telemetry.tables import RunTelemetry
from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series
from hpcprof.runs.live_steps import StepLine, StepMark
from tests.unit.analysis.memory.test_contents import recorded

GB = 10**9
Rows = dict[str, list[dict[str, Any]]]


def _rows(run: RunMemory) -> Rows:
    found = {}
    for name, outcome in memory_tables(run).items():
        columns = in_declared_columns(outcome, ANALYSES[name]).columns
        found[name] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found


def _snapshots(folder: Path, names: Sequence[str]) -> list[RankSnapshot]:
    return [RankSnapshot(rank, name, recorded(name, folder)) for rank, name in enumerate(names)]


def _lines(*peaks: int) -> dict[int, list[StepLine]]:
    return {rank: [StepLine(9, 0.0, 10, 0, 0, 0, peak, peak + 1)] for rank, peak in enumerate(peaks)}


@pytest.fixture
def leak(tmp_path: Path) -> Rows:
    snapshots = _snapshots(tmp_path, ["leak/rank00000.oom", "leak/rank00001.oom"])
    return _rows(RunMemory(_lines(3 * GB, 10 * GB), snapshots))


def test_a_failure_has_what_was_asked_and_what_held_the_rest(leak: Rows) -> None:
    asked, failed = leak["memory_snapshots"]
    assert (asked["event"], asked["asked_bytes"]) == ("asked", None)
    assert (failed["event"], failed["asked_bytes"]) == ("out_of_memory", 48 << 20)
    assert (failed["module"], failed["line"]) == ("layers.7.attention", "demo/train.py:11 forward")
    own = [row for row in leak["memory"] if row["rank"] == 1]
    # All of it, with what is not PyTorch's, is what the GPU does not have free.
    assert sum(row["bytes"] for row in own) == failed["capacity_bytes"] - failed["free_bytes"]
    assert sum(row["share_pct"] for row in own) == pytest.approx(100, abs=0.1)
    # Equal amounts come in the order of their names, whatever the hashes of these are.
    alike = [[row for row in own if row["bytes"] == size] for size in {row["bytes"] for row in own}]
    named = [[(row["kind"], row["module"], row["line"]) for row in rows if row["line"]] for rows in alike]
    assert named == [*map(sorted, named)] and max(map(len, named)) > 1
    first = own[0]
    assert (first["line"], first["bytes"], first["difference_bytes"]) == (
        "demo/train.py:26 remember",
        25 << 28,
        25 << 28,
    )


def test_a_failure_is_a_finding_with_the_line_and_what_would_have_fitted(leak: Rows) -> None:
    found = {finding.cause: finding for finding in memory_findings(leak, ranks=2)}
    failed = found[Cause.OUT_OF_MEMORY]
    assert (failed.ranks, failed.where, failed.confidence) == ((1,), "demo/train.py:26 remember", "high")
    assert failed.saving_ns is None
    for option in ("remember", "checkpoint", "batch of 97 %", "sharding over 2 ranks", "expandable_segments"):
        assert option in failed.remedy
    for one in failed.evidence:
        assert any(row["rank"] == 1 and row[one.key] == one.value for row in leak[one.analysis])
    unequal = found[Cause.MEMORY_IMBALANCE]
    assert (unequal.ranks, unequal.where) == ((1,), "demo/train.py:26 remember")


@pytest.mark.parametrize(("peaks", "named"), [((3, 3), False), ((30, 32), False), ((3, 5, 3), True)])
def test_equal_ranks_are_no_finding(peaks: tuple[int, ...], named: bool) -> None:
    rows = _rows(RunMemory(_lines(*(peak * GB for peak in peaks)), []))
    found = memory_findings(rows, len(peaks))
    assert [finding.ranks for finding in found] == ([(1,)] if named else [])


def test_the_series_over_the_step_keeps_the_peak_and_adds_up(tmp_path: Path) -> None:
    rows = _rows(RunMemory({}, _snapshots(tmp_path, ["steps/rank00000.step5"])))
    series = rows["memory_over_step"]
    assert 2 < len(series) <= 400
    assert [row["time_ns"] for row in series] == sorted(row["time_ns"] for row in series)
    kinds = [name for name in series[0] if name.endswith("_bytes") and name != "fragmentation_bytes"]
    totals = [sum(row[kind] for kind in kinds) for row in series]
    assert max(totals) == 85_295_616
    assert {total + row["fragmentation_bytes"] for total, row in zip(totals, series, strict=True)} == {
        104_857_600
    }


def test_a_damaged_snapshot_is_counted() -> None:
    found = memory_tables(RunMemory({}, [RankSnapshot(0, "a", None)]))
    assert found["memory"].reason == "1 snapshot could not be read"


def test_memory_of_two_runs(tmp_path: Path) -> None:
    def run(names: Sequence[str]) -> RunData:
        outcome = memory_tables(RunMemory({}, _snapshots(tmp_path, names)))["memory"]
        tables = {"memory": in_declared_columns(outcome, ANALYSES["memory"]).frame}
        return RunData("r", {}, {}, np.empty(0, np.int64), tables, (), lambda _: None)  # type: ignore[arg-type, return-value]

    a, b = run(["steps/rank00001.step5"]), run(["steps/rank00000.step5"])
    rows = memory_difference([b], [a]).rows
    # DDP of the first rank has a copy of the bucket.
    assert rows.iloc[0][["kind", "a_bytes", "b_bytes"]].tolist()[0] in ("communication", "fragmentation")
    grew = rows[rows["kind"] == "communication"].iloc[0]
    assert grew["difference_bytes"] == grew["b_bytes"] - grew["a_bytes"] == 85_295_616 - 83_711_488
    assert "the same" in memory_difference([a], [a]).reason


def _host(level: Any, seconds: int = 60) -> Rows:
    times = np.arange(seconds, dtype=float)
    node = NodeTelemetry(
        "n0",
        {
            ("rank0", "resident_bytes"): Series(times, level(times)),
            ("rank1", "resident_bytes"): Series(times, np.full(seconds, 1e9)),
            ("node", "memory_used_bytes"): Series(times, np.full(seconds, 6e9)),
        },
        {0: RankPlace(), 1: RankPlace()},
        limits={"memory_bytes": 7e9},
    )
    steps = {rank: [StepMark(10 * at, float(at)) for at in range(seconds)] for rank in (0, 1)}
    return _rows(RunMemory({}, [], RunTelemetry([node], steps)))


def test_a_leak_is_named_with_its_rate_and_when_the_node_is_full() -> None:
    rows = _host(lambda times: 1e9 + 10e6 * times)
    leaking, clean = rows["host_memory"]
    assert (leaking["grows"], clean["grows"]) == (1, 0)
    assert leaking["growth_bytes_per_step"] == pytest.approx(1e6, rel=0.01)
    assert (leaking["full_in_s"], leaking["full_at_step"]) == (100, 1590)
    assert clean["full_in_s"] is None
    (finding,) = memory_findings({name: rows[name] for name in TABLES}, 2)
    assert (finding.cause, finding.ranks) == (Cause.HOST_MEMORY, (0,))
    assert "1.000 MB more in each step" in finding.evidence_text[0] and finding.confidence == "high"
    tables = {name: [{**row, "samples": 20} for row in rows[name]] for name in TABLES}
    assert memory_findings(tables, 2)[0].confidence == "medium"


def test_a_leak_in_each_step_is_told_by_step_where_steps_become_slower() -> None:
    steps = 10 * np.sqrt(np.arange(90.0))
    times = 1000.0 + np.arange(90.0)
    series = {("rank0", "resident_bytes"): Series(times, 1e9 + 1e6 * steps)}
    node = NodeTelemetry("n1", series, {0: RankPlace()}, limits={"memory_bytes": 7e9})
    marks = {0: [StepMark(int(step), float(time)) for step, time in zip(steps, times, strict=True)]}
    (row,) = _rows(RunMemory({}, [], RunTelemetry([node], marks)))["host_memory"]
    assert row["growth_bytes_per_step"] == pytest.approx(1e6, rel=0.03)
    assert row["growth_low_bytes_per_step"] <= 1e6 <= row["growth_high_bytes_per_step"]


@pytest.mark.parametrize(
    "level",
    [
        lambda times: np.full(len(times), 1e9),
        lambda times: 1e9 + np.random.default_rng(3).normal(0, 3e7, len(times)),
        lambda times: 1e9 + 5e8 * (times > 40),
        lambda times: 1e9 + 5e8 * (1 - np.exp(-times / 10)),
        lambda times: 1e9 + 2e7 * (times % 10),
        lambda times: 1e9 + 5e8 * (1 - np.exp(-times / 60)),
        lambda times: 1e9 + 1e7 * ((times + 50) % 60),
        lambda times: 1e9 + 1e4 * times,
    ],
)
def test_a_clean_run_does_not_grow(level: Any) -> None:
    rows = _host(level)
    assert [row["grows"] for row in rows["host_memory"]] == [0, 0]
    assert memory_findings(rows, 2) == []


def test_what_the_shell_of_a_killed_rank_holds_is_not_what_the_rank_held() -> None:
    times = np.arange(40.0)
    series = {("rank0", "resident_bytes"): Series(times, np.where(times < 35, 1e9, 1.6e6))}
    marks = {0: [StepMark(step, step + 0.5) for step in range(35)]}
    run = RunMemory({}, [], RunTelemetry([NodeTelemetry("n1", series, {0: RankPlace()})], marks))
    assert _rows(run)["host_memory"][0]["resident_bytes"] == 10**9
    for values in (np.zeros(40), np.array([274_432.0])):  # the one sample may be of the shell alone
        series = {("rank0", "resident_bytes"): Series(times[: len(values)], values)}
        ended = RunMemory({}, [], RunTelemetry([NodeTelemetry("n1", series, {0: RankPlace()})], {}))
        assert _rows(ended)["host_memory"] == []


def test_each_table_says_what_a_run_without_any_memory_lacks() -> None:
    said = {name: ANALYSES[name].absent for name in ("memory_use", "memory", "host_memory")}
    assert [text.split()[:4] for text in said.values()] == [
        ["no", "rank", "noted", "the"],
        ["there", "are", "no", "snapshots"],
        ["the", "memory", "of", "the"],
    ]


def test_few_samples_say_nothing() -> None:
    assert growth(np.arange(12.0), 1e6 * np.arange(12.0)) is None
    assert growth(np.zeros(40), np.arange(40.0)) is None
