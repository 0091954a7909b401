"""The rows of the analyses that show a cause, so that a reader can look it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from hpcprof.analysis.explain.candidates import Candidate
from hpcprof.analysis.explain.explanation import Cause, Evidence
from hpcprof.profiles.os_calls import FILES

_MOST = 3
_TELLING = 0.05
"""Idle time that is a smaller share of the cause's own time shows another one."""

Tables = Mapping[str, pd.DataFrame]


def evidence_of(tables: Tables, candidate: Candidate, ranks: tuple[int, ...]) -> tuple[Evidence, ...]:
    """Return the largest figures that show a cause, each a cell of an analysis.

    ``ranks`` are those that have the cause, by their own numbers.
    """
    inner = candidate.where.rpartition("/")[2]
    found: list[Evidence] = []
    for analysis, key, chosen in _RULES[candidate.cause]:
        table = tables[analysis]
        if not len(table):
            continue
        rows = table[chosen(table, inner)]
        whose = "delaying_rank" if "delaying_rank" in rows else "rank"
        own = rows[rows[whose].isin(ranks)] if whose in rows else rows
        shown = own if len(own) or candidate.cause in _OF_LATE_RANK else rows
        if analysis == "idle_causes":
            shown = shown[shown[key] >= _TELLING * candidate.own_ns]
        found += largest(analysis, key, shown)
    return tuple(found[:_MOST])


def step_evidence(tables: Tables, steps: tuple[int, ...]) -> tuple[Evidence, ...]:
    """Return the wall times of some steps on the rank where each took longest."""
    table = tables["step_times"]
    rows = table[table["step"].isin(steps)].sort_values("wall_ns", ascending=False)
    return tuple(largest("step_times", "wall_ns", rows.drop_duplicates("step")))


def largest(analysis: str, key: str, rows: pd.DataFrame) -> list[Evidence]:
    """Return the two largest values of a column of an analysis, as cells that can be looked up."""
    known = rows[rows[key].notna()]
    values = known[key].astype(float)
    top = known.loc[values.sort_values(ascending=False, kind="stable").index[:2]]
    return [
        Evidence(analysis, int(row["rank"]) if "rank" in row else None, key, _plain(row[key]))
        for _, row in top.iterrows()
        if float(row[key]) > 0
    ]


def _plain(value: Any) -> int | float | str:
    number = float(value)
    return int(number) if number.is_integer() else number


ChosenRow = Callable[[pd.DataFrame, str], Any]


def _all(table: pd.DataFrame, _: str) -> Any:
    return pd.Series(True, index=table.index)


def _idle(*causes: str) -> ChosenRow:
    def chosen(table: pd.DataFrame, place: str) -> Any:
        same = table["cause"].isin(causes)
        return same & (table["range"] == place) if place and (table["range"] == place).any() else same

    return chosen


def _named(pattern: str) -> ChosenRow:
    return lambda table, _: table["name"].str.contains(pattern, regex=True, na=False)


def _of_call(table: pd.DataFrame, place: str) -> Any:
    same = table["call"] == place
    return same if same.any() else _all(table, place)


_OF_LATE_RANK = (Cause.LATE_RANK_HOST, Cause.LATE_RANK_GPU)

_RULES: dict[Cause, tuple[tuple[str, str, ChosenRow], ...]] = {
    Cause.HOST_WORK: (("idle_causes", "idle_ns_per_step", _idle("host")), ("step_account", "idle_ns", _all)),
    Cause.HOST_BOUND: (
        ("idle_causes", "idle_ns_per_step", _idle("host", "launch")),
        ("step_account", "idle_ns", _all),
    ),
    Cause.HOST_SYNC: (
        ("idle_causes", "idle_ns_per_step", _idle("sync")),
        ("api", "total_ns", _named("Synchronize")),
    ),
    Cause.DEVICE_ALLOCATION: (
        ("idle_causes", "idle_ns_per_step", _idle("allocation")),
        ("api", "total_ns", _named("Malloc|Alloc|Free|MemCreate|MemMap")),
    ),
    Cause.BLOCKING_COPY: (
        ("idle_causes", "idle_ns_per_step", _idle("copy")),
        ("step_account", "exposed_mem_ns", _all),
        ("memops", "total_ns", lambda table, _: table["operation"].notna()),
    ),
    Cause.SMALL_KERNELS: (
        ("idle_causes", "idle_ns_per_step", _idle("host", "launch")),
        ("kernels", "instances", _all),
    ),
    Cause.SLOW_IO: (("os_calls", "ns_per_step", lambda table, _: table["kind"] == FILES),),
    Cause.LATE_RANK_HOST: (
        ("mpi_waits", "wait_ns", _all),
        ("os_calls", "ns_per_step", _all),
        ("skew_summary", "lateness_p50_ns", _all),
        ("idle_causes", "idle_ns_per_step", _idle("host")),
        ("step_account", "idle_ns", _all),
    ),
    Cause.LATE_RANK_GPU: (("skew_summary", "lateness_p50_ns", _all), ("step_account", "compute_ns", _all)),
    Cause.SERIAL_SECTION: (("mpi_waits", "wait_ns", _all), ("os_calls", "ns_per_step", _all)),
    Cause.LATE_RECEIVER: (("mpi_waits", "wait_ns", lambda table, _: table["pattern"] == "late receiver"),),
    Cause.WRONG_ORDER: (
        ("mpi_waits", "wait_ns", lambda table, _: table["pattern"] == "wrong order of messages"),
    ),
    Cause.SMALL_MESSAGES: (("mpi_calls", "calls", _of_call),),
    Cause.EXPOSED_COMMUNICATION: (
        ("mpi_calls", "transfer_ns", _of_call),
        ("step_account", "exposed_comm_ns", _all),
    ),
    Cause.SLOW_MATH: (("kernels", "total_ns", _named("simt|sgemm|ffma|scudnn")),),
    Cause.CONTENTION: (("slowdown", "slowdown", lambda table, _: table["slowdown"].astype(float) > 1),),
    Cause.PIPELINE_BUBBLE: (("mpi_waits", "wait_ns", _all), ("step_account", "exposed_comm_ns", _all)),
}
"""Of each cause: the analysis, the column and the rows that show it, the most telling first."""
