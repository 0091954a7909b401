"""``hpcprof tag``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import flag, runs_dir_option
from hpcprof.runs.tags import change_tags, check_tags


@command_with_examples("tag", "hpcprof tag last baseline batch=64", "hpcprof tag last baseline --remove")
@runs_dir_option
@flag("--remove", help="Remove the tags instead.")
@click.argument("run", shell_complete=complete_runs)
@click.argument("tags", nargs=-1, required=True, metavar="TAG…")
def command(runs_dir: Path, remove: bool, run: str, tags: tuple[str, ...]) -> None:
    """Add tags to a run, or remove them.

    RUN is a run id, a name that means one run, a path, or last; an array sweep means all its runs. A tag
    is a word: letters, digits and . : = / + @ - _. hpcprof list shows the tags and --tag selects by them;
    hpcprof gc keeps runs that have one.
    """
    check_tags(tags)
    from hpcprof.results.collect.run_names import find_known_runs
    from hpcprof.results.store.store import open_store

    for known_run in find_known_runs([run], runs_dir, open_store(None, runs_dir)):
        after = change_tags(known_run, runs_dir, tags, remove)
        echo(f"{known_run.id}: {' '.join(after) or 'no tags'}")
