"""The HTML pages: the list of runs, a run, a table of it."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpcprof.analysis.framework.declaration import Kind
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import HpcprofError, StoreError
from hpcprof.common.grouping import grouped
from hpcprof.common.units import counted, format_ns
from hpcprof.report.explanation import named
from hpcprof.report.formatting import cell, header
from hpcprof.report.page.blocks import DIST
from hpcprof.report.page.page import html_report
from hpcprof.report.terminal import remarks
from hpcprof.results.across.listing import Coverage
from hpcprof.results.across.sweeps import differing_words
from hpcprof.results.ask import event_query, query
from hpcprof.results.ask.explanation import kept_explanation
from hpcprof.results.store.tables import PushedRow
from hpcprof.runs.directory import Run, sweep_of
from hpcprof.runs.tags import read_note
from hpcprof.serve import annotations
from hpcprof.serve.across_runs import change, comparisons
from hpcprof.serve.catalogue import GROUPED_BY, SORTED_BY, Catalogue, Filters, KnownRun, shown_filters
from hpcprof.serve.context import as_html, contents_of, run_address, served, table_of
from hpcprof.serve.grants import PUSH
from hpcprof.serve.sql import SECONDS
from hpcprof.submit.jobs.walltime import format_walltime

EXAMPLES = (
    (
        "Idle time of each rank",
        "SELECT run_id, rank, idle_pct FROM analysis_breakdown ORDER BY idle_pct DESC LIMIT 50",
        False,
    ),
    (
        "Step time of all runs",
        "SELECT r.program, s.run_id, s.elapsed_ns / 1e6 AS step_ms\n"
        "FROM analysis_step_kinds s JOIN runs r ON r.id = s.run_id WHERE s.kind = 0 ORDER BY 1, 3",
        False,
    ),
    (
        "Kernels that take most time, from the events of runs",
        "SELECT name, count(*) AS launches, sum(end_ns - start_ns) / 1e6 AS ms\n"
        "FROM kernels GROUP BY 1 ORDER BY 3 DESC LIMIT 20",
        True,
    ),
)
"""Queries to start from: a title, the SQL, and whether it asks events."""

RUNS_PER_PAGE = 100
ROWS_PER_PAGE = 200
_MAX_TREND_RUNS = 20
"""Maximum number of runs that a trend shows."""

_STATIC_FILES = {
    "page.js": "text/javascript",
    "page.css": "text/css",
    "serve.js": "text/javascript",
    "serve.css": "text/css",
    "LICENSES.txt": "text/plain",
}
"""The files that are served by name, with their types."""


class Pages(msgspec.Struct, frozen=True):
    """The reader's place in a list, with the addresses of the neighbouring pages; empty without one."""

    first: int
    last: int
    count: int
    before: str
    after: str


def list_page(request: Request) -> Response:
    """Show the runs that the filters in the address choose."""
    listing = served(request).catalogue.listing()
    filters = Filters.of(request.query_params)
    chosen = listing.chosen(filters)
    place = _place(request, len(chosen), RUNS_PER_PAGE)
    visible_runs = chosen[place.first : place.last]
    context = served(request)
    store = context.catalogue.store
    grant = request.scope.get("grant")
    pushed = store.pushed() if grant else {}
    return context.page(
        "runs",
        title="Runs",
        groups=_groups(visible_runs, chosen, filters.group),
        headings=[_heading(request, filters.sort, *column) for column in _COLUMNS],
        grouped_by=GROUPED_BY,
        lines={run.listed.run: _trend(run, listing.runs) for run in visible_runs},
        findings={run.listed.run: _first_finding(run, context.catalogue) for run in visible_runs},
        parameters=_sweep_parameters(visible_runs, listing.runs),
        pushed=pushed,
        notes={run.listed.run: _note(run, pushed, context.catalogue) for run in visible_runs},
        may_edit=grant.may == PUSH if grant else annotations.may_edit(request),
        place=place,
        filters=asdict(filters),
        choices=shown_filters(listing),
        total=len(listing.runs),
        folder=served(request).catalogue.runs_dir.absolute(),
        changing=any(run.is_open for run in chosen),
        skipped=listing.skipped,
        filtered={f.name for f in fields(filters) if getattr(filters, f.name)} - {"sort", "group"},
    )


_COLUMNS = (
    ("Run", "run", "text", ""),
    ("State", "state", "text", ""),
    ("Step", "step", "", "elapsed time per step; the median is in a cell's tooltip"),
    ("First finding or reason", "", "text", ""),
    ("Trend", "", "text", "the step of the runs of this program on as many ranks, by this site and profiler"),
    ("Program", "program", "text", ""),
    ("Started", "started", "", ""),
    ("Duration", "duration", "", ""),
    ("Ranks", "ranks", "", ""),
    ("Site", "site", "text", ""),
    ("Profiler", "profiler", "text", ""),
    ("Collected", "", "text", ""),
)
"""The columns of the list: heading, the value that it sorts by, class and tooltip."""


class Heading(msgspec.Struct, frozen=True):
    """The heading of a column; ``address`` sorts by it, and is empty where the column does not sort."""

    text: str
    style: str
    tooltip: str
    address: str
    order: str


def _heading(request: Request, sort: str, text: str, name: str, style: str, tooltip: str) -> Heading:
    if not name:
        return Heading(text, style, tooltip, "", "")
    orders = {name: "ascending", f"-{name}": "descending"}
    parameters = {key: value for key, value in request.query_params.items() if key not in ("sort", "page")}
    following = f"-{name}" if sort == name else name
    return Heading(
        text, style, tooltip, f"?{urlencode({**parameters, 'sort': following})}", orders.get(sort, "")
    )


@dataclass(frozen=True)
class Group:
    """Runs of a list that share a value; the list may have more of them on other pages."""

    title: str
    runs: Sequence[KnownRun]


def _groups(visible_runs: Sequence[KnownRun], chosen: Sequence[KnownRun], name: str) -> list[Group]:
    if not name:
        return [Group("", visible_runs)]
    value = SORTED_BY[name]
    counts = Counter(map(value, chosen))
    return [
        Group(f"{f'{name} {key}' if key else f'no {name}'}: {counted(counts[key], 'run')}", list(runs))
        for key, runs in groupby(visible_runs, value)
    ]


class Trend(msgspec.Struct, frozen=True):
    """The steps of a program's runs until one of them: a line in a box of 60 x 16, and in words."""

    points: str
    described: str


def _trend(run: KnownRun, runs: Sequence[KnownRun]) -> Trend | None:
    if run.program is None or run.listed.step_ns is None:
        return None
    older = runs[runs.index(run) :]  # the newest first
    times = [other.listed.step_ns for other in older if other.kind == run.kind]
    step_times = [step_ns for step_ns in times if step_ns][:_MAX_TREND_RUNS][::-1]
    if len(step_times) < 2:
        return None
    low, high = min(step_times), max(step_times)
    across, up = 58 / (len(step_times) - 1), 14 / ((high - low) or 1)
    points = " ".join(f"{1 + i * across:.1f},{15 - (ns - low) * up:.1f}" for i, ns in enumerate(step_times))
    summary = (
        f"step of {len(step_times)} runs, from {format_ns(step_times[0])} to {format_ns(step_times[-1])}"
    )
    return Trend(points, f"{summary}, between {format_ns(low)} and {format_ns(high)}")


def _sweep_parameters(visible_runs: Sequence[KnownRun], runs: Sequence[KnownRun]) -> dict[str, str]:
    """Return the words in which the visible members of sweeps differ from the other members, by run."""
    sweeps = {run.sweep for run in visible_runs} - {None}
    members = grouped((run.sweep, run.listed) for run in runs if run.sweep in sweeps).values()
    commands = [[shlex.split(member.command or "") for member in sweep] for sweep in members]
    words = (text for sweep in commands for text in differing_words(sweep))
    return dict(zip((member.run for sweep in members for member in sweep), words, strict=True))


def _note(run: KnownRun, pushed: Mapping[str, PushedRow], catalogue: Catalogue) -> str:
    """Return the note of a run: at a hub that of its push."""
    if run.listed.run in pushed:
        return pushed[run.listed.run].note
    return read_note(catalogue.open(run.listed), catalogue.runs_dir)


def _first_finding(run: KnownRun, catalogue: Catalogue) -> str:
    """Return the first finding of a run, else the reason of its state, else why there is no finding."""
    if run.listed.collected not in (Coverage.YES, Coverage.PARTLY):
        return run.listed.reason or "not profiled" * (run.listed.profiler == "none" and not run.is_open)
    explanation = kept_explanation(Run(run.listed.run, Path(run.listed.path)), catalogue.store)
    if explanation is None:
        return run.listed.reason or "not explained yet"
    first = next(iter(explanation.shown()), None)
    if first is None or (explanation.stall and not explanation.stall.went_on):
        return run.listed.reason or "no finding"  # the verdict on a hang is the reason of the state
    return (
        f"{named(first, explanation)}, {format_ns(first.saving_ns)}"
        if first.saving_ns
        else named(first, explanation)
    )


def run_page(request: Request) -> Response:
    """Show the report of a run, or why there is none and where its job can be followed."""
    context = served(request)
    run = context.catalogue.find(request.path_params["run"])
    address = run_address(run.id)
    try:
        contents = contents_of(request)
    except StoreError:
        raise
    except HpcprofError as error:
        status = context.catalogue.status(run)
        if status is not None and not status.state.ended:
            return RedirectResponse(f"{address}/live", 307)
        return context.page("error", title=run.id, sentence=str(error), address=address)
    # The timeline of all ranks and steps comes in tiles.
    timeline = {"address": f"/api{address}/timeline"} if contents.profiles and contents.explaining else None
    page = html_report(
        contents,
        template="serve/report.html.j2",
        timeline=timeline,
        parent="report/report.html.j2",
        address=address,
        comparisons=comparisons(context.catalogue, run),
        change=change(context.catalogue, run),
        sweep_address=f"/sweeps/{quote(sweep)}" if (sweep := sweep_of(run.id)) else "",
    )
    return as_html(page)


def table_page(request: Request) -> Response:
    """Show an analysis of a run with all its rows, in pages."""
    run, name, table = table_of(request)
    columns = ANALYSES[name].columns
    place = _place(request, table.count, ROWS_PER_PAGE)
    rows = zip(*(table.columns[column.name][place.first : place.last] for column in columns), strict=True)
    return served(request).page(
        "table",
        title=f"{ANALYSES[name].title}: {run.id}",
        run=run,
        name=name,
        headers=[(header(column.name), column.kind is Kind.TEXT) for column in columns],
        rows=[[cell(c.name, value) for c, value in zip(columns, row, strict=True)] for row in rows],
        remarks=remarks(table),
        place=place,
    )


def live_page(request: Request) -> Response:
    """Show the log and the steps of a run while it runs."""
    context = served(request)
    run = context.catalogue.find(request.path_params["run"])
    return context.page("live", title=f"Live: {run.id}", run=run, rank=request.query_params.get("rank", ""))


def sql_page(request: Request) -> Response:
    """Offer to ask the results database, or the events of runs, in SQL."""
    runs = [run.listed for run in served(request).catalogue.listing().runs]
    collected = [run for run in runs if run.collected in (Coverage.YES, Coverage.PARTLY)]
    # A run with steps has a timeline, and so events.
    newest = next((run.run for run in collected if run.step_ns), collected[0].run if collected else "")
    return served(request).page(
        "sql",
        title="SQL",
        examples=EXAMPLES,
        newest=newest,
        seconds=SECONDS,
        schemas=(
            ("Tables of results", _columns_by_table(query.schema())),
            ("Tables of events, which need runs", _columns_by_table(event_query.schema())),
        ),
        sql=request.query_params.get("sql", ""),
        runs="\n".join(
            name
            for text in request.query_params.getlist("runs")
            for name in ([text] if text in {run.run for run in runs} else text.split())
        ),
    )


def _columns_by_table(schema: query.QueryResult) -> dict[str, list[str]]:
    tables = grouped((str(table), str(name)) for table, name, *_ in schema.rows)
    return tables


def static_file(request: Request) -> Response:
    """Return a script or a style of hpcprof; no other file has an address."""
    name = request.path_params["name"]
    if name not in _STATIC_FILES:
        raise HTTPException(404)
    try:
        text = (DIST / name).read_bytes()
    except OSError:
        raise HTTPException(404) from None
    return Response(text, media_type=_STATIC_FILES[name], headers={"Cache-Control": "private, max-age=300"})


def home(request: Request) -> Response:
    """Lead to the list of runs."""
    return RedirectResponse("/runs", 307)


def _place(request: Request, count: int, size: int) -> Pages:
    text = request.query_params.get("page", "1")
    pages = max(1, -(-count // size))
    page = min(pages, max(1, int(text))) if text.isdecimal() and len(text) < 10 else 1

    def address(number: int) -> str:
        parameters = {**request.query_params, "page": str(number)}
        return f"?{urlencode(parameters)}" if 1 <= number <= pages else ""

    return Pages((page - 1) * size, min(count, page * size), count, address(page - 1), address(page + 1))


FILTERS: dict[str, Callable[[Any], str]] = {
    "run_address": run_address,
    "local_time": lambda when: f"{when.astimezone():%Y-%m-%d %H:%M}" if when else "–",
    "time": lambda ns: "–" if ns is None else format_ns(ns),
    "walltime": lambda seconds: "–" if seconds is None else format_walltime(round(seconds)),
}
"""The filters of the templates."""

PAGES: dict[str, Callable[[Request], Response]] = {
    "/": home,
    "/runs": list_page,
    "/runs/{run}": run_page,
    "/runs/{run}/tables/{table}": table_page,
    "/runs/{run}/live": live_page,
    "/runs/{run}/note": annotations.note_page,
    "/sql": sql_page,
    "/static/{name}": static_file,
}
"""The pages by their addresses."""
