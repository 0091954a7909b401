"""``hpcprof push``."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples
from hpcprof.cli.options import FILE, flag, store_options
from hpcprof.cli.pushing import push_each

if TYPE_CHECKING:
    from hpcprof.results.across.push import HubAddress
    from hpcprof.runs.directory import Run


@command_with_examples(
    "push",
    "hpcprof push https://profiles.example.org",
    "hpcprof push https://profiles.example.org RUN1 RUN2 --scrub --token-file ~/.hub-token",
)
@store_options
@flag("--scrub", help="Push copies without hosts, users, paths and environments.")
@click.option(
    "--token-file",
    type=FILE,
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
    (the default). Pushing again changes nothing, and an interrupted push resumes where it stopped. With
    --scrub the profiles are copied without private data, and collected once more from these copies.
    """
    from hpcprof.cli.report import collect_first
    from hpcprof.results.across.push import hub_address
    from hpcprof.results.collect.missing import collect_missing
    from hpcprof.results.collect.run_names import find_known_runs
    from hpcprof.results.store.store import open_store

    hub = hub_address(url, token_file)
    store = open_store(db, runs_dir)
    known_runs = find_known_runs(runs or ("last",), runs_dir, store)
    collect_missing(known_runs, store, collect_first)
    if not push_each(hub, known_runs, store, scrub):
        sys.exit(1)


def push_ended(hub: "HubAddress", runs: "Sequence[Run]", runs_dir: Path) -> bool:
    """Collect runs whose jobs have ended and push them, as `push_each` does."""
    from hpcprof.cli.collect import collect_and_report
    from hpcprof.results.store.store import open_store

    store = open_store(os.environ.get("HPCPROF_DB"), runs_dir)
    store.prepare()
    return push_each(hub, runs, store, collect=partial(collect_and_report, store=store, aside=True))
