"""``hpcprof open``."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_files
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import StepTime, flag, store_options
from hpcprof.cli.progress import SearchingLine
from hpcprof.cli.report import collect_first, explain_first, report_of_run
from hpcprof.cli.tables import show_report
from hpcprof.common.errors import UsageError, writing
from hpcprof.common.processes import CommandNotStarted, start_in_background

if TYPE_CHECKING:
    from hpcprof.results.store.store import Store
    from hpcprof.runs.directory import Run


@command_with_examples(
    "open",
    "hpcprof open profiles",
    "hpcprof open rank0.sqlite.xz",
    "hpcprof open before after --terminal",
    "hpcprof open traces --program train",
    "hpcprof open rank0.sqlite --step-time 24.5ms",
)
@store_options
@click.option(
    "--program",
    metavar="NAME",
    help="The program that ran, for compare, history and scaling. All files of a folder then are its ranks.",
)
@click.option(
    "--step-time",
    metavar="TIME",
    type=StepTime(),
    help="Time of a step without the profiler, such as 24.5ms: what is explained is the program without the "
    "profiler's share.",
)
@flag("--terminal", help="Show the report here, also where there is a browser.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", shell_complete=complete_files)
def command(
    runs_dir: Path,
    db: str | None,
    program: str | None,
    step_time: int | None,
    terminal: bool,
    paths: tuple[str, ...],
) -> None:
    """Show what profiles say: collect, explain and report them.

    PATH is a profile (*.sqlite, *.nsys-rep or *_pqtdir of Nsight Systems, *.json of PyTorch, *.ncu-rep or
    *.csv of Nsight Compute, *.db, *_results.json, *kernel_trace.csv or *counter_collection.csv of
    rocprofv3, chrome_trace.json or *.unitrace.json of unitrace, *.xplane.pb of JAX, *_ascend_pt of torch_npu,
    *.log of NCCL's Inspector), also compressed as .xz, .gz or .zst; an archive of Score-P or EZTrace
    (*.otf2), which holds all ranks; a table of operations (*.parquet, *.csv) or *.et of Chakra; a snapshot of
    PyTorch's memory (*.pickle); a log of Darshan (*.darshan); a folder of these, or of such folders; or a
    run. Files of one folder are the ranks of one run.

    The report is a page in the browser where there is a display and a terminal, else it is printed. Nothing
    is written beside the profiles: results and pages are in the folder of runs.

    Compressed files are unpacked into a private temporary folder ($TMPDIR), which is removed when they have
    been read. One may become 200 times larger, or 100 MB; a larger one is left out with a sentence.
    """
    from hpcprof.cli.collect import collect_and_report, for_each, skipped_sentences
    from hpcprof.results.ask.explanation import explain
    from hpcprof.results.collect.run_names import find_runs_to_collect
    from hpcprof.results.collect.run_profiles import Search, several_runs_notes
    from hpcprof.results.store.store import open_store

    store = open_store(db, runs_dir)
    with SearchingLine() as progress:
        search = Search(progress)
        runs = find_runs_to_collect(paths, runs_dir, store, search)
    if step_time is not None and len(runs) > 1:
        raise UsageError(f"--step-time is about one run: {len(runs)} were found.")
    for sentence in (*several_runs_notes(runs), *skipped_sentences(search.skipped)):
        echo(f"hpcprof: {sentence}", err=True)
    store.prepare()
    as_page = can_show_pages() and not terminal

    def collect_and_show(run: "Run") -> bool:
        # The report of a submitted run collects it.
        complete = run.manifest is not None or collect_and_report(run, store, aside=True, program=program)
        if run.manifest or store.profiles(run.id) or store.has_run(run.id):
            if step_time is not None:
                explain(run, store, step_ns=step_time)
            if run is not runs[0] and not as_page:
                echo()
            _show(run, store, runs_dir, as_page)
        return complete

    if not for_each(runs, collect_and_show) or search.skipped:
        sys.exit(1)


def _show(run: "Run", store: "Store", runs_dir: Path, as_page: bool) -> None:
    from hpcprof.results.across.cleanup import page_path
    from hpcprof.results.collect.missing import find_collected_run

    name = str(run.path) if run.manifest else run.id
    page = page_path(runs_dir, run.id) if as_page else None
    if page is not None:
        with writing(page):
            page.parent.mkdir(parents=True, exist_ok=True)
    collected = find_collected_run(name, store, runs_dir, collect_first)
    contents = report_of_run(collected, store, explain_first(collected, store), html=page)
    if page is not None and open_page(page):
        echo(f"{run.id}: opening {page} in the browser; hpcprof report {run.id} prints it")
    else:
        show_report(contents)


_GRAPHICAL_BROWSERS = (
    "xdg-open",
    "x-www-browser",
    "firefox",
    "google-chrome",
    "chromium",
    "chromium-browser",
    "epiphany",
    "konqueror",
)
_IN_TERMINAL = {"www-browser", "w3m", "lynx", "links", "links2", "elinks", "browsh", "carbonyl"}
_START_SECONDS = 0.5
"""Time within which a browser that cannot open a page ends with an error."""


def can_show_pages() -> bool:
    """Return whether there is a display, and somebody at a terminal to look at it."""
    display = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return display and sys.stdout.isatty() and next(_commands(), None) is not None


def open_page(page: Path) -> bool:
    """Open a page in a browser, and return whether one was started; text browsers are left out."""
    return any(_starts([*command, page.absolute().as_uri()]) for command in _commands())


def _commands() -> Iterator[list[str]]:
    """Yield the commands of browsers with a window that are installed, those that the user prefers first."""
    preferred = os.environ.get("BROWSER", "").split(os.pathsep)
    for text in (*preferred, *(("open",) if sys.platform == "darwin" else _GRAPHICAL_BROWSERS)):
        try:
            words = [word for word in shlex.split(text) if word not in ("%s", "&")]
        except ValueError:
            continue
        program = shutil.which(words[0]) if words else None
        # A name such as x-www-browser may be a link to any browser.
        if program and not {Path(program).name, Path(program).resolve().name} & _IN_TERMINAL:
            yield [program, *words[1:]]


def _starts(command: list[str]) -> bool:
    # With $BROWSER, xdg-open could start a text browser.
    environment = {name: value for name, value in os.environ.items() if name != "BROWSER"}
    try:
        process = start_in_background(command, Path.cwd(), environment)
    except CommandNotStarted:
        return False
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    if process.poll() is None:
        process.returncode = 0  # The browser runs on: it is not ours to wait for.
    return process.returncode == 0
