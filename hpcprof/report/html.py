"""The page of a study as one HTML file, which works offline because it contains plotly's script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpcprof.common import __version__
from hpcprof.common.errors import HpcprofError
from hpcprof.common.paths import packaged
from hpcprof.report.formatting import header
from hpcprof.report.page.page_tables import PageTable, page_table

if TYPE_CHECKING:
    from hpcprof.report.charts import Chart
    from hpcprof.study.slowdown_tables import SlowdownTables, StudyTable

_CONFIG = {"displaylogo": False, "responsive": True}


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


def _page(template: str, charts: Sequence[Chart], tables: Sequence[PageTable], **values: object) -> str:
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


def _study_table(part: StudyTable, keys: Sequence[str]) -> PageTable:
    """Lay out a table of a study; the parameters of its sweep, ``keys``, keep their names."""
    headers = [column.name if column.name in keys else header(column.name) for column in part.columns]
    rest = f"see {part.name}.csv in the folder of the study"
    return page_table(part.name, part.title, part.columns, headers, part.rows, rest)
