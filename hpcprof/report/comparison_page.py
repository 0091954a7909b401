"""The comparison of two sides of runs as one HTML file."""

from __future__ import annotations

from typing import Any

from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.report.comparison import Comparison
from hpcprof.report.difference import in_a_sentence
from hpcprof.report.formatting import format_value, header
from hpcprof.report.page.page import render_page
from hpcprof.report.page.page_tables import PageTable, page_table
from hpcprof.report.page.side_accounts import side_accounts
from hpcprof.report.terminal import reasons
from hpcprof.results.across_runs import DIFFERENCES
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.store.store import Store
from hpcprof.submit.runs.directory import Run

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
    found = compared.waterfall
    conclusion = compared.conclusion()
    data: dict[str, object] = {}
    if found is not None:
        parts = [{"name": name, "ns": change} for name, change in found.parts.items()]
        data["waterfall"] = {"parts": parts, "from": found.a_ns, "to": found.b_ns, "names": ["A", "B"]}
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
            _metrics(compared),
            *(_table(ACROSS_RUNS[name], table) for name, table in zip(DIFFERENCES, differences, strict=True)),
        ],
        data,
        _PARTS,
        None,
        sentence=in_a_sentence(found) if found else conclusion or "Comparison of runs",
        names=[[run.id for run in side] for side in (compared.baseline, compared.candidate)],
        accounts=accounts,
        account_parts=parts_of_step,
        differing=compared.differing,
        remarks=[
            *([conclusion] if found and conclusion else []),
            *reasons(compared.differences[DIFFERENCES[0]]),
            *dict.fromkeys(loss for table in (compared.table, *differences) for loss in table.losses),
        ],
        **values,
    )


def _timeline(run: Run, store: Store) -> dict[str, Any] | None:
    """Return the timeline of a run; None if it has no profiles in the store."""
    if not store.exists() or not store.profiles(run.id):
        return None
    from hpcprof.report.page.timeline_data import timeline_data

    return timeline_data(run, store)


def _table(analysis: Analysis, table: AnalysisTable) -> PageTable:
    headers = [header(column.name) for column in analysis.columns]
    rest = f"hpcprof report RUN --analysis {analysis.name} --against RUN"
    return page_table(
        analysis.name, analysis.title, analysis.columns, headers, table.rows, rest, reasons(table)
    )


def _metrics(compared: Comparison) -> PageTable:
    """Return the table of the metrics, whose sides have the unit of their metric."""
    found = _table(compared.analysis, compared.table)
    for column in found.data["columns"] if found.data else ():
        if column["name"] in ("a", "b"):
            values = zip(compared.table.rows, column["values"], strict=False)
            column["texts"] = [format_value(row["metric"], value) for row, value in values]
    return found
