"""The report as one HTML file that works offline: plotly's script stands in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common import __version__
from hpcprof.common.errors import HpcprofError
from hpcprof.common.paths import packaged
from hpcprof.common.units import format_value, heading
from hpcprof.report.contents import Contents, sample_sizes
from hpcprof.report.facts import facts
from hpcprof.report.terminal import reasons
from hpcprof.results.analysis_table import Row

if TYPE_CHECKING:
    from hpcprof.report.charts import Chart
    from hpcprof.study.slowdown import SlowdownTables

_TABLE_ROWS = 100


def html_report(contents: Contents) -> str:
    """Return the report of a run as HTML.

    Raises
    ------
    HpcprofError
        If plotly is not installed.
    """
    with _plotly():
        from hpcprof.report.charts import charts

        return _page(
            "report/report.html.j2",
            charts(contents),
            [_analysis_table(name, contents) for name in contents.shown()],
            contents=contents,
            facts=facts(contents),
        )


def html_study(tables: SlowdownTables) -> str:
    """Return the tables of a study of slowdown as HTML, drawn.

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
            [
                _table(part.name, part.title, part.columns, part.rows, "in the CSV file of this name")
                for part in tables.parts()
            ],
            study=tables,
        )


@contextmanager
def _plotly() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise HpcprofError("the HTML page needs plotly: pip install 'hpcprof[html]'.") from None


def _page(template: str, charts: Sequence[Chart], tables: list[dict[str, object]], **values: object) -> str:
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(packaged("templates")), autoescape=True, undefined=StrictUndefined
    )
    # Plotly's own output is the only markup that is trusted; every text of a profile is escaped.
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


_CONFIG = {"displaylogo": False, "responsive": True}


def _analysis_table(name: str, contents: Contents) -> dict[str, object]:
    analysis, stored = ANALYSES[name], contents.analyses[name]
    notes = [line for line in (sample_sizes(name, contents.analyses), *reasons(stored)) if line]
    rest = f"hpcprof report --analysis {name}"
    return _table(name, analysis.title, analysis.columns, stored.rows, rest, notes)


def _table(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    rest: str,
    notes: Sequence[str] = (),
) -> dict[str, object]:
    """Lay out rows; ``rest`` says where those are that are too many."""
    headings = [(c.name, heading(c.name), c.kind is Kind.TEXT) for c in columns]
    return {
        "name": name,
        "title": title,
        "columns": headings,
        "rows": [[format_value(key, row[key]) for key, _, _ in headings] for row in rows[:_TABLE_ROWS]],
        "hidden": max(0, len(rows) - _TABLE_ROWS),
        "rest": rest,
        "notes": notes,
    }
