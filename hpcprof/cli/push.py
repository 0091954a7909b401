"""``hpcprof push``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.cli.progress import ProgressLine, bar
from hpcprof.common.errors import HpcprofError

if TYPE_CHECKING:
    from hpcprof.results.push import HubAddress
    from hpcprof.results.store.store import Store
    from hpcprof.submit.runs.directory import Run


@click.command(
    "push",
    epilog=examples(
        "hpcprof push https://profiles.example.org",
        "hpcprof push https://profiles.example.org RUN1 RUN2 --scrub --token-file ~/.hub-token",
    ),
)
@runs_dir_option
@db_option
@click.option("--scrub", is_flag=True, help="Push copies without hosts, users, paths and environments.")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with the token of the hub.  [default: $HPCPROF_TOKEN]",
)
@click.argument("url", metavar="URL")
@click.argument("runs", nargs=-1, metavar="[RUN]…", shell_complete=complete_runs)
def command(
    runs_dir: Path, db: str | None, scrub: bool, token_file: Path | None, url: str, runs: tuple[str, ...]
) -> None:
    """Send results and kept events of runs to a hub.

    A hub is hpcprof serve --accept on another machine. RUN is a run id, a name that means one run, or last
    (the default). Pushing again changes nothing, and a push that broke off goes on where it was. With --scrub
    the profiles are copied without private data, and collected once more from these copies.
    """
    from hpcprof.cli.report import collect_first
    from hpcprof.report.request import collect_missing
    from hpcprof.results.push import hub_address
    from hpcprof.results.run_names import find_known_runs
    from hpcprof.results.store.store import open_store

    hub = hub_address(url, token_file)
    store = open_store(db, runs_dir)
    found = find_known_runs(runs or ("last",), runs_dir, store)
    collect_missing(found, store, partial(collect_first, store=store))
    if not push_each(hub, found, store, scrub):
        sys.exit(1)


def pushing_to(url: str | None) -> HubAddress | None:
    """Return the hub that ``--push`` names, with the token in the environment; None without one."""
    if url is None:
        return None
    from hpcprof.results.push import hub_address

    return hub_address(url, None)


def push_ended(hub: HubAddress, runs: Sequence[Run], runs_dir: Path) -> bool:
    """Collect runs whose jobs have ended and push them, as `push_each` does."""
    from hpcprof.results.store.store import open_store

    store = open_store(os.environ.get("HPCPROF_DB"), runs_dir)
    store.prepare()
    return push_each(hub, runs, store, collect=True)


def push_each(
    hub: HubAddress, runs: Sequence[Run], store: Store, scrub: bool = False, collect: bool = False
) -> bool:
    """Push runs one after the other, print where each is, and return whether the hub has all of them.

    What fails is told on standard error, and the next run follows: it is not the result of a job.
    """
    from hpcprof.cli.collect import collect_and_tell
    from hpcprof.results.push import push_run

    complete = True
    for run in runs:
        try:
            if collect:
                collect_and_tell(run, store, aside=True)
            with PushingLine(run.id) as line:
                address = push_run(run, store, hub, line.show, scrub)
        except HpcprofError as error:
            click.echo(f"hpcprof: {run.id} was not pushed: {error}", err=True)
            complete = False
        else:
            click.echo(f"{run.id}: {address}")
    return complete


class PushingLine(ProgressLine):
    """The progress of one push."""

    def __init__(self, run_id: str) -> None:
        super().__init__(self._progress, on_error_output=True)
        self._run, self._done, self._of = run_id, 0, 0

    def show(self, done: int, of: int) -> None:
        """Show the bytes that have been pushed, and those of all."""
        self._done, self._of = done, of
        self.refresh()

    def _progress(self) -> str:
        return f"pushing {self._run} {bar(self._done, self._of)}" if self._of else ""
