"""``hpcprof sites``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from hpcprof.cli.examples import examples
from hpcprof.cli.tables import show
from hpcprof.site import load_site, load_site_file, site_files


@click.group("sites", epilog=examples("hpcprof sites show local"))
def command() -> None:
    """List, show or check the sites.

    Sites are YAML files in ./site_configs, ~/.config/hpcprof/sites, and hpcprof itself.
    """


@command.command("list", epilog=examples("hpcprof sites list"))
def list_() -> None:
    """List the sites that --site knows."""
    rows = []
    for name, path in site_files().items():
        site = load_site_file(path)
        rows.append((name, site.scheduler.value, site.description))
    show(sorted(rows), ("site", "scheduler", "description"))


@command.command("show", epilog=examples("hpcprof sites show local"))
@click.argument("name", default="local")
def show_(name: str) -> None:
    """Print a site as it is resolved, with what it extends."""
    click.echo(msgspec.yaml.encode(load_site(name)).decode(), nl=False)


@command.command("check", epilog=examples("hpcprof sites check site_configs/mine.yaml"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Check a site file; a wrong one is one sentence and exit code 2."""
    site = load_site_file(file)
    click.echo(f"{file}: site {site.name} is valid")
