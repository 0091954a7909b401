"""The charts of the HTML report.

Plotly reads HTML tags in every text it draws, and C++ names are full of angle brackets, so each name
is escaped before it gets there.
"""

from __future__ import annotations

from html import escape
from typing import Any

import plotly.graph_objects as go

from hpcprof.common.units import counted
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.contents import Contents
from hpcprof.results.analysis_table import Row
from hpcprof.workloads.schema import RankResult, summarize

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_PARTS = (
    ("compute", "compute", "#0072B2"),
    ("exposed_comm", "exposed communication", "#E69F00"),
    ("exposed_mem", "exposed memory", "#56B4E9"),
    ("idle", "idle", "#BBBBBB"),
)
MOST_RANKS = 16
TOP_KERNELS = 12
LABEL = 34

Chart = tuple[str, str, go.Figure]
"""Title, note and figure."""


def charts(contents: Contents) -> list[Chart]:
    """Return each chart that the run has data for, as (title, note, figure)."""
    names = ("step_times", "steps", "phases", "breakdown", "kernels")
    rows = {name: contents.analyses[name].rows for name in names if name in contents.analyses}
    made = []
    if contents.results:
        made += [_modes(point) for point in contents.results[0].every_point() if point.modes]
    if rows.get("step_times"):
        made.append(_steps(rows["step_times"], rows["steps"]))
    if rows.get("phases"):
        made.append(_phases(rows["phases"]))
    if rows.get("breakdown"):
        made.append(_breakdown(rows["breakdown"]))
    if rows.get("kernels"):
        made.append(_kernels(rows["kernels"]))
    return made


def _modes(result: RankResult) -> Chart:
    figure = new_figure("mode", "time of a step, ms")
    names = [escape(name) for name in result.modes]
    steps = [summarize(mode.latency_ns) for mode in result.modes.values()]
    bound = result.bound_ns
    figure.add_bar(
        x=names,
        y=[step.p50_ns / 1e6 for step in steps],
        error_y={
            "symmetric": False,
            "array": [(step.p95_ns - step.p50_ns) / 1e6 for step in steps],
            "arrayminus": [0] * len(steps),
            "thickness": 1,
        },
        text=[f"{100 * bound / step.p50_ns:.1f} % of the bound" for step in steps] if bound else None,
        name="step",
        marker_color=COLOURS[0],
    )
    note = f"Median, whiskers up to the 95th percentile; n = {steps[0].n} steps of each mode, in turns."
    if bound:
        figure.add_scatter(
            x=names,
            y=[bound / 1e6] * len(names),
            name="perfect overlap",
            mode="lines+markers",
            line={"width": 2, "color": COLOURS[5], "dash": "dot"},
        )
        note += " Perfect overlap is the larger of the matmuls and the collectives, measured alone."
    title = "Modes against perfect overlap"
    return f"{title}, {result.point}" if result.point else title, note, figure


def _steps(of_ranks: list[Row], over_ranks: list[Row]) -> Chart:
    figure = new_figure("step", "time of the step, ms")
    ranks = sorted({row["rank"] for row in of_ranks})
    for rank in ranks[:MOST_RANKS]:
        mine = [row for row in of_ranks if row["rank"] == rank]
        figure.add_scatter(
            x=[r["step"] for r in mine],
            y=[r["latency_ns"] / 1e6 for r in mine],
            name=f"rank {rank}",
            mode="lines+markers",
            line={"width": 1, "color": colour(rank)},
            marker={"size": 4},
        )
    figure.add_scatter(
        x=[r["step"] for r in over_ranks],
        y=[r["max_ns"] / 1e6 for r in over_ranks],
        name="slowest rank",
        mode="lines",
        line={"width": 2.5, "color": "#000000", "dash": "dot"},
    )
    figure.update_yaxes(rangemode="tozero")
    note = (
        f"n = {len(over_ranks)} steps on {ranks_drawn(ranks)}. A step's latency is that of its slowest rank."
    )
    return "Steps", note, figure


def _phases(rows: list[Row]) -> Chart:
    figure = new_figure("phase", "time in a step, ms")
    ranks = sorted({row["rank"] for row in rows})
    for rank in ranks[:MOST_RANKS]:
        mine = [row for row in rows if row["rank"] == rank]
        figure.add_bar(
            x=[escape(r["phase"]) for r in mine],
            y=[r["p50_ns"] / 1e6 for r in mine],
            error_y={
                "symmetric": False,
                "array": [(r["p95_ns"] - r["p50_ns"]) / 1e6 for r in mine],
                "arrayminus": [0] * len(mine),
                "thickness": 1,
            },
            name=f"rank {rank}",
            marker_color=colour(rank),
        )
    steps = min(row["steps"] for row in rows)
    note = f"Median, whiskers up to the 95th percentile; n = {steps} steps on {ranks_drawn(ranks)}."
    return "Phases", note, figure


def _breakdown(rows: list[Row]) -> Chart:
    figure = new_figure("time on the GPU, ms", "")
    for part, name, colour in _PARTS:
        figure.add_bar(
            y=[f"rank {r['rank']}" for r in rows],
            x=[r[f"{part}_ns"] / 1e6 for r in rows],
            customdata=[r[f"{part}_pct"] for r in rows],
            hovertemplate="%{y}: %{x:.3f} ms, %{customdata:.2f} %",
            name=name,
            orientation="h",
            marker_color=colour,
        )
    figure.update_layout(barmode="stack", height=150 + 34 * len(rows), legend_traceorder="normal")
    figure.update_yaxes(autorange="reversed", type="category")
    note = "The four parts are exclusive and add up to the span from the first to the last GPU operation."
    return "Where the GPU's time goes", note, figure


def _kernels(rows: list[Row]) -> Chart:
    totals: dict[str, int] = {}
    instances: dict[str, int] = {}
    for row in rows:
        name = row["name"] or "(no name)"
        totals[name] = totals.get(name, 0) + row["total_ns"]
        instances[name] = instances.get(name, 0) + row["instances"]
    names = sorted(totals, key=totals.__getitem__, reverse=True)[:TOP_KERNELS]
    figure = new_figure("total over ranks, ms", "")
    figure.add_bar(
        y=list(range(len(names))),
        x=[totals[n] / 1e6 for n in names],
        customdata=[[escape(n[:160]), instances[n]] for n in names],
        hovertemplate="%{customdata[0]}<br>%{x:.3f} ms, %{customdata[1]} instances<extra></extra>",
        orientation="h",
        marker_color=COLOURS[0],
    )
    shown = labels(names, LABEL)
    texts = [escape(shown[name]) for name in names]
    figure.update_yaxes(autorange="reversed", tickvals=list(range(len(names))), ticktext=texts)
    figure.update_layout(height=130 + 28 * len(names), showlegend=False)
    ranks = sorted({row["rank"] for row in rows})
    note = f"The {len(names)} kernels with the most time, of {len(totals)}, summed over {ranks_drawn(ranks)}."
    return "Top kernels", note, figure


def new_figure(x: str, y: str) -> go.Figure:
    """Return an empty chart in the report's style, with the titles of its axes."""
    layout: dict[str, Any] = {
        "template": "plotly_white",
        "height": 380,
        "margin": {"l": 10, "r": 10, "t": 34, "b": 10},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }
    figure = go.Figure(layout=layout)
    figure.update_xaxes(title=x, automargin=True)
    figure.update_yaxes(title=y, automargin=True)
    return figure


def colour(rank: int) -> str:
    """Return the colour of a rank, or of whatever else is numbered."""
    return COLOURS[rank % len(COLOURS)]


def ranks_drawn(ranks: list[int]) -> str:
    """Return how many ranks a chart is of, and how many of them are drawn."""
    drawn = f", the first {MOST_RANKS} drawn" if len(ranks) > MOST_RANKS else ""
    return f"{counted(len(ranks), 'rank')}{drawn}"
