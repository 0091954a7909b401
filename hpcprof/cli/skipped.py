"""What was left out because it cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click


def exit_naming(skipped: Sequence[str]) -> None:
    """Name what was left out, a sentence each, and exit with 1; go on where there is nothing."""
    for sentence in skipped:
        click.echo(f"hpcprof: skipped: {sentence}", err=True)
    if skipped:
        sys.exit(1)
