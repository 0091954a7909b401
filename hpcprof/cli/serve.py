"""``hpcprof serve``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.cli.conventions import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.common.errors import HpcprofError

_PORT = 8765


@click.command(
    "serve",
    epilog=examples(
        "hpcprof serve",
        "hpcprof serve --port 0 --token",
        "hpcprof serve --host 0.0.0.0 --allow-host profiles.example.org",
    ),
)
@runs_dir_option
@db_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="NAME",
    help="Name or address of this machine to listen on. Any but loopback requires a token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--token", is_flag=True, help="Require a token on loopback too, as on a shared login node.")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Also answer requests for this name, as that of a reverse proxy. Repeatable.",
)
def command(
    runs_dir: Path, db: str | None, host: str, port: int, token: bool, names: tuple[str, ...]
) -> None:
    """Show runs and their results in a browser, read-only.

    Open the printed address; if it has a token, the token is needed only the first time. Ctrl-C ends the
    server. It neither submits nor collects nor deletes anything, and runs beside all other commands.
    """
    try:
        from hpcprof.serve.server import Serving, serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "hpcprof":
            raise
        raise HpcprofError(f"hpcprof serve needs {error.name}: pip install 'hpcprof[serve]'.") from None
    serve(Serving(host, port, names, token), runs_dir, db, lambda address: click.echo(address))
