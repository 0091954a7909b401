"""``hpcprof serve``."""

from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import click
from click.core import ParameterSource

from hpcprof.cli.conventions import Group, echo, examples
from hpcprof.cli.options import FILE, flag, repeatable, runs_dir_option, store_options, with_default
from hpcprof.cli.tables import format_option, write_rows
from hpcprof.common.errors import HpcprofError, UsageError

_PORT = 8765


@click.group(
    "serve",
    cls=Group,
    invoke_without_command=True,
    epilog=examples(
        "hpcprof serve",
        "hpcprof serve --port 0 --token",
        "hpcprof serve --host 0.0.0.0 --allow-host profiles.example.org",
        "hpcprof serve --accept --runs-dir hub --allow-host profiles.example.org",
    ),
)
@store_options
@with_default(
    "--host",
    default="127.0.0.1",
    metavar="NAME",
    help="Name or address of this machine to listen on. Any but loopback requires a token.",
)
@with_default(
    "--port", type=click.IntRange(0, 65535), default=_PORT, help="Port to listen on; 0 takes a free one."
)
@flag("--token", help="Require a token on loopback too, as on a shared login node.")
@repeatable(
    "--allow-host",
    "names",
    metavar="NAME",
    help="Also answer requests for this name, such as that of a reverse proxy. Repeatable.",
)
@flag(
    "--accept", help="Be a hub: show what others push (hpcprof push) to --runs-dir, to whoever has a token."
)
@click.option(
    "--user-header",
    metavar="NAME",
    help="With --accept and --proxy or --unix: header in which a reverse proxy names the user "
    "(token create --proxied).",
)
@click.option(
    "--proxy",
    metavar="ADDRESS",
    help="Address of that proxy; from anywhere else the header means nothing.",
)
@click.option(
    "--unix",
    type=FILE,
    metavar="FILE",
    help="Listen on this Unix socket, which only you can open, instead of --host and --port.",
)
@flag(
    "--https",
    help="Browsers reach it over https: they must send cookies over nothing else. A proxy can say "
    "so with X-Forwarded-Proto.",
)
@click.pass_context
def command(
    context: click.Context,
    runs_dir: Path,
    db: str | None,
    host: str,
    port: int,
    token: bool,
    names: tuple[str, ...],
    accept: bool,
    user_header: str | None,
    proxy: str | None,
    unix: Path | None,
    https: bool,
) -> None:
    """Show runs and their results in a browser.

    Open the printed address; if it has a token, the token is needed only the first time. Ctrl-C ends the
    server. It never submits, collects or deletes anything, and can run beside all other commands. Tags and
    notes of runs can be edited where a token is needed.

    With --accept it also takes runs that others push. The folder of runs then has a folder of each project.
    """
    if context.invoked_subcommand is not None:
        return
    named = context.get_parameter_source("runs_dir") is ParameterSource.COMMANDLINE
    if named and not (accept or runs_dir.is_dir()):
        raise UsageError(f"--runs-dir {runs_dir}: there is no such folder.")
    if proxy and unix:
        raise UsageError("--proxy and --unix: whoever opens the socket is the proxy; give one of them.")
    if (user_header is None and proxy) or (user_header and not (accept and (proxy or unix))):
        raise UsageError(
            "--user-header NAME is for --accept, with --proxy ADDRESS or --unix FILE; --proxy needs it."
        )
    if proxy and not _is_address(proxy):
        raise UsageError(f"--proxy {proxy}: write an IP address, as in 127.0.0.1.")
    try:
        from hpcprof.serve.server import Serving, serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "hpcprof":
            raise
        raise HpcprofError(f"hpcprof serve needs {error.name}: pip install 'hpcprof[serve]'.") from None
    serving = Serving(
        host, port, names, token, accept, user_header or "", proxy or "", unix and unix.absolute(), https
    )
    serve(serving, runs_dir, db, lambda address: echo(address))


def _is_address(text: str) -> bool:
    with suppress(ValueError):
        return str(ip_address(text)) == text
    return False


@command.group("token", cls=Group)
def token_group() -> None:
    """Make, list or remove the tokens of a hub."""


@token_group.command(
    "create",
    epilog=examples(
        "hpcprof serve token create ci --project train --may push",
        "hpcprof serve token create alice --project train --may read --proxied",
    ),
)
@runs_dir_option
@click.option("--project", required=True, metavar="P", help="Project whose runs it is for.")
@click.option(
    "--may",
    type=click.Choice(["read", "push"]),
    required=True,
    help="read: see the runs. push: also push runs, and edit their tags and notes.",
)
@click.option("--quota", metavar="SIZE", help="Most bytes it may push, as in 20G.  [default: 50 GiB]")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    metavar="N",
    help="Days after which it expires.  [default: it does not]",
)
@flag("--proxied", help="No token: NAME is a user whom the reverse proxy names.")
@click.argument("name")
def create(
    runs_dir: Path, project: str, may: str, quota: str | None, days: int | None, proxied: bool, name: str
) -> None:
    """Make a token and print it, this once: the hub keeps its SHA-256 only."""
    from hpcprof.common.units import mebibytes, parse_memory
    from hpcprof.serve.grants import DEFAULT_QUOTA, create_grant

    most = parse_memory(quota, "--quota") if quota else None
    quota_bytes = int(mebibytes(most) * 2**20) if most else DEFAULT_QUOTA
    token = create_grant(runs_dir, name, project, may, quota_bytes, proxied, days)
    echo(token or f"{name} may {may} {project} where the proxy names that user.")


@token_group.command("list", epilog=examples("hpcprof serve token list"))
@runs_dir_option
@format_option
def list_(runs_dir: Path, form: str) -> None:
    """List the tokens of a hub, without the tokens themselves."""
    from hpcprof.common.units import format_bytes
    from hpcprof.serve.grants import read_grants

    rows = [
        (
            grant.name,
            grant.project,
            grant.may,
            format_bytes(grant.quota_bytes),
            "token" if grant.sha256 else "proxy",
            grant.created,
            grant.expires or "–",
        )
        for grant in read_grants(runs_dir)
    ]
    write_rows(form, ("name", "project", "may", "quota", "by", "created", "expires"), rows)


@token_group.command("rm", epilog=examples("hpcprof serve token rm ci"))
@runs_dir_option
@click.argument("name")
def remove(runs_dir: Path, name: str) -> None:
    """Remove a token; a server that runs refuses it from then on."""
    from hpcprof.serve.grants import remove_grant

    remove_grant(runs_dir, name)
    echo(f"removed {name}")
