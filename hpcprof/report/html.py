"""The report as one HTML file that works offline: plotly's script stands in it."""

from __future__ import annotations

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpcprof import __version__
from hpcprof.analysis.catalogue import ANALYSES, Kind
from hpcprof.errors import HpcprofError
from hpcprof.paths import packaged
from hpcprof.report.basis import basis
from hpcprof.report.contents import Contents
from hpcprof.report.terminal import reasons
from hpcprof.units import format_value, heading

_TABLE_ROWS = 100


def html_report(contents: Contents) -> str:
    """Return the report of a run as HTML.

    Raises
    ------
    HpcprofError
        If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs

        from hpcprof.report.charts import charts
    except ImportError:
        raise HpcprofError("--html needs plotly: pip install 'hpcprof[html]'.") from None
    environment = Environment(
        loader=FileSystemLoader(packaged("templates")), autoescape=True, undefined=StrictUndefined
    )
    # Plotly's own output is the only markup that is trusted; every text of a profile is escaped.
    drawn = [
        (title, note, Markup(figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG)))
        for title, note, figure in charts(contents)
    ]
    return environment.get_template("report/report.html.j2").render(
        contents=contents,
        charts=drawn,
        tables=[_table(name, contents) for name in contents.shown()],
        plotly_script=Markup(get_plotlyjs()),
        version=__version__,
    )


_CONFIG = {"displaylogo": False, "responsive": True}


def _table(name: str, contents: Contents) -> dict[str, object]:
    analysis, stored = ANALYSES[name], contents.analyses[name]
    columns = [(c.name, heading(c.name), c.kind is Kind.TEXT) for c in analysis.columns]
    return {
        "name": name,
        "title": analysis.title,
        "columns": columns,
        "rows": [[format_value(key, row[key]) for key, _, _ in columns] for row in stored.rows[:_TABLE_ROWS]],
        "hidden": max(0, len(stored.rows) - _TABLE_ROWS),
        "notes": [line for line in (basis(name, contents.analyses), *reasons(stored)) if line],
    }
