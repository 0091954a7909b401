"""The charts of the HTML report.

Plotly interprets HTML tags in every text that it draws, and C++ names are full of angle brackets, so each
name is escaped first.
"""

from __future__ import annotations

from html import escape
from typing import Any

import plotly.graph_objects as go

from hpcprof.common.units import counted, time_unit
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.contents import Contents
from hpcprof.results.analysis_table import Row
from hpcprof.workloads.schema import RankResult, summarize

# The palette of Okabe and Ito, whose colours remain distinct for colour-blind readers.
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
_TICKS = 12
PLAIN_NUMBERS = {"exponentformat": "none", "separatethousands": True}
"""For axes: 5,000 instead of 5k, which next to a unit reads as another unit."""

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


# Results of earlier versions and of profiled runs have no parts.
_BOUND = {
    True: "the fastest matmuls and of the bytes over the links, each measured alone in turns with the modes",
    False: "the serial mode's matmuls and collectives",
}


def _modes(result: RankResult) -> Chart:
    names = [escape(name) for name in result.modes]
    steps = [summarize(mode.latency_ns) for mode in result.modes.values()]
    bound = result.bound_ns
    size, unit = time_unit(max(step.p95_ns for step in steps))
    figure = new_figure("Mode", f"Step time ({unit})")
    figure.add_bar(
        x=names,
        y=[step.p50_ns / size for step in steps],
        error_y=_whiskers([step.p50_ns for step in steps], [step.p95_ns for step in steps], size),
        text=[f"{100 * bound / step.p50_ns:.1f} % of the bound" for step in steps] if bound else None,
        name="step",
        marker_color=COLOURS[0],
    )
    note = (
        "Median, with whiskers up to the 95th percentile. "
        f"n = {counted(steps[0].n, 'step')} per mode; the modes take turns."
    )
    if bound:
        figure.add_scatter(
            x=names,
            y=[bound / size] * len(names),
            name="bound",
            mode="lines+markers",
            line={"width": 2, "color": COLOURS[5], "dash": "dot"},
        )
        note += f" The bound is the larger of {_BOUND[bool(result.bound_parts_ns)]}."
    title = "Step time by mode"
    return f"{title}, {result.point}" if result.point else title, note, figure


def _steps(of_ranks: list[Row], over_ranks: list[Row]) -> Chart:
    size, unit = time_unit(max(row["max_ns"] for row in over_ranks))
    figure = new_figure("Step", f"Step time ({unit})")
    ranks = sorted({row["rank"] for row in of_ranks})
    for rank in ranks[:MOST_RANKS]:
        mine = [row for row in of_ranks if row["rank"] == rank]
        figure.add_scatter(
            x=[r["step"] for r in mine],
            y=[r["wall_ns"] / size for r in mine],
            name=f"rank {rank}",
            mode="lines+markers",
            line={"width": 1, "color": colour(rank)},
            marker={"size": 4},
        )
    figure.add_scatter(
        x=[r["step"] for r in over_ranks],
        y=[r["max_ns"] / size for r in over_ranks],
        name="slowest rank",
        mode="lines",
        line={"width": 2.5, "color": "#000000", "dash": "dot"},
    )
    figure.update_yaxes(rangemode="tozero")
    if len(over_ranks) <= _TICKS:
        # Between a few steps plotly would draw ticks at halves.
        figure.update_xaxes(dtick=1)
    note = (
        f"n = {counted(len(over_ranks), 'step')} on {ranks_drawn(ranks)}. "
        "The slowest rank of a step sets its time."
    )
    return "Step time", note, figure


def _phases(rows: list[Row]) -> Chart:
    size, unit = time_unit(max(row["p95_ns"] for row in rows))
    figure = new_figure("Phase", f"Time per step ({unit})")
    ranks = sorted({row["rank"] for row in rows})
    for rank in ranks[:MOST_RANKS]:
        mine = [row for row in rows if row["rank"] == rank]
        figure.add_bar(
            x=[escape(r["phase"]) for r in mine],
            y=[r["p50_ns"] / size for r in mine],
            error_y=_whiskers([r["p50_ns"] for r in mine], [r["p95_ns"] for r in mine], size),
            name=f"rank {rank}",
            marker_color=colour(rank),
        )
    steps = min(row["steps"] for row in rows)
    note = (
        "Median, with whiskers up to the 95th percentile. "
        f"n = {counted(steps, 'step')} on {ranks_drawn(ranks)}."
    )
    return "Phase time", note, figure


def _breakdown(rows: list[Row]) -> Chart:
    size, unit = time_unit(max(row["span_ns"] for row in rows))
    figure = new_figure(f"GPU time ({unit})", "")
    for part, name, colour in _PARTS:
        figure.add_bar(
            y=[f"rank {r['rank']}" for r in rows],
            x=[r[f"{part}_ns"] / size for r in rows],
            customdata=[r[f"{part}_pct"] for r in rows],
            hovertemplate=f"%{{y}}: %{{x:.3f}} {unit}, %{{customdata:.2f}} %",
            name=name,
            orientation="h",
            marker_color=colour,
        )
    figure.update_layout(barmode="stack", height=150 + 34 * len(rows), legend_traceorder="normal")
    figure.update_yaxes(autorange="reversed", type="category")
    note = "The parts do not overlap, and add up to the span from the first to the last GPU operation."
    return "GPU time breakdown", note, figure


def _kernels(rows: list[Row]) -> Chart:
    totals: dict[str, int] = {}
    instances: dict[str, int] = {}
    for row in rows:
        name = row["name"] or "(no name)"
        totals[name] = totals.get(name, 0) + row["total_ns"]
        instances[name] = instances.get(name, 0) + row["instances"]
    names = sorted(totals, key=totals.__getitem__, reverse=True)[:TOP_KERNELS]
    size, unit = time_unit(totals[names[0]])
    figure = new_figure(f"Total over all ranks ({unit})", "")
    figure.add_bar(
        y=list(range(len(names))),
        x=[totals[n] / size for n in names],
        customdata=[[escape(n[:160]), counted(instances[n], "instance")] for n in names],
        hovertemplate=f"%{{customdata[0]}}<br>%{{x:.3f}} {unit}, %{{customdata[1]}}<extra></extra>",
        orientation="h",
        marker_color=COLOURS[0],
    )
    shown = labels(names, LABEL)
    texts = [escape(shown[name]) for name in names]
    figure.update_yaxes(autorange="reversed", tickvals=list(range(len(names))), ticktext=texts)
    figure.update_layout(height=130 + 28 * len(names), showlegend=False)
    ranks = sorted({row["rank"] for row in rows})
    summed = f"summed over {counted(len(ranks), 'rank')}"
    every = f"All {counted(len(names), 'kernel')}" if len(names) > 1 else "The only kernel"
    most = f"The {len(names)} kernels with the longest total time, of {len(totals):,}"
    return "Kernel time by name", f"{every if len(names) == len(totals) else most}, {summed}.", figure


def _whiskers(medians: list[int], p95s: list[int], size: int) -> dict[str, Any]:
    """Return error bars from the median up to the 95th percentile; ``size`` is the unit in nanoseconds."""
    return {
        "symmetric": False,
        "array": [(p95 - median) / size for median, p95 in zip(medians, p95s, strict=True)],
        "arrayminus": [0] * len(medians),
        "thickness": 1,
    }


def new_figure(x: str, y: str) -> go.Figure:
    """Return an empty chart in the style of the report; ``x`` and ``y`` are the titles of its axes."""
    layout: dict[str, Any] = {
        "template": "plotly_white",
        "height": 380,
        "margin": {"l": 10, "r": 10, "t": 34, "b": 10},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }
    figure = go.Figure(layout=layout)
    figure.update_xaxes(title=x, automargin=True, **PLAIN_NUMBERS)
    figure.update_yaxes(title=y, automargin=True, **PLAIN_NUMBERS)
    return figure


def colour(rank: int) -> str:
    """Return the colour of a rank, or of another numbered series."""
    return COLOURS[rank % len(COLOURS)]


def ranks_drawn(ranks: list[int]) -> str:
    """Return the number of ranks behind a chart, and how many of them it draws."""
    drawn = f", of which the first {MOST_RANKS} are drawn" if len(ranks) > MOST_RANKS else ""
    return f"{counted(len(ranks), 'rank')}{drawn}"
