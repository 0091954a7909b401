"""The application: its addresses, and how errors are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.common.paths import packaged
from hpcprof.results.store.store import open_store
from hpcprof.serve import api, pages
from hpcprof.serve.catalogue import Catalogue, UnknownRun
from hpcprof.serve.context import Served, as_json, served
from hpcprof.serve.guard import Access, Guard

THREADS = 12
"""How many requests are worked on at a time; PostgreSQL's pool has 15 connections."""

_API = "/api/"


def make_app(catalogue: Catalogue, access: Access) -> Starlette:
    """Return the application.

    Parameters
    ----------
    catalogue : Catalogue
        Its store must be read-only.
    access : Access
        Who may use it.
    """
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
    if request.url.path.startswith(_API):
        return as_json({"error": sentence}, status)
    return served(request).page("error", status, title="Not available", sentence=sentence)
