"""``hpcprof rm``."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import flag, store_options
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import counted, format_bytes
from hpcprof.results.across.cleanup import Removal, chosen_removals, remove

yes_option = flag("-y", "--yes", help="Do not ask.")


@command_with_examples("rm", "hpcprof rm 20261121-143005-train-3fa9", "hpcprof rm --yes last")
@store_options
@yes_option
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", shell_complete=complete_runs)
def command(runs_dir: Path, db: str | None, yes: bool, runs: tuple[str, ...]) -> None:
    """Remove runs and their collected results.

    RUN is a run id, a name that means one run, a path, or last; an array sweep means all its runs. The
    run's directory and its rows in the results database are removed; files of profiles that were imported
    from another folder stay. A run whose job has not ended, or that is in a baseline, is not removed.
    """
    removals = chosen_removals(runs, runs_dir, db)
    confirm(removals, yes)
    carry_out(removals, runs_dir, db)


def confirm(removals: Sequence[Removal], yes: bool) -> None:
    """Show what will be removed and ask; return only if the user agrees, else raise `HpcprofError`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody can confirm here, since standard input is not a terminal: give --yes.")
    for removal in removals:
        echo(describe(removal))
    if not click.confirm(f"Remove {'it' if len(removals) == 1 else 'all of them'}?"):
        raise HpcprofError("nothing was removed.")


def carry_out(removals: Sequence[Removal], runs_dir: Path, db: str | None) -> None:
    """Remove, and name what is gone."""
    for removal in remove(removals, runs_dir, db):
        echo(f"removed {describe(removal)}")
    freed = sum(removal.bytes for removal in removals)
    if len(removals) > 1:
        echo(f"{counted(len(removals), 'run')} removed, {format_bytes(freed)} freed")


def describe(removal: Removal) -> str:
    """Return a sentence on the removed and the remaining files of one id."""
    if removal.run is None:
        assert removal.rows is not None
        place = Path(removal.rows.path)
        files_note = f"; the files in {place} are left" if place.exists() else ""
        return f"{removal.id}: its rows in the results database{files_note}"
    assert removal.status is not None
    collected = " and its rows in the results database" if removal.rows else ""
    return f"{removal.id} ({removal.status}): {format_bytes(removal.bytes)}{collected}"
