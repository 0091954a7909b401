"""The tables of a study of slowdown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.outcome import AnalysisTable, Row, data_frame
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.slowdown.within_run import TOTAL
from hpcprof.common.grouping import grouped
from hpcprof.results.across.across_runs import slowdown_over_pair
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import find_run
from hpcprof.study.slowdown_record import Arm, PlannedRun
from hpcprof.workloads.sweep import Point

if TYPE_CHECKING:  # only `StudyTable.frame` needs it
    import pandas as pd

COLUMNS = (
    *(Column(name, Kind.INT) for name in ("runs", "alone_step_p50_ns", "step_p50_ns")),
    *(Column(name, Kind.INT) for name in ("step_min_ns", "step_max_ns")),
    *(Column(name, Kind.FLOAT) for name in ("exposed_comm_pct", "slowdown_within")),
)
"""The columns of `by_point`, after the parameters of the sweep."""


@dataclass(frozen=True)
class PointComparison:
    """The analyses that compare the two arms, at one point of the sweep."""

    point: Point
    pairs: AnalysisTable
    by_overlap: AnalysisTable


@dataclass(frozen=True)
class StudyTable:
    """One table of a study; ``name`` is the name of its file."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    def frame(self) -> "pd.DataFrame":
        """Return the table as a DataFrame."""
        return data_frame(
            self.columns, {c.name: [row[c.name] for row in self.rows] for c in self.columns}, exact=True
        )


@dataclass(frozen=True)
class SlowdownTables:
    """The results of a study of slowdown."""

    name: str
    """The name of the study's folder."""
    keys: tuple[str, ...]
    """The parameters of the sweep. The rows of every table have their values beside their own columns."""
    by_point: Sequence[Row]
    pairs: Sequence[Row]
    by_overlap: Sequence[Row]
    """The rows of the tables."""
    sentence: str = ""
    """Names the best point; empty without a sweep."""

    def parts(self) -> list[StudyTable]:
        """Return the tables, the points of the sweep first."""
        parameters = [Column(key, Kind.TEXT) for key in self.keys]
        title = "Points of the sweep" if self.keys else "Runs with and without communication"
        parts = [StudyTable("by_point", title, [*parameters, *COLUMNS], self.by_point)]
        for name, rows in (("slowdown_by_overlap", self.by_overlap), ("slowdown_pairs", self.pairs)):
            analysis = ACROSS_RUNS[name]
            parts.append(StudyTable(name, analysis.title, [*parameters, *analysis.columns], rows))
        return parts


def slowdown_tables(
    name: str,
    keys: tuple[str, ...],
    planned_runs: Sequence[PlannedRun],
    comparisons: Sequence[PointComparison],
    store: Store,
) -> SlowdownTables:
    """Put the tables of a study together from its runs and the comparisons of their arms."""
    rows = by_point(store, planned_runs)
    return SlowdownTables(
        name=name,
        keys=keys,
        by_point=rows,
        pairs=[{**pair.point, **row} for pair in comparisons for row in pair.pairs.rows],
        by_overlap=[{**pair.point, **row} for pair in comparisons for row in pair.by_overlap.rows],
        sentence=best_point_sentence(rows, keys),
    )


def by_point(store: Store, planned_runs: Sequence[PlannedRun]) -> list[Row]:
    """Return one row per point: its parameters and `COLUMNS`.

    Each figure is the median over the runs of the communicating arm; ``alone_step_p50_ns`` is that of the
    other arm. ``step_min_ns`` and ``step_max_ns`` are the shortest and the longest median step of a run.
    ``slowdown_within`` is the total of the analysis ``slowdown``, averaged over the ranks of a run: kernels
    that run while communication runs against the same kernels alone, in the same run. A figure that no run
    has is None.
    """
    rows: list[Row] = []
    for point, runs in _runs_by_point(planned_runs):
        ids = {arm: [planned.run for planned in runs if planned.arm is arm] for arm in Arm}
        runs_of_arm = ids[Arm.COMMUNICATING]
        steps = [value for run in runs_of_arm if (value := _median_step(store, run)) is not None]
        rows.append(
            {
                **point,
                "runs": len(runs_of_arm),
                "alone_step_p50_ns": _median([_median_step(store, run) for run in ids[Arm.ALONE]]),
                "step_p50_ns": _median(steps),
                "step_min_ns": min(steps, default=None),
                "step_max_ns": max(steps, default=None),
                "exposed_comm_pct": _median(
                    [_mean_over_ranks(store, run, "breakdown", "exposed_comm_pct") for run in runs_of_arm], 2
                ),
                "slowdown_within": _median(
                    [_mean_over_ranks(store, run, "slowdown", "slowdown", TOTAL) for run in runs_of_arm], 4
                ),
            }
        )
    return rows


def compare_arms(planned_runs: Sequence[PlannedRun], store: Store, runs_dir: Path) -> list[PointComparison]:
    """Compare the runs with communication with those without, at each point."""
    comparisons = []
    for point, runs in _runs_by_point(planned_runs):
        communicating, alone = (
            [find_run(planned.run, runs_dir) for planned in runs if planned.arm is arm]
            for arm in (Arm.COMMUNICATING, Arm.ALONE)
        )
        comparisons.append(PointComparison(point, *slowdown_over_pair(communicating, alone, store)))
    return comparisons


def _runs_by_point(planned_runs: Sequence[PlannedRun]) -> list[tuple[Point, list[PlannedRun]]]:
    """Return each point with its runs: in ascending order if all values are numbers, else as given."""
    groups = grouped((json.dumps(planned.point), planned) for planned in planned_runs)
    points = [(runs[0].point, runs) for runs in groups.values()]
    try:
        return sorted(points, key=lambda point: [float(value) for value in point[0].values()])
    except ValueError:
        return points


def best_point_sentence(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """Return a sentence that names the point with the shortest step; empty if there is only one point."""
    timed = sorted((row for row in rows if row["step_p50_ns"] is not None), key=lambda r: r["step_p50_ns"])
    if len(timed) < 2:
        return ""
    first, second = timed[:2]
    named, other = (", ".join(f"{key}={row[key]}" for key in keys) for row in (first, second))
    text = f"best: {named}, step p50 {first['step_p50_ns'] / 1e6:.3f} ms (n={first['runs']} runs)"
    if first["runs"] < 2:
        return f"{text}; one run each: no statistics"
    if first["step_max_ns"] >= second["step_min_ns"]:
        return f"{text}; its runs are not all shorter than those of {other}"
    return text


def _median_step(store: Store, run: str) -> int | None:
    rows = store.table(run, "steps_summary").rows
    return rows[0]["p50_ns"] if rows else None


def _mean_over_ranks(store: Store, run: str, analysis: str, column: str, name: str = "") -> float | None:
    values = [row[column] for row in store.table(run, analysis).rows if not name or row["name"] == name]
    return sum(values) / len(values) if values else None


def _median(values: Sequence[float | None], digits: int | None = None) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(median(numbers), digits) if numbers else None
