"""The charts of a slowdown study."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hpcprof.analysis.slowdown.against_baseline import CONTROL
from hpcprof.analysis.slowdown.by_overlap import ALL_FAMILIES, COVERED
from hpcprof.analysis.slowdown.within_run import TOTAL
from hpcprof.common.units import counted, time_unit
from hpcprof.profiles.kernel_classification import FAMILIES, family
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.charts import (
    COLOURS,
    LABEL,
    MOST_RANKS,
    PLAIN_NUMBERS,
    TOP_KERNELS,
    Chart,
    colour,
    new_figure,
)
from hpcprof.results.analysis_table import Row
from hpcprof.workloads.sweep import label

if TYPE_CHECKING:
    from hpcprof.study.slowdown_tables import SlowdownTables

_SLOWDOWN = "Slowdown (1 = none)"
_STEP_TIMES = ("step_p50_ns", "step_min_ns", "step_max_ns", "alone_step_p50_ns")
_SYMBOLS = ("circle", "diamond", "square", "cross")
_INTERVALS = "Bars are 95 % confidence intervals; they need five steps or several runs."


def study_charts(tables: SlowdownTables) -> list[Chart]:
    """Return each chart that the study has data for, as (title, note, figure)."""
    made = []
    if tables.keys:
        made.append(_points(tables))
    if tables.by_overlap:
        made += [_by_share(tables), _by_family(tables)]
    if tables.pairs:
        made.append(_kernels(tables))
    return made


def _by_share(tables: SlowdownTables) -> Chart:
    figure = new_figure("Kernel time covered by communication (%)", _SLOWDOWN)
    for number, name in enumerate((ALL_FAMILIES, *FAMILIES)):
        rows = [row for row in tables.by_overlap if row["family"] == name]
        if rows:
            figure.add_scatter(
                x=[row["overlap_pct"] for row in rows],
                y=[row["slowdown"] for row in rows],
                error_y=_bars(rows),
                customdata=[[_where(row, tables.keys), row["covered"], row["overlapped_n"]] for row in rows],
                hovertemplate="%{y:.3f} at %{x:.1f} %, %{customdata[0]}<br>covered %{customdata[1]}, "
                "n = %{customdata[2]} launches",
                name=name,
                mode="markers",
                marker={"size": 8, **_marker(number)},
            )
    figure.update_layout(height=460)
    figure.update_xaxes(range=[-4, 104])
    _line_at_1(figure)
    groups = "0 %, up to 30 %, up to 60 %, up to 90 %, and 90 % or more"
    return (
        "Slowdown by overlap",
        f"Each point is one kernel family on one rank. Its launches are grouped by how much of their time "
        f"overlaps communication ({groups}) and weighted by time. {_INTERVALS}",
        figure,
    )


def _by_family(tables: SlowdownTables) -> Chart:
    beside = [row for row in tables.by_overlap if row["covered"] == COVERED]
    names = [name for name in (ALL_FAMILIES, *FAMILIES) if any(row["family"] == name for row in beside)]
    launches = {name: sum(row["overlapped_n"] for row in beside if row["family"] == name) for name in names}
    texts = {name: f"{name}<br>n = {launches[name]:,}" for name in names}
    series: dict[str, list[Row]] = {}
    for row in beside:
        series.setdefault(_point(row, tables.keys) or f"rank {row['rank']}", []).append(row)
    figure = new_figure("", _SLOWDOWN)
    for number, (name, rows) in enumerate(list(series.items())[:MOST_RANKS]):
        figure.add_scatter(
            x=[texts[row["family"]] for row in rows],
            y=[row["slowdown"] for row in rows],
            error_y=_bars(rows),
            customdata=[[_where(row, tables.keys), row["overlapped_n"]] for row in rows],
            hovertemplate="%{y:.3f}, %{customdata[0]}, n = %{customdata[1]} launches<extra></extra>",
            name=escape(name),
            mode="markers",
            marker={"size": 8, "color": colour(number), "symbol": _SYMBOLS[number // len(COLOURS)]},
            offsetgroup=str(number),
        )
    figure.update_layout(scattermode="group")
    # With grouped points plotly would start the axis at 0.
    figure.update_yaxes(range=_range(beside))
    figure.update_xaxes(categoryorder="array", categoryarray=list(texts.values()))
    _line_at_1(figure)
    drawn = f" Only the first {MOST_RANKS} of {len(series)} are drawn." if len(series) > MOST_RANKS else ""
    return (
        "Slowdown by kernel family",
        "Launches that overlap communication for at least 90 % of their time, weighted by time; n is their "
        f"number on all ranks. {_INTERVALS}{drawn}",
        figure,
    )


def _kernels(tables: SlowdownTables) -> Chart:
    rows = [row for row in tables.pairs if row["name"] not in (TOTAL, CONTROL)]
    lost: dict[str, float] = {}
    for row in rows:
        name = row["name"] or "(no name)"
        cost = (row["slowdown"] - 1) * row["alone_med_ns"] * row["overlapped_n"]
        lost[name] = lost.get(name, 0.0) + cost
    names = sorted(lost, key=lambda name: -lost[name])[:TOP_KERNELS]
    place = {name: i for i, name in enumerate(names)}
    drawn = [row for row in rows if (row["name"] or "(no name)") in place]
    figure = new_figure(_SLOWDOWN, "")
    for number, name in enumerate(FAMILIES, start=1):
        own = [row for row in drawn if family(row["name"]) == name]
        if own:
            figure.add_scatter(
                y=[place[row["name"] or "(no name)"] for row in own],
                x=[row["slowdown"] for row in own],
                error_x=_bars(own),
                customdata=[
                    [
                        escape((row["name"] or "(no name)")[:160]),
                        f"grid {row['grid']}, block {row['block']}",
                        _where(row, tables.keys),
                        row["overlapped_n"],
                        row["overlap_pct"],
                    ]
                    for row in own
                ],
                hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>%{x:.3f}, %{customdata[2]}, "
                "n = %{customdata[3]} launches<br>%{customdata[4]:.1f} % of its time overlaps"
                "<extra></extra>",
                name=name,
                mode="markers",
                marker={"size": 8, **_marker(number)},
            )
    shown = labels(names, LABEL)
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(place.values()),
        ticktext=[escape(shown[name]) for name in names],
    )
    figure.update_layout(height=150 + 30 * len(names))
    figure.add_vline(x=1, line={"width": 1, "dash": "dot"})
    title = "Kernel slowdown while communication runs"
    of = f"The {len(names)} of {counted(len(lost), 'kernel')} that lose the most time"
    return title, f"{of}, with one point per rank, grid and block. {_INTERVALS}", figure


def _points(tables: SlowdownTables) -> Chart:
    rows = tables.by_point
    texts = [escape(", ".join(row[key] for key in tables.keys)) for row in rows]
    steps = [row["step_p50_ns"] for row in rows]
    longest = max((row[key] for row in rows for key in _STEP_TIMES if row[key] is not None), default=1)
    size, unit = time_unit(longest)
    titles = (f"Step time ({unit})", "Exposed communication (%)", "Slowdown within the runs")
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=titles)
    figure.update_layout(new_figure("", "").layout)
    figure.add_scatter(
        x=texts,
        y=_scaled(steps, size),
        error_y={
            "symmetric": False,
            "array": _scaled(_minus([row["step_max_ns"] for row in rows], steps), size),
            "arrayminus": _scaled(_minus(steps, [row["step_min_ns"] for row in rows]), size),
            "thickness": 1,
        },
        name="with communication",
        mode="lines+markers",
        line={"color": COLOURS[0]},
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=texts,
        y=_scaled([row["alone_step_p50_ns"] for row in rows], size),
        name="without communication",
        mode="lines+markers",
        line={"color": COLOURS[1], "dash": "dot"},
        row=1,
        col=1,
    )
    for place, key in ((2, "exposed_comm_pct"), (3, "slowdown_within")):
        figure.add_scatter(
            x=texts,
            y=[row[key] for row in rows],
            mode="lines+markers",
            line={"color": COLOURS[0]},
            showlegend=False,
            row=place,
            col=1,
        )
    figure.update_xaxes(type="category", automargin=True)
    figure.update_yaxes(**PLAIN_NUMBERS)
    figure.update_xaxes(title=escape(", ".join(tables.keys)), row=3, col=1)
    figure.update_layout(height=680, margin_t=60)
    runs = min(row["runs"] for row in rows)
    note = (
        f"Each point is the median over its runs (n = {runs} per side); bars extend to the fastest and the "
        "slowest run."
    )
    return "Points of the sweep", note, figure


def _bars(rows: Sequence[Row]) -> dict[str, object]:
    """Return error bars for the intervals of the rows; a row without an interval has no bar."""
    return {
        "symmetric": False,
        "array": _minus([row["ci_high"] for row in rows], [row["slowdown"] for row in rows]),
        "arrayminus": _minus([row["slowdown"] for row in rows], [row["ci_low"] for row in rows]),
        "thickness": 1,
    }


def _range(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the range of an axis that shows 1 and the slowdowns of the rows."""
    shown = [1.0]
    for key in ("slowdown", "ci_low", "ci_high"):
        shown += [row[key] for row in rows if row[key] is not None]
    space = 0.05 * (max(shown) - min(shown)) or 0.05
    return min(shown) - space, max(shown) + space


def _minus(values: Sequence[float | None], others: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or b is None else a - b for a, b in zip(values, others, strict=True)]


def _scaled(values: Sequence[float | None], size: int) -> list[float | None]:
    return [None if value is None else value / size for value in values]


def _where(row: Row, keys: Sequence[str]) -> str:
    """Return the rank of a row and its point in the sweep."""
    return escape(" at ".join(filter(None, (f"rank {row['rank']}", _point(row, keys)))))


def _marker(number: int) -> dict[str, str]:
    """Return the colour and shape of a family; the first, all families together, is black."""
    chosen = (COLOURS[-1], *COLOURS[:-1])
    return {"color": chosen[number % len(chosen)], "symbol": _SYMBOLS[number // len(chosen)]}


def _line_at_1(figure: go.Figure) -> None:
    figure.add_hline(y=1, line={"width": 1, "dash": "dot"})


def _point(row: Row, keys: Sequence[str]) -> str:
    """Return the point of the sweep that a row belongs to, empty without a sweep."""
    return label({key: row[key] for key in keys})
