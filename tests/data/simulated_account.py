"""The account of each step of a simulated program, without profiles of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.report.contents import Contents
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.tables import ProfileRow
from hpcprof.runs.directory import Run
from tests.data.parallel_program import Program, Simulation

RANKS_A_HOST = 8


def empty_tables() -> dict[str, AnalysisTable]:
    """Return every analysis without rows."""
    return {
        name: AnalysisTable({column.name: [] for column in analysis.columns})
        for name, analysis in ANALYSES.items()
    }


def contents_of(tables: dict[str, AnalysisTable]) -> Contents:
    """Return what a report shows of a run with these analyses; others have no rows."""
    ranks = set(tables["step_times"].columns["rank"]) if "step_times" in tables else {0}
    profiles = {rank: _profile(rank) for rank in ranks}
    tables = empty_tables() | {name: _whole(name, table) for name, table in tables.items()}
    return Contents(Run("r", Path("r")), None, [], profiles, tables, [], [], lambda *options: options[-1])


def _profile(rank: int) -> ProfileRow:
    host = f"node-{rank // RANKS_A_HOST:03d}"
    return ProfileRow(
        *("r", rank, "f", "0" * 64, 1, "nsys", host, "", None, None), analysis_version=ANALYSIS_VERSION
    )


def _whole(name: str, table: AnalysisTable) -> AnalysisTable:
    """Return a table with all columns of its analysis; the values of those it lacks are missing."""
    rows = len(next(iter(table.columns.values())))
    missing = {column.name: [None] * rows for column in ANALYSES[name].columns}
    return AnalysisTable(missing | table.columns, steps=table.steps)


def simulated_account(program: Program) -> dict[str, AnalysisTable]:
    """Return the step times, accounts and lateness of a data-parallel program, with its exact times."""
    (times,), (operations,) = Simulation(program).times, Simulation(program).operations
    begin, end = times.begin[..., 0], times.end[..., 0]
    computes = [one.kind == "compute" for one in operations]
    (shared,) = np.flatnonzero(~np.array(computes))
    # A step lasts from its first operation to that of the next one, the last one to its end.
    front = begin[:, 0]
    wall = np.concatenate((front[1:], end[-1:].max(axis=1))) - front
    compute = (end - begin)[:, computes].sum(axis=1)
    arrival = begin[:, shared]
    waiting = arrival.max(axis=1, keepdims=True) - arrival
    parts = {
        "wall_ns": wall,
        "compute_ns": compute,
        "exposed_comm_ns": end[:, shared] - arrival - waiting,
        "wait_for_peer_ns": waiting,
        "exposed_mem_ns": np.zeros_like(wall),
    }
    whole = {name: np.rint(part).astype(np.int64) for name, part in parts.items()}
    whole["idle_ns"] = 2 * whole["wall_ns"] - sum(whole.values())
    step, rank = (place.ravel().tolist() for place in np.indices(wall.shape))
    columns = {"rank": rank, "step": step, **{name: part.ravel().tolist() for name, part in whole.items()}}
    spans = {"gpu_span_ns": columns["wall_ns"]}
    late = np.median(np.maximum(np.median(waiting, axis=1, keepdims=True) - waiting, 0), axis=0)
    return {
        "step_times": AnalysisTable({name: columns[name] for name in ("rank", "step", "wall_ns")} | spans),
        "step_account": AnalysisTable(columns),
        "skew_summary": _summary(np.rint(late).astype(int).tolist(), float(np.median(wall))),
    }


def _summary(late: list[int], wall: float) -> AnalysisTable:
    rows = {name: [0] * len(late) for name in (c.name for c in ANALYSES["skew_summary"].columns)}
    cost = [100 * one / wall for one in late]
    verdict = ["straggler" if one >= 5 else "even" for one in cost]
    own: dict[str, list[Any]] = {"rank": list(range(len(late))), "lateness_p50_ns": late}
    return AnalysisTable(rows | own | {"cost_ns": late, "cost_pct": cost, "verdict": verdict})
