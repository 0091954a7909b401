"""The application: its addresses, and how errors are answered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio.to_thread
import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.common.paths import packaged_folder, user_cache
from hpcprof.profiles.timeline import Origin
from hpcprof.results.store.store import open_store
from hpcprof.serve import across_runs, annotations, api, pages
from hpcprof.serve.catalogue import Catalogue, UnknownRun
from hpcprof.serve.context import Served, as_json, served
from hpcprof.serve.guard import Access, Guard
from hpcprof.serve.metrics import RunningEnergy, metrics
from hpcprof.serve.sql import SqlDesk
from hpcprof.serve.tile_cache import TileCache
from hpcprof.serve.tiles import AskAgain, Tiles
from hpcprof.serve.turns import Turns

MAX_THREADS = 12
"""Maximum number of concurrent requests; PostgreSQL's pool has 15 connections."""

_API_PATH = "/api/"
_MIN_COMPRESSED_BYTES = 2048


def serve_store(runs_dir: Path, db: str | None, access: Access) -> ASGIApp:
    """Return the application over a folder of runs and a results database.

    It changes the tags and notes of runs, and those only if readers have to show a token.
    """
    # Outside of everything else, so that its headers are on every answer.
    app = pages_of(runs_dir, db)
    app.state.editable = access.token is not None
    return Guard(app, access)


def pages_of(
    runs_dir: Path, db: str | None, all_stored: bool = False, turns: Turns | None = None
) -> Starlette:
    """Return the pages of a folder of runs and a results database; the caller checks the requests.

    If ``all_stored``, all runs are in the database, so that nothing can be listed without it. Folders of one
    server share the ``turns`` of their readers.
    """
    store = open_store(db, runs_dir, read_only=True)
    tiles = Tiles(store, TileCache(user_cache() / "tiles"))
    catalogue = Catalogue(runs_dir, db, store, all_stored=all_stored)
    app = Starlette(
        routes=[
            *(
                Route(path, endpoint)
                for path, endpoint in (pages.PAGES | across_runs.PAGES | api.READS).items()
            ),
            Route("/api/sql", api.ask_sql, methods=["POST"]),
            Route("/runs/{run}/note", annotations.keep_note, methods=["POST"]),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=_MIN_COMPRESSED_BYTES, compresslevel=1)],
        exception_handlers=dict.fromkeys((HpcprofError, HTTPException, Exception), _explain),
        lifespan=few_threads,
    )
    app.state.editable = False
    app.state.running_energy = RunningEnergy()
    app.state.served = Served(catalogue, tiles, SqlDesk(runs_dir, db, tiles, turns=turns), page_templates())
    return app


def page_templates() -> Environment:
    """Return the environment of the templates of pages."""
    templates = Environment(
        loader=FileSystemLoader(packaged_folder("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= pages.FILTERS
    return templates


@asynccontextmanager
async def few_threads(app: Starlette) -> AsyncIterator[None]:
    """Limit the number of concurrent requests while the application runs."""
    _prepare_types()
    anyio.to_thread.current_default_thread_limiter().total_tokens = MAX_THREADS
    yield


def _prepare_types() -> None:
    """Have msgspec learn all types before there are threads: to do so at once in two crashes version 0.22."""
    kinds: list[type] = [Explanation, Origin, *msgspec.Struct.__subclasses__()]
    for kind in kinds:
        # Some types can only be encoded.
        with suppress(TypeError, NameError):
            msgspec.json.Decoder(kind)
        subclasses: list[type] = type.__subclasses__(kind)
        kinds += [subclass for subclass in subclasses if subclass not in kinds]


def _explain(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        sentences = {404: "page not found.", 405: "method not allowed."}
        return answer(request, sentences.get(error.status_code, f"{error.detail}"), error.status_code)
    if not isinstance(error, HpcprofError):
        return answer(request, "internal error: the terminal of hpcprof serve shows it.", 500)
    statuses = ((UnknownRun, 404), (UsageError, 400), (AskAgain, 429), (StoreError, 503))
    status = next((status for kind, status in statuses if isinstance(error, kind)), 404)
    return answer(request, str(error), status)


def answer(request: Request, sentence: str, status: int) -> Response:
    """Return one sentence, as JSON to programs and as a page to browsers, without the place of a hub."""
    if place := getattr(request.app.state, "unsaid", ""):
        sentence = sentence.replace(place, "…")
    if request.url.path.startswith(_API_PATH):
        return as_json({"error": sentence}, status)
    return served(request).page("error", status, title="Not available", sentence=sentence)
