"""The history of a metric as one HTML file."""

from collections.abc import Callable, Sequence
from typing import Any

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.common.units import counted, visible
from hpcprof.report.formatting import format_value, metric_label
from hpcprof.report.history import COLUMNS, MAX_PROBABILITY, in_percent, in_words, plain_rows, told_apart
from hpcprof.report.page.page import render_page
from hpcprof.report.page.page_tables import PageTable, page_table
from hpcprof.results.across.history import History, HistoryPoint

_NUMBER_COLUMNS = ("value", "change_probability", "change_pct")
_COLUMNS = [Column(name, Kind.FLOAT if name in _NUMBER_COLUMNS else Kind.TEXT) for name in COLUMNS]


def html_history(
    series: Sequence[History],
    skipped: Sequence[str] = (),
    template: str = "report/history.html.j2",
    run_page: Callable[[str], str] | None = None,
    **values: object,
) -> str:
    """Return histories of a metric as HTML, each with a chart and a table.

    ``skipped`` has a sentence for each run that cannot be read. ``template`` extends that of the histories.
    ``run_page`` returns the address of the page of a run, by its id; without it, runs are no links.
    """
    charts = history_charts(series)
    several = [history for history in series if len(history.points) > 1] or series[:1]
    tables = [
        _table([history], history.setup, f"history-{number}", run_page)
        for number, history in enumerate(several, 1)
    ]
    if single := [history for history in series if history not in several]:
        tables.append(_table(single, "Series of one run", "history-single", run_page))
    return render_page(
        template,
        tables,
        {"history": charts} if charts else {},
        (("history", "History"),),
        None,
        label=visible(metric_label(series[0].metric)),
        **{"metric": visible(series[0].metric), **values},
        sentences=[
            *filter(None, [told_apart(series)]),
            *(s for history in several for s in in_words(history)),
        ],
        skipped=skipped,
    )


def history_charts(series: Sequence[History]) -> list[dict[str, Any]]:
    """Return the data of a chart for the longest history, and for each other one of several runs."""
    dated = [(history, [point for point in history.points if point.time]) for history in series]
    return [
        _chart(history, points)
        for place, (history, points) in enumerate(dated)
        if len(points) > (0 if place == 0 else 1)
    ]


def _chart(history: History, points: Sequence[HistoryPoint]) -> dict[str, Any]:
    omitted = len(history.points) - len(points)
    return {
        "title": visible(f"{metric_label(history.metric)}: {history.setup}"),
        "note": f"{counted(omitted, 'run')} of unknown time left out" if omitted else "",
        "unit": history.metric.rpartition("_")[2],
        "points": [
            {"time": _seconds(row), "value": row.value, "label": " ".join(map(visible, (row.run, *row.tags)))}
            for row in points
        ],
        "changes": [
            {
                "time": _seconds(row),
                "probability": min(row.change_probability, MAX_PROBABILITY),
                "label": f"{row.change_pct:+.1f} %",
            }
            for row in points
            if row.change_probability is not None
        ],
    }


def _seconds(point: HistoryPoint) -> float:
    assert point.time is not None
    return point.time.timestamp()


def _table(
    histories: Sequence[History], title: str, name: str, run_page: Callable[[str], str] | None
) -> PageTable:
    """Return the runs of histories, the newest first, with the value in the unit of its metric."""
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in reversed(plain_rows(histories))]
    # The page has one metric, and the heading of most tables is the setup.
    omitted = {"metric", "setup"} if title == histories[0].setup else {"metric"}
    columns = [column for column in _COLUMNS if column.name not in omitted]
    table = page_table(name, visible(title), columns, rows, "hpcprof history --format csv")
    for column in table.data["columns"] if table.data else ():
        if column["name"] == "value":
            column["texts"] = [format_value(histories[0].metric, value) for value in column["values"]]
        elif column["name"] == "run" and run_page is not None:
            column["links"] = [run_page(str(row["run"])) for row in rows[: len(column["values"])]]
        elif column["name"] == "change_probability":
            column["texts"] = ["–" if value is None else in_percent(value) for value in column["values"]]
    return table
