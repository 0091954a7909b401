"""The study of slowdown: what its runs say by point of the sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.slowdown.within_run import TOTAL
from hpcprof.results.across_runs import slowdown_over_pair
from hpcprof.results.analysis_table import AnalysisTable, Row
from hpcprof.results.store.store import Store
from hpcprof.study.record import Arm, Planned
from hpcprof.submit.runs.directory import find_run
from hpcprof.workloads.sweep import Point

COLUMNS = (
    *(Column(name, Kind.INT) for name in ("runs", "alone_step_p50_ns", "step_p50_ns")),
    *(Column(name, Kind.INT) for name in ("step_min_ns", "step_max_ns")),
    *(Column(name, Kind.FLOAT) for name in ("exposed_comm_pct", "slowdown_within")),
)
"""What `by_point` tells of each point beside the parameters."""


@dataclass(frozen=True)
class Compared:
    """What the analyses of two sides say at one point."""

    point: Point
    pairs: AnalysisTable
    by_overlap: AnalysisTable


@dataclass(frozen=True)
class Part:
    """One table of a study; ``name`` is its file's."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]


@dataclass(frozen=True)
class SlowdownTables:
    """What a study of slowdown found.

    ``keys`` are the parameters of its sweep, which the rows of all tables have beside their own columns.
    ``sentence`` names the best point; it is empty without a sweep.
    """

    name: str
    keys: tuple[str, ...]
    by_point: Sequence[Row]
    pairs: Sequence[Row]
    by_overlap: Sequence[Row]
    sentence: str = ""

    def parts(self) -> list[Part]:
        """Return the tables, the points of the sweep first."""
        of_sweep = [Column(key, Kind.TEXT) for key in self.keys]
        title = "Points of the sweep" if self.keys else "Runs with and without communication"
        parts = [Part("by_point", title, [*of_sweep, *COLUMNS], self.by_point)]
        for name, rows in (("slowdown_by_overlap", self.by_overlap), ("slowdown_pairs", self.pairs)):
            analysis = ACROSS_RUNS[name]
            parts.append(Part(name, analysis.title, [*of_sweep, *analysis.columns], rows))
        return parts


def by_point(store: Store, made: Sequence[Planned]) -> list[Row]:
    """Return one row a point: its parameters and `COLUMNS`.

    Each figure is the median over the runs of the communicating side, but ``alone_step_p50_ns``, which is the
    other's; ``step_min_ns`` and ``step_max_ns`` are the runs with the shortest and longest median step.
    ``slowdown_within`` is the total of the analysis ``slowdown``, the mean over the ranks of a run: kernels
    beside communication against the same kernels alone in the same run. What no run tells is None.
    """
    rows: list[Row] = []
    for point, runs in _points(made):
        sides = {arm: [one.run for one in runs if one.arm is arm] for arm in Arm}
        own = sides[Arm.COMMUNICATING]
        steps = [value for run in own if (value := _step(store, run)) is not None]
        rows.append(
            {
                **point,
                "runs": len(own),
                "alone_step_p50_ns": _median([_step(store, run) for run in sides[Arm.ALONE]], round),
                "step_p50_ns": _median(steps, round),
                "step_min_ns": min(steps, default=None),
                "step_max_ns": max(steps, default=None),
                "exposed_comm_pct": _median([_exposed(store, run) for run in own], _two_digits),
                "slowdown_within": _median([_slowdown(store, run) for run in own], _four_digits),
            }
        )
    return rows


def compare_sides(made: Sequence[Planned], store: Store, runs_dir: Path) -> list[Compared]:
    """Compare at each point the runs with communication with those without."""
    compared = []
    for point, runs in _points(made):
        a, b = (
            [find_run(one.run, runs_dir) for one in runs if one.arm is arm]
            for arm in (Arm.COMMUNICATING, Arm.ALONE)
        )
        compared.append(Compared(point, *slowdown_over_pair(a, b, store)))
    return compared


def _points(made: Sequence[Planned]) -> list[tuple[Point, list[Planned]]]:
    """Return each point with its runs, in ascending order where all values are numbers, else as they came."""
    found: dict[str, list[Planned]] = {}
    for one in made:
        found.setdefault(json.dumps(one.point), []).append(one)
    points = [(runs[0].point, runs) for runs in found.values()]
    try:
        return sorted(points, key=lambda one: [float(value) for value in one[0].values()])
    except ValueError:
        return points


def best(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """Return a sentence that names the point with the shortest step; nothing where there is one point."""
    timed = sorted((row for row in rows if row["step_p50_ns"] is not None), key=lambda r: r["step_p50_ns"])
    if len(timed) < 2:
        return ""
    first, second = timed[:2]
    named, other = (", ".join(f"{key}={row[key]}" for key in keys) for row in (first, second))
    said = f"best: {named}, step p50 {first['step_p50_ns'] / 1e6:.3f} ms (n={first['runs']} runs)"
    if first["runs"] < 2:
        return f"{said}; one run each: no statistics"
    if first["step_max_ns"] >= second["step_min_ns"]:
        return f"{said}; its runs are not all shorter than those of {other}"
    return said


def _step(store: Store, run: str) -> int | None:
    rows = store.read(run, "steps_summary").rows
    return rows[0]["p50_ns"] if rows else None


def _exposed(store: Store, run: str) -> float | None:
    return _mean([row["exposed_comm_pct"] for row in store.read(run, "breakdown").rows])


def _slowdown(store: Store, run: str) -> float | None:
    return _mean([row["slowdown"] for row in store.read(run, "slowdown").rows if row["name"] == TOTAL])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _median(values: Sequence[Any], rounded: Callable[[float], Any]) -> Any:
    known = [value for value in values if value is not None]
    return rounded(median(known)) if known else None


def _two_digits(value: float) -> float:
    return round(value, 2)


def _four_digits(value: float) -> float:
    return round(value, 4)
