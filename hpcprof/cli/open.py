"""``hpcprof open``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_files
from hpcprof.cli.conventions import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.cli.report import collect_first, explain_first
from hpcprof.cli.tables import show_report
from hpcprof.common.errors import writing

if TYPE_CHECKING:
    from hpcprof.results.store.store import Store
    from hpcprof.submit.runs.directory import Run


@click.command(
    "open",
    epilog=examples(
        "hpcprof open profiles",
        "hpcprof open rank0.sqlite.xz",
        "hpcprof open before after --terminal",
        "hpcprof open traces --program train",
    ),
)
@runs_dir_option
@db_option
@click.option(
    "--program",
    metavar="NAME",
    help="The program that ran, for compare, history and scaling. All files of a folder then are its ranks.",
)
@click.option("--terminal", is_flag=True, help="Show the report here, also where there is a browser.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", shell_complete=complete_files)
def command(
    runs_dir: Path, db: str | None, program: str | None, terminal: bool, paths: tuple[str, ...]
) -> None:
    """Show what profiles say: collect, explain and report them.

    PATH is a profile (*.sqlite or *.nsys-rep of Nsight Systems, *.trace.json of PyTorch, *.ncu-rep or *.csv
    of Nsight Compute), also compressed as .xz, .gz or .zst; an archive of Score-P (*.otf2), which holds all
    ranks; a folder of profiles, or of such folders; or a run. Files of one folder are the ranks of one run.

    The report is a page in the browser where there is a display and a terminal, else it is printed. Nothing
    is written beside the profiles: results and pages are in the folder of runs.

    Compressed files are unpacked into a private temporary folder ($TMPDIR), which is removed when they have
    been read. One may become 200 times larger, or 100 MB; a larger one is left out with a sentence.
    """
    from hpcprof.cli.browser import can_show_pages
    from hpcprof.cli.collect import for_each
    from hpcprof.results.run_names import find_runs_to_collect
    from hpcprof.results.run_profiles import told_apart
    from hpcprof.results.store.store import open_store

    store = open_store(db, runs_dir)
    runs = find_runs_to_collect(paths, runs_dir, store)
    for sentence in told_apart(runs):
        click.echo(f"hpcprof: {sentence}", err=True)
    store.prepare()
    as_page = can_show_pages() and not terminal

    def collect_and_show(run: Run) -> bool:
        complete = _collect(run, store, program)
        if run.manifest or store.profiles(run.id):
            if run is not runs[0] and not as_page:
                click.echo()
            _show(run, store, runs_dir, as_page)
        return complete

    if not for_each(runs, collect_and_show):
        sys.exit(1)


def _collect(run: Run, store: Store, program: str | None) -> bool:
    """Collect a run, and return whether nothing was skipped; the report of a submitted one collects it."""
    from hpcprof.cli.collect import collect_and_tell

    return run.manifest is not None or collect_and_tell(run, store, aside=True, program=program)


def _show(run: Run, store: Store, runs_dir: Path, as_page: bool) -> None:
    from hpcprof.cli.browser import open_page
    from hpcprof.report.request import AnalysisReport, ReportRequest, make_report
    from hpcprof.results.cleanup import page_path

    name = str(run.path) if run.manifest else run.id
    page = page_path(runs_dir, run.id) if as_page else None
    if page is not None:
        with writing(page):
            page.parent.mkdir(parents=True, exist_ok=True)
    request = ReportRequest((name,), html=page)
    made = make_report(request, store, runs_dir, partial(collect_first, store=store), explain_first)
    assert not isinstance(made, AnalysisReport)
    if page is not None and open_page(page):
        click.echo(f"{run.id}: opening {page} in the browser; hpcprof report {run.id} prints it")
    else:
        show_report(made)
