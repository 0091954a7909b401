"""The comparison of two sides of runs as one HTML file, with the account of a step on both sides."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from hpcprof.analysis.comparison.step_difference import COMMUNICATION, STEP, WAITING
from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.outcome import AnalysisTable, Row
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.common.units import format_ns, signed_ns
from hpcprof.report.account import IDLE_CAUSES
from hpcprof.report.comparison import Comparison, in_a_sentence
from hpcprof.report.formatting import format_value, metric_label
from hpcprof.report.page.first_screen import Slice, patterned
from hpcprof.report.page.page import render_page
from hpcprof.report.page.page_tables import PageTable, page_table
from hpcprof.report.terminal import reasons
from hpcprof.results.across.across_runs import DIFFERENCES
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run

_PARTS = (
    ("waterfall", "Where the difference comes from"),
    ("timeline-a", "Timeline of A"),
    ("timeline-b", "Timeline of B"),
)


def html_comparison(
    compared: Comparison, store: Store, template: str = "report/comparison.html.j2", **values: object
) -> str:
    """Return a comparison as HTML: accounts, waterfall, the timelines of the first runs, and all tables.

    The timelines move together, with their median steps below each other. ``template`` extends that of a
    comparison, and ``values`` are what else it needs.
    """
    total = compared.waterfall
    conclusion = compared.conclusion()
    data: dict[str, object] = {}
    if total is not None:
        parts = [{"name": name, "ns": change} for name, change in total.parts.items()]
        data["waterfall"] = {"parts": parts, "from": total.a_ns, "to": total.b_ns, "names": ["A", "B"]}
    for side, runs in (("a", compared.baseline), ("b", compared.candidate)):
        if (timeline := _timeline(runs[0], store)) is not None:
            data[f"timeline-{side}"] = timeline
    accounts, parts_of_step = side_accounts(
        *(compared.differences[name].rows for name in ("step_difference", "idle_difference"))
    )
    differences = [compared.differences[name] for name in DIFFERENCES]
    return render_page(
        template,
        [
            metrics_table(compared),
            *(_table(ACROSS_RUNS[name], table) for name, table in zip(DIFFERENCES, differences, strict=True)),
        ],
        data,
        _PARTS,
        None,
        sentence=f"{compared.other_clocks()}{in_a_sentence(total)}"
        if total
        else conclusion or "Comparison of runs",
        names=[[run.id for run in side] for side in (compared.baseline, compared.candidate)],
        steps=compared.steps,
        accounts=accounts,
        account_parts=parts_of_step,
        differing=compared.differing,
        remarks=[
            *([conclusion] if total and conclusion else []),
            *reasons(compared.differences[DIFFERENCES[0]]),
            *dict.fromkeys(loss for table in (compared.table, *differences) for loss in table.losses),
        ],
        **values,
    )


def _timeline(run: Run, store: Store) -> dict[str, Any] | None:
    if not store.exists() or not store.profiles(run.id):
        return None
    from hpcprof.report.page.timeline_data import timeline_data

    return timeline_data(run, store)


def _table(analysis: Analysis, table: AnalysisTable) -> PageTable:
    pointer = f"hpcprof report RUN --analysis {analysis.name} --against RUN"
    return page_table(analysis.name, analysis.title, analysis.columns, table.rows, pointer, reasons(table))


def metrics_table(compared: Comparison) -> PageTable:
    """Return the table of the metrics, whose sides have the unit of their metric."""
    table = _table(compared.analysis, compared.table)
    for column in table.data["columns"] if table.data else ():
        if column["name"] == "metric":
            column["values"] = [metric_label(row["metric"]) for row in compared.table.rows]
        elif column["name"] in ("a", "b"):
            values = zip(compared.table.rows, column["values"], strict=False)
            column["texts"] = [format_value(row["metric"], value) for row, value in values]
    return table


_PART_COLOURS = {
    "compute": "compute",
    COMMUNICATION: "exposed-comm",
    WAITING: "wait",
    "exposed copies": "copy",
    "idle": "idle",
}
"""The colours of the parts of ``step_difference``; any other part is uneven."""


class SideBar(msgspec.Struct, frozen=True):
    """The bar of a side; ``width`` is its length in percent of the longer one."""

    name: str
    time: str
    slices: list[Slice]
    label: str
    width: float


class SidePart(msgspec.Struct, frozen=True):
    """A part with its time on both sides, as text."""

    colour: str
    name: str
    a: str
    b: str
    difference: str


class _Part(NamedTuple):
    name: str
    colour: str
    sides: tuple[int, int]


def side_accounts(steps: Sequence[Row], idle: Sequence[Row]) -> tuple[list[SideBar], list[SidePart]]:
    """Return the bars of both sides and their parts; the parts add up to the last bar, the step.

    ``steps`` are the rows of ``step_difference``; without any, there are no bars. ``idle`` are the rows
    of ``idle_difference``: the idle time of each side by cause.
    """
    whole = next((row for row in steps if row["part"] == STEP), None)
    if whole is None:
        return [], []
    parts: list[_Part] = []
    for row in steps:
        if row["part"] == "idle":
            parts += _idle_parts(_sides(row), idle)
        elif row is not whole:
            parts.append(_Part(row["part"], _PART_COLOURS.get(row["part"], "uneven"), _sides(row)))
    parts = [part for part in parts if any(part.sides)]
    classes = [*patterned(part.colour for part in parts)]
    # A part below zero has no length; so the others may be longer than the step.
    lengths = [sum(max(part.sides[side], 0) for part in parts) for side in (0, 1)]
    bars = [
        _bar(
            name, _sides(whole)[side], [(part, part.sides[side]) for part in parts], classes, max(*lengths, 1)
        )
        for side, name in enumerate(("A", "B"))
    ]
    parts.append(_Part(STEP, "", _sides(whole)))
    return bars, [_row(part, colour) for part, colour in zip(parts, [*classes, ""], strict=True)]


def _sides(row: Row) -> tuple[int, int]:
    """Return the times of a row in A and in B, in ns."""
    return row["a_ns"], row["b_ns"]


def _idle_parts(sides: tuple[int, int], rows: Iterable[Row]) -> list[_Part]:
    """Divide the idle time of both sides as all their idle time is divided by cause, to the nanosecond."""
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        a, b = sums[row["cause"]]
        sums[row["cause"]] = a + row["a_ns"], b + row["b_ns"]
    causes = sorted(sums, key=lambda cause: -max(sums[cause]))
    shares = [_shares(sides[side], [sums[cause][side] for cause in causes]) for side in (0, 1)]
    if not causes or None in shares:
        return [_Part("idle", "idle", sides)]
    return [
        _Part(IDLE_CAUSES.get(cause, f"idle, {cause}"), "idle", (a, b))
        for cause, a, b in zip(causes, *(side or () for side in shares), strict=True)
    ]


def _shares(total: int, weights: Sequence[int]) -> list[int] | None:
    """Divide a whole number by weights, so that the parts add up to it; None if time has no weight."""
    sum_of_weights = sum(weights)
    if not sum_of_weights:
        return None if total else [0] * len(weights)
    ends = [round(total * sum(weights[:place]) / sum_of_weights) for place in range(len(weights) + 1)]
    return [high - low for low, high in pairwise(ends)]


def _bar(
    name: str, step_ns: int, parts: Sequence[tuple[_Part, int]], classes: Sequence[str], longest: int
) -> SideBar:
    drawn = [(part, ns, colour) for (part, ns), colour in zip(parts, classes, strict=True) if ns > 0]
    length = sum(ns for _, ns, _ in drawn)
    slices = [
        Slice(colour, part.name, format_ns(ns), "", round(100 * ns / length, 3), "")
        for part, ns, colour in drawn
    ]
    label = ", ".join(f"{part.name} {part.time}" for part in slices)
    return SideBar(name, format_ns(step_ns), slices, label, round(100 * length / longest, 3))


def _row(part: _Part, colour: str) -> SidePart:
    a, b = part.sides
    return SidePart(colour, part.name, format_ns(a), format_ns(b), signed_ns(b - a))
