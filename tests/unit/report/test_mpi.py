"""Sentences and the tree of efficiencies about the MPI calls of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.profiles.readers.otf2 import EZTRACE_NAME
from hpcprof.report.facts import facts
from hpcprof.report.mpi import delays, efficiencies, messages, useful_time
from hpcprof.results.collect.run_profiles import eztrace_notes
from hpcprof.results.store.tables import ProfileRow
from hpcprof.runs.directory import Run
from tests.data.simulated_account import contents_of


def row(scope: str, name: str, balance: float, serial: float, transfer: float) -> dict[str, Any]:
    """Return a row of ``pop`` of some factors in percent."""
    communication = serial * transfer / 100
    return {
        "scope": scope,
        "name": name,
        "parallel_efficiency_pct": balance * communication / 100,
        "load_balance_pct": balance,
        "communication_efficiency_pct": communication,
        "serialization_efficiency_pct": serial,
        "transfer_efficiency_pct": transfer,
    }


def table(*rows: dict[str, Any]) -> AnalysisTable:
    return AnalysisTable({name: [one[name] for one in rows] for name in rows[0]})


def test_the_tree_has_each_factor_in_each_scope_with_its_grade() -> None:
    rows = [row("run", "", 90, 70, 50), row("phase", "solve", 100, 100, 100)]
    found = efficiencies(contents_of({"pop": table(*rows)}))
    assert found is not None
    assert found.scopes == ["run", "solve"]
    grades = {factor.name: [grade for _, grade in factor.cells] for factor in found.factors}
    assert grades == {
        "parallel efficiency": ["poor", "good"],
        "load balance": ["good", "good"],
        "communication efficiency": ["poor", "good"],
        "serialization": ["fair", "good"],
        "transfer": ["poor", "good"],
    }
    assert efficiencies(contents_of({})) is None


def test_a_table_of_a_run_without_gpus_has_no_columns_about_them() -> None:
    contents = contents_of({"pop": table(row("run", "", 90, 70, 50))})
    shown = {column.name for column in contents.declared("pop").columns}
    assert shown == {"scope", "name", *row("run", "", 1, 1, 1)}


def test_the_step_is_judged_before_the_run_and_the_worst_factor_is_named() -> None:
    rows = [row("run", "", 99, 98, 97), row("step", "step", 60, 99, 98)]
    assert (
        useful_time(rows) == "58.2 % of the ranks' time in a step is useful; load balance is lowest (60.0 %)"
    )
    assert useful_time([row("run", "", 99, 99, 99)]) == "97.0 % of the ranks' time in the run is useful"
    # Waits that were not recorded are in the useful time.
    elsewhere = [ProfileRow("run", 0, "a.otf2", "", 1, "otf2", None, "", EZTRACE_NAME, None, 1)]
    (lost,) = eztrace_notes(Run("run", Path()), elsewhere)
    unseen = "97.0 % of the ranks' time in the run is useful, or waits that were not recorded"
    assert useful_time([row("run", "", 99, 99, 99)], bool(lost)) == unseen


def test_programs_with_gpus_have_a_branch_of_hosts_and_one_of_devices() -> None:
    devices = {
        "host_efficiency_pct": 40.0,
        "offload_efficiency_pct": 50.0,
        "device_efficiency_pct": 36.0,
        "device_load_balance_pct": 90.0,
        "device_communication_efficiency_pct": 80.0,
        "device_orchestration_efficiency_pct": 50.0,
    }
    rows = [{**row("step", "step", 90, 100, 90), **devices}]
    assert useful_time(rows) == (
        "81.0 % of the ranks' time in a step is outside MPI; load balance is lowest (90.0 %). "
        "36.0 % of that of their GPUs computes; orchestration is lowest (50.0 %)"
    )
    found = efficiencies(contents_of({"pop": table(*rows)}))
    assert found is not None
    tree = [(factor.name, factor.depth) for factor in found.factors]
    assert tree[:3] == [("host efficiency", 0), ("parallel efficiency", 1), ("load balance", 2)]
    assert tree[-5:] == [
        ("offload", 1),
        ("device efficiency", 0),
        ("load balance", 1),
        ("communication efficiency", 1),
        ("orchestration", 1),
    ]


def test_a_place_that_causes_much_of_the_waits_is_named() -> None:
    def delay(rank: int | None, place: str | None, wait: int, share: float) -> dict[str, Any]:
        return {
            "delaying_rank": rank,
            "delaying_range": place,
            "waits": 2,
            "wait_ns": wait,
            "share_pct": share,
        }

    rows = [
        delay(2, "between MPI_Isend and MPI_Waitall", 6_000_000, 60.0),
        delay(None, None, 3_000_000, 30.0),
        delay(1, "solve", 1_000_000, 10.0),
        delay(2, None, 1_000_000, 9.0),
    ]
    assert delays(rows) == (
        "11.00 ms in 8 waits of the whole capture; rank 2 between MPI_Isend and MPI_Waitall causes 60 %, "
        "rank 1 in solve causes 10 %, rank 2 in unknown places causes 9 %"
    )
    assert delays([delay(3, None, 1_000, 2.0)]) == (
        "1.000 µs in 2 waits of the whole capture; no rank causes more than 2.0 % in one place"
    )
    assert delays([]) == ""


def test_waits_in_mpi_are_a_fact_of_programs_that_call_it_in_their_steps() -> None:
    waits = {"delaying_rank": 2, "delaying_range": "solve", "waits": 3, "wait_ns": 1_000, "share_pct": 90.0}
    tables = {"mpi_delays": table(waits)}
    stepped = {"step_times": table({"rank": 0, "step": 0, "wall_ns": 1_000_000})}
    judged = {"pop": table(row("step", "step", 60, 99, 98))}
    has_waits = [
        "MPI waits" in dict(facts(contents_of(tables | more))) for more in ({}, stepped, stepped | judged)
    ]
    assert has_waits == [True, False, True]


def test_bytes_that_cross_nodes_are_said() -> None:
    def sent(sender: str | None, size: int) -> dict[str, Any]:
        return {"sender_node": sender, "receiver_node": "a", "messages": 2, "bytes": size}

    assert messages([sent("a", 3_000), sent("b", 1_000)]) == "4 messages, 4.000 kB; 25 % between nodes"
    assert messages([sent("a", 3_000)]) == "2 messages, 3.000 kB, all within a node"
    assert messages([sent(None, 3_000)]) == "2 messages, 3.000 kB"
    assert messages([sent("b", 0)]) == "2 messages, 0 B; 100 % between nodes"
