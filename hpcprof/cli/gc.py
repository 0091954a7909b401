"""``hpcprof gc``."""

from datetime import datetime, timezone
from pathlib import Path

import click

from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import flag, store_options
from hpcprof.cli.rm import carry_out, confirm, describe, yes_option
from hpcprof.common.errors import UsageError
from hpcprof.common.units import counted, format_bytes
from hpcprof.results.across.cleanup import compact_store, missing_removals, old_removals
from hpcprof.results.across.listing import parse_age


@command_with_examples("gc", "hpcprof gc --older-than 30d --dry-run", "hpcprof gc --missing --yes")
@store_options
@click.option(
    "--older-than", metavar="AGE", help="Runs submitted longer ago than this (30d, 12h) that have ended."
)
@flag("--missing", help="Orphaned results, whose run or folder of profiles is gone.")
@flag("--dry-run", help="Show what would be removed.")
@yes_option
def command(
    runs_dir: Path, db: str | None, older_than: str | None, missing: bool, dry_run: bool, yes: bool
) -> None:
    """Remove old runs and orphaned results.

    Runs with a tag or in a baseline are kept, and those whose job has not ended. The rows of a removed run go
    with it. An SQLite database is shrunk afterwards.
    """
    age = parse_age(older_than) if older_than else None
    if older_than and age is None:
        raise UsageError(f"--older-than {older_than}: write a number with d, h or m, as in 30d or 12h.")
    if age is None and not missing:
        raise UsageError("give --older-than AGE, --missing, or both.")
    protected: set[str] = set()
    removals = (
        old_removals(datetime.now(timezone.utc) - age, runs_dir, db, protected) if age is not None else []
    )
    removals += missing_removals(runs_dir, db, protected) if missing else []
    if protected:
        echo(f"kept {counted(len(protected), 'run')} in a baseline: {', '.join(sorted(protected))}", err=True)
    if not removals:
        echo("nothing to remove")
        return
    if dry_run:
        for removal in removals:
            echo(f"would remove {describe(removal)}")
        size = format_bytes(sum(removal.bytes for removal in removals))
        echo(f"{counted(len(removals), 'run')}, {size}")
        return
    confirm(removals, yes)
    carry_out(removals, runs_dir, db)
    if shrunk := compact_store(removals, runs_dir, db):
        echo(f"the results database is {format_bytes(shrunk)} smaller")
