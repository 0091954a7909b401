"""The options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hpcprof.errors import UsageError
from hpcprof.job import Job, make_job
from hpcprof.site import load_site
from hpcprof.site_model import Site

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def runs_dir_option(command: CommandT) -> CommandT:
    """Add ``--runs-dir``."""
    return click.option(
        "--runs-dir",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="HPCPROF_RUNS",
        default="runs",
        show_default=True,
        help="Folder of runs (or $HPCPROF_RUNS).",
    )(command)


def db_option(command: CommandT) -> CommandT:
    """Add ``--db``."""
    return click.option(
        "--db",
        envvar="HPCPROF_DB",
        metavar="URL",
        help="Results database: a path or an SQLAlchemy URL (or $HPCPROF_DB).  "
        "[default: hpcprof.db among the runs]",
    )(command)


def job_options(command: CommandT) -> CommandT:
    """Add the options that describe a job; ``submit`` and ``render`` have the same."""
    positive = click.IntRange(min=1)
    for option in reversed(
        [
            click.option(
                "--site", default="local", show_default=True, help="Site to run on (hpcprof sites list)."
            ),
            click.option("--workload", help="Built-in workload; its own arguments go after --."),
            click.option("--nodes", type=positive, default=1, show_default=True, help="Number of nodes."),
            click.option(
                "--ranks-per-node", type=positive, default=1, show_default=True, help="Ranks on each node."
            ),
            click.option("--profiler", default="none", show_default=True, help="none, nsys or torch."),
            click.option(
                "--profile-ranks",
                default="all",
                show_default=True,
                help="Ranks under the profiler: all, none, 0,4-7, local=0, nodes=0-1, every=16.",
            ),
            click.option("--queue", default="", help="Queue or partition."),
            click.option("--account", default="", help="Account or project that pays."),
            click.option("--walltime", help="HH:MM:SS, or 90m, 1h30m.  [default: the site's]"),
            click.option("--job-name", help="Name of the job.  [default: the workload's]"),
            click.option(
                "-o",
                "--option",
                "options",
                multiple=True,
                metavar="KEY=VALUE",
                help="A site's own option (hpcprof sites show SITE). Repeatable.",
            ),
            click.option(
                "--template",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Template of job.sh, instead of the scheduler's.",
            ),
            runs_dir_option,
            click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]"),
        ]
    ):
        command = option(command)
    return command


def site_and_job(options: dict[str, Any]) -> tuple[Site, Job]:
    """Build the site and the checked job from the values of `job_options`."""
    site = load_site(options["site"])
    return site, make_job(
        site,
        workload=options["workload"],
        arguments=list(options["program"]),
        name=options["job_name"],
        nodes=options["nodes"],
        ranks_per_node=options["ranks_per_node"],
        walltime=options["walltime"],
        profiler=options["profiler"],
        profile_ranks=options["profile_ranks"],
        queue=options["queue"],
        account=options["account"],
        options=_pairs(options["options"]),
    )


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"-o {text}: write it as KEY=VALUE.")
        pairs[key] = value
    return pairs
