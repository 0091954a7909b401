"""The JSON API that the pages use; ``docs/reference/serve.md`` describes it."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hpcprof.common.decode import from_json, last_lines
from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked
from hpcprof.common.units import capitalized, visible
from hpcprof.report.facts import facts
from hpcprof.results.collect.stalls import stall_sentence
from hpcprof.runs.directory import Run, log_files
from hpcprof.runs.live_steps import live_progress, read_live_steps, step_warnings
from hpcprof.serve.catalogue import Filters
from hpcprof.serve.context import as_csv, as_json, contents_of, reader_of, served, table_of
from hpcprof.serve.tiles import chosen_ranks, is_rank

MAX_RUNS = 16
"""Maximum number of runs whose events a query reads."""


def list_runs(request: Request) -> Response:
    """Return the runs that the filters choose, the newest first."""
    listing = served(request).catalogue.listing()
    chosen = listing.chosen(Filters.of(request.query_params))
    return as_json({"runs": [run.as_json() for run in chosen], "skipped": listing.skipped})


def show_run(request: Request) -> Response:
    """Return the facts, warnings and findings of a run, and which tables it has."""
    contents = contents_of(request)
    explanation = contents.explanation
    return as_json(
        {
            "run": contents.run.id,
            "state": contents.status.state.value if contents.status else None,
            "facts": [list(fact) for fact in facts(contents, findings=False)],
            "warnings": contents.warnings,
            "failures": [failure.as_json() for failure in contents.failures],
            "explanation": explanation.in_short().as_json() if explanation else None,
            "tables": sorted(contents.shown()),
        }
    )


def read_table(request: Request) -> Response:
    """Return an analysis of a run by columns, or as CSV."""
    _, name, table = table_of(request)
    if request.query_params.get("format") == "csv":
        return as_csv(name, list(table.columns), zip(*table.columns.values(), strict=True))
    reasons = {str(rank): reason for rank, reason in table.reasons.items()}
    notes = {"reasons": reasons, "losses": list(table.losses), "steps": str(table.steps or "")}
    return as_json({"columns": table.columns, **notes})


def timeline(request: Request) -> Response:
    """Return the ranks, steps and levels of tiles of the timeline of a run."""
    context = served(request)
    return _json_response(context.tiles.of(context.catalogue.find(request.path_params["run"])).overview())


def timeline_tiles(request: Request) -> Response:
    """Return the tiles of the chosen ranks at one level and index."""
    context = served(request)
    run = context.catalogue.find(request.path_params["run"])
    place = [request.path_params[name] for name in ("level", "index")]
    if not all(map(_TILE_NUMBER.fullmatch, place)):
        raise HTTPException(404)
    level, index = map(int, place)
    tiles = context.tiles.of(run)
    ranks = chosen_ranks(request.query_params.get("ranks", ""))
    return _json_response(b'{"tiles":[' + b",".join(tiles.tile(rank, level, index) for rank in ranks) + b"]}")


# Starlette's own numbers have no end, and Python converts at most 4,300 digits.
_TILE_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_FOREIGN_NOTE = "Profiles of another tool, which have no job."
_PUSHED_NOTE = "This run was pushed here: its log is where it ran."


def live(request: Request) -> Response:
    """Return the state of a run with the ends of its logs and the steps of its ranks."""
    catalogue = served(request).catalogue
    run = catalogue.find(request.path_params["run"])
    rank = request.query_params.get("rank", "")
    if not is_rank(rank or "0"):
        raise UsageError(f"rank {rank[:20]!r}: give the number of a rank.")
    status = catalogue.status(run)
    if status:
        state, reason = status.state.value, status.reason
    else:
        pushed = catalogue.store.exists() and run.id in catalogue.store.pushed()
        state, reason = None, _PUSHED_NOTE if pushed else _FOREIGN_NOTE
    running = status is not None and not status.state.ended
    return as_json(
        {"state": state, "reason": reason, **live_state(run, int(rank) if rank else None, running)}
    )


class _Query(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    runs: list[str] = []


async def ask_sql(request: Request) -> Response:
    """Execute a SELECT; other queries may queue behind it, other requests do not."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise UsageError("send the query as application/json.")
    try:
        query = from_json(await request.body(), _Query)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the query is not valid: {error}.") from None
    context = served(request)
    runs = [await run_in_threadpool(context.catalogue.find, run) for run in query.runs[:MAX_RUNS]]
    reply = await context.desk.ask(query.sql, runs or None, reader_of(request))
    if request.query_params.get("format") == "csv":
        return await run_in_threadpool(as_csv, "query", reply.columns, reply.rows)
    return _json_response(msgspec.json.encode(reply))


def _json_response(json: bytes) -> Response:
    return Response(json, media_type="application/json")


READS: dict[str, Callable[[Request], Response]] = {
    "/api/runs": list_runs,
    "/api/runs/{run}": show_run,
    "/api/runs/{run}/tables/{table}": read_table,
    "/api/runs/{run}/live": live,
    "/api/runs/{run}/timeline": timeline,
    "/api/runs/{run}/timeline/{level}/{index}": timeline_tiles,
}
"""The resources that can be read, by their addresses."""


LOG_BYTES = 64 * 1024
"""The bytes shown of the end of each log."""

_TAB_WIDTH = 4


def live_state(
    run: Run, rank: int | None = None, running: bool = True, now: float | None = None
) -> dict[str, Any]:
    """Return logs and steps of a run, with warnings while it is ``running``; ``now`` is in s since 1970."""
    steps = read_live_steps(run)
    return {
        "steps": msgspec.to_builtins(steps, str_keys=True),
        "progress": capitalized(live_progress(run, steps, running)),
        "warnings": [
            *([capitalized(stall)] if running and (stall := stall_sentence(run)) else []),
            *step_warnings(steps, (now or time.time()) if running else 0.0),
        ],
        "logs": logs(run, rank),
    }


def logs(run: Run, rank: int | None) -> list[dict[str, Any]]:
    """Return the ends of the logs that ``hpcprof logs`` shows, with secrets masked and as plain text."""
    try:
        files = log_files(run, rank)
    except UsageError:
        return []
    return [{"name": path.name, **_tail(path)} for path in files]


def _tail(path: Path) -> dict[str, Any]:
    try:
        lines, cut = last_lines(path, LOG_BYTES)
    except OSError:
        return {"text": "", "cut": False}
    return {"text": "\n".join(visible(masked(line.expandtabs(_TAB_WIDTH))) for line in lines), "cut": cut}
