"""Context of the application's pages, and the kinds of their answers."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common import __version__
from hpcprof.report.contents import Contents, gather
from hpcprof.results.ask.tables import RunTables
from hpcprof.runs.directory import Run
from hpcprof.serve.catalogue import Catalogue
from hpcprof.serve.sql import SqlDesk
from hpcprof.serve.tiles import Tiles


class Served(msgspec.Struct, frozen=True):
    """The sources of the pages."""

    catalogue: Catalogue
    tiles: Tiles
    desk: SqlDesk
    templates: Environment

    def page(self, template: str, status: int = 200, **values: object) -> Response:
        """Return a page of a template in ``templates/serve``."""
        return as_html(
            self.templates.get_template(f"serve/{template}.html.j2").render(version=__version__, **values),
            status,
        )


def served(request: Request) -> Served:
    """Return the data of the application that serves a request."""
    state: Served = request.app.state.served
    return state


def reader_of(request: Request) -> str:
    """Return the name of a reader: that of the grant at a hub, else the address."""
    if grant := request.scope.get("grant"):
        return f"grant {grant.name}"
    return request.client.host if request.client else ""


def run_address(run_id: str) -> str:
    """Return the address of a run's page."""
    return f"/runs/{quote(run_id, safe='', errors='replace')}"


def contents_of(request: Request) -> Contents:
    """Return the contents of the report of the run in the path of a request."""
    catalogue = served(request).catalogue
    run = catalogue.find(request.path_params["run"])
    return gather(run, catalogue.store, catalogue.status(run))


def table_of(request: Request) -> tuple[Run, str, AnalysisTable]:
    """Return the run in the path of a request, and the analysis of it with its name."""
    catalogue = served(request).catalogue
    run = catalogue.find(request.path_params["run"])
    name = request.path_params["table"]
    if name not in ANALYSES:
        raise HTTPException(404)
    return run, name, RunTables(run, catalogue.store).table(name)


def as_html(text: str, status: int = 200) -> Response:
    """Return a page; a name of a file in it need not be UTF-8."""
    return HTMLResponse(text.encode("utf-8", "replace"), status)


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as JSON; texts that are not UTF-8 are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text, status, headers, media_type="application/json")


def as_csv(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Return rows as a CSV file to save."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return Response(
        text.getvalue().encode("utf-8", "replace"),
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
    )
