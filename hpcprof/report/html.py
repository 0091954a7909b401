"""The report as one HTML file, which works offline because it contains plotly's script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common import __version__
from hpcprof.common.errors import HpcprofError
from hpcprof.common.paths import packaged
from hpcprof.common.units import counted
from hpcprof.report.contents import Contents, sample_sizes
from hpcprof.report.explanation import HIDDEN, written
from hpcprof.report.facts import facts
from hpcprof.report.formatting import cell, header
from hpcprof.report.terminal import FAILURES, remarks
from hpcprof.results.analysis_table import Row

if TYPE_CHECKING:
    from hpcprof.report.charts import Chart
    from hpcprof.study.slowdown_tables import SlowdownTables, StudyTable

_TABLE_ROWS = 100
_CONFIG = {"displaylogo": False, "responsive": True}


@dataclass(frozen=True)
class _PageTable:
    """A table of the page: its headers, each with whether its column is text, and its cells.

    ``hidden`` names the rows left out, and where they are.
    """

    name: str
    title: str
    headers: list[tuple[str, bool]]
    rows: list[list[str]]
    hidden: str
    notes: Sequence[str]


def html_report(contents: Contents) -> str:
    """Return the report of a run as HTML.

    Raises
    ------
    HpcprofError
        If plotly is not installed.
    """
    explanation = contents.explanation
    with _plotly():
        from hpcprof.report.charts import charts

        return _page(
            "report/report.html.j2",
            charts(contents),
            [_analysis_table(name, contents) for name in contents.shown()],
            contents=contents,
            facts=facts(contents, findings=explanation is None),
            explained=written(explanation) if explanation else None,
            hidden_title=HIDDEN,
            failures=contents.failures[:FAILURES],
        )


def html_study(tables: SlowdownTables) -> str:
    """Return the tables and charts of a slowdown study as HTML.

    Raises
    ------
    HpcprofError
        If plotly is not installed.
    """
    with _plotly():
        from hpcprof.report.study_charts import study_charts

        return _page(
            "report/study.html.j2",
            study_charts(tables),
            [_study_table(part, tables.keys) for part in tables.parts()],
            study=tables,
        )


@contextmanager
def _plotly() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise HpcprofError("the HTML page needs plotly: pip install 'hpcprof[html]'.") from None


def _page(template: str, charts: Sequence[Chart], tables: Sequence[_PageTable], **values: object) -> str:
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(packaged("templates")), autoescape=True, undefined=StrictUndefined
    )
    # Only plotly's own output is trusted markup; every text of a profile is escaped.
    drawn = [
        (title, note, Markup(figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG)))
        for title, note, figure in charts
    ]
    return environment.get_template(template).render(
        charts=drawn,
        tables=tables,
        plotly_script=Markup(get_plotlyjs()),
        version=__version__,
        **values,
    )


def _analysis_table(name: str, contents: Contents) -> _PageTable:
    analysis, stored = ANALYSES[name], contents.analyses[name]
    notes = [line for line in (sample_sizes(name, contents.analyses), *remarks(stored)) if line]
    headers = [header(column.name) for column in analysis.columns]
    return _page_table(
        name, analysis.title, analysis.columns, headers, stored.rows, contents.in_full(name), notes
    )


def _study_table(part: StudyTable, keys: Sequence[str]) -> _PageTable:
    """Lay out a table of a study; the parameters of its sweep, ``keys``, keep their names."""
    headers = [column.name if column.name in keys else header(column.name) for column in part.columns]
    rest = f"see {part.name}.csv in the folder of the study"
    return _page_table(part.name, part.title, part.columns, headers, part.rows, rest)


def _page_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    headers: Sequence[str],
    rows: Sequence[Row],
    rest: str,
    notes: Sequence[str] = (),
) -> _PageTable:
    hidden = max(0, len(rows) - _TABLE_ROWS)
    return _PageTable(
        name,
        title,
        headers=[(text, column.kind is Kind.TEXT) for text, column in zip(headers, columns, strict=True)],
        rows=[[cell(column.name, row[column.name]) for column in columns] for row in rows[:_TABLE_ROWS]],
        hidden=f"{counted(hidden, 'more row')}: {rest}" if hidden else "",
        notes=notes,
    )
