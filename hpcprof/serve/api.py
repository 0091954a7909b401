"""The JSON API that the pages use; ``docs/reference/serve.md`` describes it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.report.facts import facts
from hpcprof.results.run_names import with_commands
from hpcprof.serve.catalogue import Filters
from hpcprof.serve.context import as_csv, as_json, contents_of, served


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
            "failures": [str(failure) for failure in contents.failures],
            "explanation": explanation.in_short().as_json() if explanation else None,
            "tables": sorted(contents.shown()),
        }
    )


def read_table(request: Request) -> Response:
    """Return an analysis of a run by columns, or as CSV."""
    catalogue = served(request).catalogue
    run = catalogue.find(request.path_params["run"])
    name = request.path_params["table"]
    if name not in ANALYSES:
        raise HTTPException(404)
    table = with_commands(catalogue.store.read(run.id, name), run, catalogue.store)
    if request.query_params.get("format") == "csv":
        return as_csv(name, list(table.columns), zip(*table.columns.values(), strict=True))
    reasons = {str(rank): reason for rank, reason in table.reasons.items()}
    return as_json({"columns": table.columns, "reasons": reasons, "losses": list(table.losses)})


READS: dict[str, Callable[[Request], Response]] = {
    "/api/runs": list_runs,
    "/api/runs/{run}": show_run,
    "/api/runs/{run}/tables/{table}": read_table,
}
"""What is read, by its address."""
