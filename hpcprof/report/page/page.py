"""The report of a run as one HTML file, also for sharing: without hosts, users, paths, commands and logs."""

import getpass
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpcprof.analysis.explain.explanation import Explanation, Finding
from hpcprof.common import __version__
from hpcprof.common.errors import HpcprofError
from hpcprof.common.paths import packaged_folder
from hpcprof.profiles.scrub.names import Names, hosts_and_users
from hpcprof.report.contents import Contents
from hpcprof.report.explanation import HIDDEN
from hpcprof.report.page.blocks import block, bundle
from hpcprof.report.page.chart_data import chart_data, message_matrix
from hpcprof.report.page.first_screen import first_screen
from hpcprof.report.page.heat_map import heat_map
from hpcprof.report.page.page_tables import PageTable, analysis_tables
from hpcprof.report.scale_prediction import KEPT_COLUMNS, kept_cells
from hpcprof.report.terminal import LOSSES_TITLE
from hpcprof.results.across.predictions import KeptPrediction, kept_predictions
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from hpcprof.submit.runs.failures import RankFailure

PARTS = (
    ("timeline", "Timeline"),
    ("heat-map", "Ranks and steps"),
    ("messages", "Messages between ranks"),
    ("charts", "Charts"),
)
"""The parts that the page's script draws, each from the block ``<part>-data``; others stay hidden."""


def html_report(
    contents: Contents,
    store: Store | None = None,
    template: str = "report/report.html.j2",
    timeline: object = None,
    *,
    scrub: bool = False,
    **values: object,
) -> str:
    """Return the report of a run as HTML.

    The run's other data are in ``store``; without it, the page has no timeline. ``template`` extends that of
    the report. The page's timeline gets ``timeline`` instead of the slices of the run. With ``scrub`` hosts,
    users, paths, command lines and logs are left out.
    """
    run, clean = contents.run.id, None
    if scrub:
        run = contents.run.id if contents.run.manifest else f"run {contents.run.id.rpartition('-')[2]}"
        contents, clean = scrubbed(contents)
    data = _data(contents, store if timeline is None else None)
    tracks: Any = data.get("timeline")
    places = {
        (track["rank"], step[0]) for track in (tracks["ranks"] if tracks else ()) for step in track["steps"]
    }
    screen = first_screen(contents, places)
    names = dict.fromkeys([*contents.shown(), *screen.tables()])
    return render_page(
        template,
        [table for name in names for table in analysis_tables(name, contents)],
        data if timeline is None else {**data, "timeline": timeline},
        PARTS,
        clean,
        run=run,
        screen=screen,
        facts=[fact for fact in screen.facts if not scrub or fact[0] not in PRIVATE_FACTS],
        scrub_note=SCRUB_NOTE if scrub else "",
        explained=contents.explanation is not None,
        prediction_columns=KEPT_COLUMNS[1:],
        predictions=[kept_cells(prediction)[1:] for prediction in _predictions(contents.run)],
        hidden_title=HIDDEN,
        lacking_title=LOSSES_TITLE,
        **values,
    )


def _predictions(run: Run) -> list[KeptPrediction]:
    """Return the predictions that were made from a run; none if they cannot be read."""
    try:
        return [prediction for prediction in kept_predictions(run.path.parent) if prediction.run == run.id]
    except HpcprofError:
        return []


def _data(contents: Contents, store: Store | None) -> dict[str, object]:
    """Return the data of each part that the run has any for."""
    parts = {
        "heat-map": heat_map(contents),
        "messages": message_matrix(contents),
        "charts": chart_data(contents),
    }
    if store is not None and contents.profiles:
        # Only here: the terminal's report needs no pandas.
        from hpcprof.report.page.timeline_data import timeline_data

        parts["timeline"] = timeline_data(contents.run, store)
    return {name: data for name, data in parts.items() if data}


def render_page(
    template: str,
    tables: Sequence[PageTable],
    data: Mapping[str, object],
    parts: Sequence[tuple[str, str]] = PARTS,
    clean: "Clean | None" = None,
    **values: object,
) -> str:
    """Render a page by a template that extends ``report/page.html.j2``.

    ``data`` has the data of each part by its name, and ``parts`` the names and titles of those that the
    page's script draws. Every text and all data go through ``clean``, as `scrubbed` returns it.
    """
    rows = [table.data for table in tables if table.data is not None]
    blocks = [
        block(f"{part}-data", clean(msgspec.to_builtins(value)) if clean else value)
        for part, value in {**data, "tables": rows}.items()
    ]
    return (
        page_environment(clean)
        .get_template(template)
        .render(parts=parts, blocks=blocks, tables=tables, bundle=bundle(), version=__version__, **values)
    )


@lru_cache(1)
def page_environment(clean: "Clean | None") -> Environment:
    """Return the environment of pages' templates; it keeps those that are compiled."""
    return Environment(
        loader=FileSystemLoader(packaged_folder("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=clean,
    )


SCRUB_NOTE = (
    "This page is scrubbed: hosts, users, paths, recognized secrets, command lines and logs are left out. "
    "Other names of kernels and ranges stay."
)

PRIVATE_FACTS = ("folder", "profile", "job")
"""Facts that consist of a path or of a command line."""

_HOME_PARENTS = ("home", "users", "Users")

Clean = Callable[[Any], Any]
"""Returns a value of a page without what may not be shared; markup stays as it is."""


def scrubbed(contents: Contents) -> tuple[Contents, Clean]:
    """Return the contents of a run for a page that may be shared, and what cleans every text made of them.

    Logs and commands are left out. Hosts become ``<host 1>``, users ``<user 1>`` and absolute paths
    ``<path 1>``, in names of kernels and ranges too; equal names stay equal.
    """
    names = Names()
    hosts = {profile.host for profile in contents.profiles.values() if profile.host}
    names.know(hosts_and_users(sorted(hosts), sorted(_users(contents))))
    profiles = {
        rank: msgspec.structs.replace(row, host=names.numbered("host", row.host)) if row.host else row
        for rank, row in contents.profiles.items()
    }
    scrubbed_contents = replace(
        contents,
        profiles=profiles,
        failures=[failure.without_message() for failure in contents.failures],
        reporting=lambda *options: f"the analysis {options[-1]}",
        explaining="",
        explanation=_without_files(contents.explanation),
        collect="hpcprof collect",
    )
    return scrubbed_contents, lambda value: _clean_value(value, names)


def _without_files(explanation: Explanation | None) -> Explanation | None:
    """Return an explanation whose sources have no files, which are paths."""
    if explanation is None:
        return None

    def cleaned(finding: Finding) -> Finding:
        sources = finding.source and tuple(replace(frame, file=None) for frame in finding.source)
        alternatives, with_it = (
            tuple(map(cleaned, side)) for side in (finding.alternatives, finding.together)
        )
        return replace(finding, source=sources, alternatives=alternatives, together=with_it)

    return replace(
        explanation,
        findings=tuple(map(cleaned, explanation.findings)),
        hidden=tuple(map(cleaned, explanation.hidden)),
    )


def _users(contents: Contents) -> set[str]:
    """Return the user who makes the page, and those whose homes the run's folder is in."""
    parts = contents.run.path.absolute().parts
    users = {name for home, name in pairwise(parts) if home in _HOME_PARENTS}
    try:
        return {*users, getpass.getuser()}
    except (KeyError, OSError):  # In some containers nobody has a name.
        return users


def _clean_value(value: Any, names: Names) -> Any:
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return names.cleaned(value)
    if isinstance(value, Mapping):
        return {_clean_value(key, names): _clean_value(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean_value(item, names) for item in value]
    return names.cleaned(str(value)) if isinstance(value, RankFailure) else value
