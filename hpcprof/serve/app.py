"""The application: its addresses, and how errors are answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from hpcprof.common import __version__
from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.common.paths import packaged
from hpcprof.serve.catalogue import Catalogue, UnknownRun
from hpcprof.serve.guard import Access, Guard

THREADS = 12
"""How many requests are worked on at a time; PostgreSQL's pool has 15 connections."""

API = "/api/"

Endpoint = Callable[[Request], Response]


@dataclass(frozen=True)
class Served:
    """What the pages read."""

    catalogue: Catalogue
    templates: Environment

    def page(self, template: str, status: int = 200, **values: object) -> Response:
        """Return a page of a template in ``templates/serve``."""
        text = self.templates.get_template(f"serve/{template}.html.j2").render(version=__version__, **values)
        # A name of a file need not be UTF-8.
        return HTMLResponse(text.encode("utf-8", "replace"), status)


def served(request: Request) -> Served:
    """Return what the application of a request reads."""
    found: Served = request.app.state.served
    return found


def as_json(value: Any, status: int = 200) -> Response:
    """Return a value as JSON; texts that are not UTF-8 are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text, status, media_type="application/json")


def make_app(catalogue: Catalogue, access: Access) -> Starlette:
    """Return the application.

    Parameters
    ----------
    catalogue : Catalogue
        Its store must be read-only.
    access : Access
        Who may use it.
    """
    from hpcprof.serve import api, pages

    templates = Environment(
        loader=FileSystemLoader(packaged("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= pages.FILTERS
    app = Starlette(
        routes=[Route(path, endpoint) for path, endpoint in (pages.PAGES | api.READS).items()],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={HpcprofError: _explain, HTTPException: _refuse, Exception: _fail},
        lifespan=_few_threads,
    )
    app.state.served = Served(catalogue, templates)
    return app


def serve_store(runs_dir: Path, db: str | None, access: Access) -> Starlette:
    """Return the application over a folder of runs and a results database, neither of which it changes.

    Raises
    ------
    UsageError
        If ``db`` cannot be used here.
    """
    from hpcprof.results.store.store import open_store

    return make_app(Catalogue(runs_dir, db, open_store(db, runs_dir, read_only=True)), access)


@asynccontextmanager
async def _few_threads(app: Starlette) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


def _explain(request: Request, error: Exception) -> Response:
    statuses = ((UnknownRun, 404), (UsageError, 400), (StoreError, 503))
    status = next((status for kind, status in statuses if isinstance(error, kind)), 404)
    return _answer(request, str(error), status)


def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: "there is no such page.", 405: "this address cannot be used in that way."}
    return _answer(request, what.get(error.status_code, f"{error.detail}"), error.status_code)


def _fail(request: Request, error: Exception) -> Response:
    """Answer an error of hpcprof itself; the server's terminal shows the traceback."""
    return _answer(request, "internal error: the terminal of hpcprof serve shows it.", 500)


def _answer(request: Request, sentence: str, status: int) -> Response:
    if request.url.path.startswith(API):
        return as_json({"error": sentence}, status)
    return served(request).page("error", status, title="Not available", sentence=sentence)
