"""The page of a slowdown study: its charts and tables as one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcprof.analysis.framework.outcome import Row
from hpcprof.analysis.slowdown.against_baseline import CONTROL
from hpcprof.analysis.slowdown.by_overlap import ALL_FAMILIES, COVERED
from hpcprof.analysis.slowdown.within_run import TOTAL
from hpcprof.common.units import visible
from hpcprof.profiles.kernel_classification import FAMILIES
from hpcprof.report.page.kernel_charts import INTERVALS_NOTE, SLOWDOWN_AXIS, interval, slowdown_chart
from hpcprof.report.page.page import render_page
from hpcprof.report.page.page_tables import PageTable, page_table
from hpcprof.report.page.step_charts import Chart
from hpcprof.workloads.sweep import label

if TYPE_CHECKING:
    from hpcprof.study.slowdown_tables import SlowdownTables, StudyTable

_MAX_SERIES = 16


def html_study(tables: SlowdownTables) -> str:
    """Return the tables and charts of a slowdown study as HTML."""
    charts = study_charts(tables)
    return render_page(
        "report/study.html.j2",
        [_study_table(part, tables.keys) for part in tables.parts()],
        {"charts": charts} if charts else {},
        study=tables,
    )


def study_charts(tables: SlowdownTables) -> list[Chart]:
    """Return each chart that the study has data for."""
    made = []
    if tables.keys:
        made.append(_points(tables))
    if tables.by_overlap:
        made += [_by_share(tables), _by_family(tables)]
    kernels = [row for row in tables.pairs if row["name"] not in (TOTAL, CONTROL)]
    if kernels:
        made.append(slowdown_chart(kernels, tables.keys))
    return made


def _points(tables: SlowdownTables) -> Chart:
    rows = tables.by_point

    def values(key: str) -> list[Any]:
        return [row[key] for row in rows]

    step = {"low": values("step_min_ns"), "high": values("step_max_ns"), "values": values("step_p50_ns")}
    panels = [
        {
            "title": "Step time",
            "unit": "ns",
            "lines": [
                {"name": "with communication", **step},
                {"name": "without communication", "values": values("alone_step_p50_ns")},
            ],
        },
        *(
            {"title": title, "unit": unit, "lines": [{"name": title, "values": values(key)}]}
            for title, unit, key in (
                ("Exposed communication", "pct", "exposed_comm_pct"),
                ("Slowdown within the runs", "ratio", "slowdown_within"),
            )
            if any(value is not None for value in values(key))
        ),
    ]
    runs = min(row["runs"] for row in rows)
    return {
        "kind": "curves",
        "id": "points",
        "title": "Points of the sweep",
        "note": f"Each point is the median over its runs (n = {runs} per side); bars extend to the fastest "
        "and the slowest run.",
        "axis": visible(", ".join(tables.keys)),
        "points": [visible(", ".join(str(row[key]) for key in tables.keys)) for row in rows],
        "panels": panels,
    }


def _by_share(tables: SlowdownTables) -> Chart:
    groups = "0 %, up to 30 %, up to 60 %, up to 90 %, and 90 % or more"
    return {
        "kind": "scatter",
        "id": "slowdown-by-share",
        "title": "Slowdown by overlap",
        "note": "Each point is one kernel family on one rank. Its launches are grouped by how much of their "
        f"time overlaps communication ({groups}) and weighted by time. {INTERVALS_NOTE}",
        "axis": SLOWDOWN_AXIS,
        "x_axis": "kernel time covered by communication",
        "points": [
            interval(row, tables.keys, name) | {"x": row["overlap_pct"]}
            for name in (ALL_FAMILIES, *FAMILIES)
            for row in tables.by_overlap
            if row["family"] == name
        ],
    }


def _by_family(tables: SlowdownTables) -> Chart:
    beside = [row for row in tables.by_overlap if row["covered"] == COVERED]
    series: dict[str, list[Row]] = {}
    for row in beside:
        point = label({key: row[key] for key in tables.keys})
        series.setdefault(visible(point) or f"rank {row['rank']}", []).append(row)
    family_names = list(series)[:_MAX_SERIES]
    launches: Counter[str] = Counter()
    for row in beside:
        launches[row["family"]] += row["overlapped_n"]
    drawn = f" Only the first {_MAX_SERIES} of {len(series)} are drawn." if len(series) > _MAX_SERIES else ""
    return {
        "kind": "intervals",
        "id": "slowdown-by-family",
        "title": "Slowdown by kernel family",
        "note": "Launches that overlap communication for at least 90 % of their time, weighted by time; n is "
        f"their number on all ranks. {INTERVALS_NOTE}{drawn}",
        "axis": SLOWDOWN_AXIS,
        "rows": [
            {
                "label": f"{name}, n = {launches[name]:,}",
                "points": [
                    interval(row, tables.keys, family_name)
                    for family_name in family_names
                    for row in series[family_name]
                    if row["family"] == name
                ],
            }
            for name in (ALL_FAMILIES, *FAMILIES)
            if name in launches
        ],
    }


def _study_table(part: StudyTable, keys: Sequence[str]) -> PageTable:
    """Lay out a table of a study; the parameters of its sweep, ``keys``, keep their names."""
    pointer = f"see {part.name}.csv in the folder of the study"
    return page_table(part.name, part.title, part.columns, part.rows, pointer, unchanged=keys)
