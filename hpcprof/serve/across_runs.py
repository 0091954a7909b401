"""The pages and the JSON of several runs: the history of a metric, and comparisons."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpcprof.common.errors import UsageError
from hpcprof.common.units import format_ns
from hpcprof.report.comparison import Comparison, compare_runs
from hpcprof.report.comparison_page import html_comparison
from hpcprof.report.page.history_page import html_history
from hpcprof.report.page.sweep_page import html_sweep
from hpcprof.results.across.history import ANY_STEP, METRICS, History, histories
from hpcprof.results.across.named_baselines import named_baselines
from hpcprof.results.across.sweeps import sweep_points
from hpcprof.runs.directory import Run
from hpcprof.serve.catalogue import Catalogue, Listing, UnknownRun
from hpcprof.serve.context import as_html, as_json, run_address, served

MAX_RUNS = 16
"""Maximum number of runs on a side of a comparison."""


def history_page(request: Request) -> Response:
    """Show the history of a metric of a program, with a form that chooses both."""
    context = served(request)
    options = _history_choice(request.query_params, context.catalogue.listing())
    form: dict[str, Any] = {
        **options,
        "form": "serve/history_form.html.j2",
        "programs": context.catalogue.listing().values("program"),
        "metrics": METRICS,
    }
    try:
        series, skipped = _histories(context.catalogue, **options)
    except UsageError as error:
        # With the form, so that the reader can choose again; who has chosen nothing has made no mistake.
        status = 400 if request.query_params else 200
        return context.page("error", status, title="History", sentence=str(error), **form)
    values = {**form, "parent": "report/history.html.j2", "run_page": run_address}
    return as_html(html_history(series, skipped, "serve/report.html.j2", **values))


def history(request: Request) -> Response:
    """Return the histories of a metric of a program."""
    catalogue = served(request).catalogue
    series, skipped = _histories(catalogue, **_history_choice(request.query_params, catalogue.listing()))
    return as_json({"histories": msgspec.to_builtins(series), "skipped": skipped})


def _history_choice(parameters: QueryParams, listing: Listing) -> dict[str, str]:
    program = parameters.get("program", "").strip()
    if not program and len(listing.values("program")) > 1:
        named = [run for run in listing.runs if run.program]
        program = next((run for run in named if run.listed.step_ns), named[0]).program or ""
    metric = parameters.get("metric", "").strip() or ANY_STEP
    return {"program": program, "metric": metric, "tag": parameters.get("tag", "").strip()}


def _histories(catalogue: Catalogue, program: str, metric: str, tag: str) -> tuple[list[History], list[str]]:
    skipped: list[str] = []
    tags = (tag,) if tag else ()
    return histories(catalogue.store, catalogue.runs_dir, program or None, metric, tags, skipped), skipped


def sweep_page(request: Request) -> Response:
    """Show the runs of a sweep by parameter, the best one marked."""
    catalogue = served(request).catalogue
    sweep = request.path_params["sweep"]
    members = catalogue.listing().sweep(sweep)
    if not members:
        raise UnknownRun(sweep)
    points = sweep_points([catalogue.open(run.listed) for run in members], catalogue.store)
    parent = "report/sweep.html.j2"
    return as_html(html_sweep(sweep, points, "serve/report.html.j2", parent=parent, run_page=run_address))


def compare_page(request: Request) -> Response:
    """Show the comparison of the runs that the address names; without any, lead to where they are chosen."""
    if not request.query_params:
        return RedirectResponse("/runs", 307)
    compared = _comparison(request)
    parent = "report/comparison.html.j2"
    store = served(request).catalogue.store
    page = html_comparison(compared, store, "serve/report.html.j2", parent=parent, run_page=run_address)
    return as_html(page)


def compare(request: Request) -> Response:
    """Return the comparison of the runs that the address names, as ``hpcprof compare --format json`` does."""
    # NaN has no JSON; msgspec writes null.
    return Response(msgspec.json.encode(_comparison(request).as_json()), media_type="application/json")


def _comparison(request: Request) -> Comparison:
    catalogue = served(request).catalogue
    a, b = (_side(request.query_params, name, catalogue) for name in ("baseline", "candidate"))
    return compare_runs(a, b, catalogue.store)


def _side(parameters: QueryParams, name: str, catalogue: Catalogue) -> list[Run]:
    ids = [run_id for run_id in parameters.getlist(name) if run_id]
    if not 1 <= len(ids) <= MAX_RUNS:
        raise UsageError(
            f"choose from 1 to {MAX_RUNS} runs as the {name} ({'A' if name == 'baseline' else 'B'}), as in "
            "/compare?baseline=RUN&candidate=RUN."
        )
    return [catalogue.find(run_id) for run_id in ids]


def comparisons(catalogue: Catalogue, run: Run) -> list[tuple[str, str]]:
    """Return the sides to compare a run with, each with its address: the earlier run, and its baselines."""
    listing, store = catalogue.listing(), catalogue.store
    similar, earlier = listing.alike(run.id)
    addresses = [(f"the earlier run {earlier}", compare_address([earlier], run.id))] if earlier else []
    # Runs of a baseline may be of another program, or no longer there.
    return addresses + [
        (f"baseline {named_baseline.name}", compare_address(named_baseline.runs, run.id))
        for named_baseline in (named_baselines(store) if similar else ())
        if similar.issuperset(named_baseline.runs) and len(named_baseline.runs) <= MAX_RUNS
    ]


def change(catalogue: Catalogue, run: Run) -> tuple[str, str] | None:
    """Return a sentence on the change of the step since the earlier run, and the comparison's address."""
    listing = catalogue.listing()
    earlier = listing.alike(run.id)[1]
    lines = {line.listed.run: line.listed for line in listing.runs}
    if earlier is None:
        return None
    now, then = lines[run.id], lines[earlier]
    # A profiler adds to steps, and records few of them.
    if not now.step_ns or not then.step_ns or now.profiler != then.profiler:
        return None
    percent = 100.0 * (now.step_ns / then.step_ns - 1.0)
    times = f"{format_ns(now.step_ns)} instead of {format_ns(then.step_ns)} a step ({percent:+.1f} %)"
    other = "" if now.command == then.command else ", whose command was another"
    return f"Since the earlier run {earlier}{other}: {times}.", compare_address([earlier], run.id)


def compare_address(baseline: Sequence[str], candidate: str) -> str:
    """Return the address of a comparison."""
    named = [*(("baseline", run) for run in baseline), ("candidate", candidate)]
    return f"/compare?{urlencode(named, errors='replace')}"


PAGES: dict[str, Callable[[Request], Response]] = {
    "/history": history_page,
    "/sweeps/{sweep}": sweep_page,
    "/compare": compare_page,
    "/api/history": history,
    "/api/compare": compare,
}
"""The resources that can be read, by their addresses."""
