"""Measurements of the nodes of a run, by the steps of its ranks."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from hpcprof.analysis.telemetry.tables import Requested, RunTelemetry, telemetry_tables
from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series
from hpcprof.runs.live_steps import StepMark

BEGIN = 1_000_000.0
SECONDS = 20


def fast(values: Any) -> Series:
    """Return samples ten times a second, from values by time since `BEGIN`."""
    times = np.arange(0, SECONDS + 0.05, 0.1)
    return Series(BEGIN + times, np.asarray([values(at) for at in times], float))


def slow(values: Any) -> Series:
    times = np.arange(0, SECONDS + 0.5, 1.0)
    return Series(BEGIN + times, np.asarray([values(at) for at in times], float))


def run(series: dict[tuple[str, str], Series], **options: Any) -> RunTelemetry:
    """Return a run of a rank on GPU 0, cores 0 and 1, whose 36 steps of half a second begin after one."""
    node = NodeTelemetry("n1", series, {0: RankPlace((0, 1), (0,))}, ("A GPU",), {"cores": 4})
    marks = [StepMark(step, BEGIN + 1 + (step + 1) * 0.5) for step in range(36)]
    return RunTelemetry([node], {0: marks}, Requested(**options))


def rows(name: str, found: RunTelemetry) -> list[dict[str, Any]]:
    columns = telemetry_tables(found)[name].columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_rows_cover_whole_steps_of_a_second_and_nothing_is_interpolated() -> None:
    found = rows("telemetry", run({("gpu0", "temperature_c"): slow(lambda at: 40 + at)}))
    steps = [row for row in found if row["phase"] == "step"]
    assert [(row["first_step"], row["last_step"]) for row in steps[:3]] == [(1, 2), (3, 4), (5, 6)]
    # Step 0 ends after 1.5 s: steps 1 and 2 take until 2.5 s, in which lies the sample of 2 s.
    assert [(row["samples"], row["mean"]) for row in steps[:2]] == [(1, 42.0), (1, 43.0)]
    assert [row["phase"] for row in found if row["phase"] != "step"] == ["before", "after"]
    assert {row["rank"] for row in found} == {0}
    assert sum(row["samples"] for row in found) == SECONDS + 1


def test_counters_are_rates_and_one_that_begins_anew_loses_what_it_hides() -> None:
    counted = run({("rank0", "written_bytes"): slow(lambda at: 100 * at if at < 10 else 100 * (at - 10))})
    found = rows("telemetry", counted)
    assert {(row["metric"], row["unit"]) for row in found} == {("written", "bytes/s")}
    assert {row["mean"] for row in found} == {100.0}
    assert sum(row["samples"] for row in found) == SECONDS - 1


def test_energy_is_that_of_the_steps_by_the_counter_and_by_power_without_one() -> None:
    counter = run({("gpu0", "energy_j"): fast(lambda at: 5000 + 300 * at)})
    of_gpu, whole = rows("energy", counter)
    assert (of_gpu["rank"], of_gpu["steps"]) == (0, 35)
    assert of_gpu["energy_j"] == pytest.approx(300 * 17.5)
    assert of_gpu["joule_per_step"] == pytest.approx(150.0)
    assert whole["rank"] is None and whole["energy_j"] == of_gpu["energy_j"]
    # The counter, seldom read, gives the sum; the power gives its place: before and after 10.25 s.
    both = run(
        {
            ("gpu0", "energy_j"): Series(BEGIN + np.array([0.0, 20.0]), np.array([0.0, 2 * 5000.0])),
            ("gpu0", "power_w"): fast(lambda at: 100 if at < 1.05 else 257.9),
        }
    )
    assert rows("energy", both)[0]["energy_j"] == pytest.approx(2 * 257.9 * 17.5, rel=0.02)
    by_power = rows("energy", run({("gpu0", "power_w"): fast(lambda at: 200 + 100 * (at > 10.25))}))[0]
    assert by_power["energy_j"] == pytest.approx(200 * 8.75 + 300 * 8.75, rel=0.02)


def test_a_gpu_is_throttled_in_the_share_of_the_samples_that_say_so() -> None:
    def mask(at: float) -> float:
        return 0x1 | (0x4 if at > 10.2 else 0)  # idle is no reason

    series = {("gpu0", "sm_mhz"): fast(lambda at: 1755 if at < 10 else 1410)}
    found = rows("clocks", run(series | {("gpu0", "throttle_reasons"): fast(mask)}))
    early = [row for row in found if (row["last_step"] or 99) < 17]
    late = [row for row in found if (row["first_step"] or 0) > 20]
    assert {(row["reason"], row["throttled_pct"], row["sm_mhz_mean"]) for row in early} == {("", 0.0, 1755.0)}
    assert {(row["reason"], row["throttled_pct"], row["sm_mhz_mean"]) for row in late} == {
        ("power cap", 100.0, 1410.0)
    }
    without = rows("clocks", run(series))
    assert all(row["throttled_pct"] is None for row in without)


def test_others_on_the_cores_of_the_ranks_are_what_the_ranks_do_not_use() -> None:
    series = {
        ("cpu0", "busy_s"): slow(lambda at: at),
        ("cpu1", "busy_s"): slow(lambda at: 0.5 * at),
        ("cpu2", "busy_s"): slow(lambda at: at),
        ("rank0", "cpu_s"): fast(lambda at: 0.9 * at),
        ("gpu0", "other_processes"): slow(lambda at: 1),
    }
    cores, gpu = rows("neighbours", run(series))
    assert (gpu["device"], gpu["others_mean"]) == ("gpu0", 1.0)
    assert (cores["device"], cores["own_mean"], cores["others_mean"]) == ("2 cores of the ranks", 0.9, 0.6)


def test_a_checkpoint_is_where_far_more_is_written() -> None:
    def written(at: float) -> float:
        return 1e4 * at + (50e6 if at > 9 else 0)

    series = {("rank0", "written_bytes"): slow(written), ("rank0", "read_bytes"): slow(lambda at: 0)}
    found = rows("io", run(series))
    assert [(row["first_step"], row["last_step"]) for row in found if row["checkpoint"]] == [(15, 16)]
    assert sum(row["written_bytes"] for row in found) == pytest.approx(50e6 + 1e4 * SECONDS, rel=1e-6)
    flat = rows("io", run({("rank0", "written_bytes"): slow(lambda at: 60e6 * at)}))
    assert not any(row["checkpoint"] for row in flat)


def test_resources_that_idle_are_named_where_the_job_asked_for_them() -> None:
    series = {
        ("rank0", "cpu_s"): fast(lambda at: at),
        ("rank0", "resident_bytes"): slow(lambda at: 2**30 if at < 5 else 3 * 2**30),
        ("gpu0", "busy_pct"): fast(lambda at: 25),
    }
    found = {
        row["resource"]: row for row in rows("job_resources", run(series, cores=8, memory_bytes=2.0**33))
    }
    assert found["cores"]["idle_pct"] == 87.5 and found["cores"]["advice"] == "fewer cores"
    assert found["GPUs"]["idle_pct"] == 75.0 and found["GPUs"]["advice"] == ""
    memory = found["memory (GiB)"]
    assert (memory["requested"], memory["used_max"], memory["advice"]) == (8.0, 3.0, "less memory")
    assert "walltime (min)" not in found
    # The memory in use on the node is not that of ranks that ended before their first sample.
    assert rows("job_resources", run({("node", "memory_used_bytes"): slow(lambda at: 2.0**33)})) == []


def test_rows_stay_few_however_long_a_run_is() -> None:
    times = BEGIN + np.arange(0.0, 40_000.0)
    node = NodeTelemetry("n1", {("rank0", "cpu_s"): Series(times, times - BEGIN)}, {0: RankPlace()})
    marks = [StepMark(step, BEGIN + step) for step in range(40_000)]
    assert len(rows("telemetry", RunTelemetry([node], {0: marks}))) <= 62


def test_a_run_without_samples_has_no_tables_and_damaged_lines_are_said() -> None:
    assert telemetry_tables(RunTelemetry([])) == {}
    series = {("rank0", "cpu_s"): fast(lambda at: at)}
    damaged = NodeTelemetry("n1", series, {0: RankPlace((0,))}, damaged=2)
    found = telemetry_tables(RunTelemetry([damaged]))
    assert found["telemetry"].reason == "2 lines of samples could not be read"
    assert {row["phase"] for row in found["telemetry"].rows.to_dict("records")} == {"run"}


def test_a_node_without_python_has_no_rows_of_ranks_and_says_why() -> None:
    """The loop of the shell samples the node only."""
    missing = {"GPUs, ranks, network": "this node has no python3"}
    node = NodeTelemetry("n1", {("node", "busy_s"): slow(lambda at: at)}, {}, missing=missing)
    found = telemetry_tables(RunTelemetry([node]))
    assert {found[name].reason for name in ("io", "neighbours")} == {
        "no process of a rank was sampled: this node has no python3"
    }
    assert found["energy"].reason == "no GPU was sampled" and len(found["telemetry"].rows) == 1


def test_clocks_of_profiles_are_those_of_gpus_that_were_not_sampled() -> None:
    row = {"rank": 0, "node": "n1", "device": "gpu0", "first_step": 3, "last_step": 3, "phase": "step"}
    row |= {"samples": 7, "mean": 1410.0, "min": 1400.0, "max": 1420.0}
    clock = {**row, "metric": "GPC Clock Frequency", "unit": "MHz"}
    other = {**row, "metric": "SMs Active", "unit": "Throughput %"}
    times = np.arange(10.0)
    series = {("gpu0", "sm_mhz"): Series(times, np.full(10, 1700.0))}
    sampled = NodeTelemetry("n1", series, {0: RankPlace((), (0,))}, ("A GPU",))

    def clocks(*nodes: NodeTelemetry) -> list[Any]:
        tables = telemetry_tables(RunTelemetry(nodes, profiled=[clock, other]))
        return list(tables["clocks"].rows["sm_mhz_mean"])

    assert clocks() == [1410.0]
    assert clocks(sampled) == [1700.0]
    assert clocks(msgspec.structs.replace(sampled, node="n2")) == [1700.0, 1410.0]
