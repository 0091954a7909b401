"""``hpcprof sites``."""

import json
import os
from pathlib import Path

import click
import msgspec

from hpcprof.cli.completion import complete_files, complete_sites
from hpcprof.cli.conventions import Group, echo, examples
from hpcprof.cli.options import default_site, flag
from hpcprof.cli.tables import show
from hpcprof.common.errors import unknown
from hpcprof.submit.sites.files import load_site, load_site_file, site_files


@click.group("sites", cls=Group, epilog=examples("hpcprof sites show local"))
def command() -> None:
    """List, show, check or create sites.

    Sites are YAML files in ./site_configs and ~/.config/hpcprof/sites; hpcprof ships some.
    """


@command.command("list", epilog=examples("hpcprof sites list"))
def list_() -> None:
    """List the sites for --site; the facts about unverified ones come from others."""
    rows = []
    for name, path in site_files().items():
        site = load_site_file(path)
        rows.append((name, site.scheduler, "yes" if site.verified else "no", site.description))
    show(sorted(rows), ("site", "scheduler", "verified", "description"))


@command.command("show", epilog=examples("hpcprof sites show local"))
@click.argument("name", default=default_site, shell_complete=complete_sites)
def show_(name: str) -> None:
    """Print a site, merged with the site that it extends; by default that of hpcprof config, or local."""
    site = load_site(name)
    document = msgspec.to_builtins(site)
    if keys := document.pop("scheduler_keys", {}):
        document[site.scheduler] = keys
    echo(msgspec.yaml.encode(document).decode(), nl=False)


@command.command("check", epilog=examples("hpcprof sites check site_configs/mine.yaml"))
@click.argument("file", metavar="FILE|NAME", shell_complete=complete_files)
def check(file: str) -> None:
    """Check a site, by its file or name; exit 2 and name the first mistake if it is wrong."""
    path = site_files().get(file) if not Path(file).exists() else Path(file)
    if path is None:
        raise unknown("site", file, site_files(), ", and there is no such file")
    site = load_site_file(path)
    echo(f"{path}: site {site.name} is valid")


@command.command(
    "schema",
    epilog=examples(
        "hpcprof sites schema > site.schema.json", "hpcprof sites schema --job > job.schema.json"
    ),
)
@flag("--job", help="Print the schema of a job file instead.")
def schema(job: bool) -> None:
    """Print the JSON Schema of a site file, for editors."""
    from hpcprof.submit.sites.schema import job_schema, site_schema

    echo(json.dumps(job_schema() if job else site_schema(), indent=2))


@command.command("new", epilog=examples("hpcprof sites new mycluster --probe"))
@click.argument("name")
@click.option(
    "--from",
    "template",
    shell_complete=complete_sites,
    help="Site to extend.  [default: the generic one of the scheduler that answers on this machine]",
)
@flag("--probe", help="Also start two MPI ranks, in a job of a few seconds.")
def new(name: str, template: str | None, probe: bool) -> None:
    """Write ./site_configs/NAME.yaml, with what this machine's commands show.

    Queues and nodes come from scontrol and sinfo, or qstat and pbsnodes, accounts from sacctmgr, GPUs from
    nvidia-smi. PBS passes no environment on, so the active one goes into the site (modules, setup). With
    --probe two ranks in a job show the launcher that runs, or the type of srun --mpi that connects MPI
    programs. An
    existing file is never overwritten.
    """
    from hpcprof.submit.doctor import Inspected
    from hpcprof.submit.schedulers.polling import check_answers
    from hpcprof.submit.schedulers.registry import find_scheduler
    from hpcprof.submit.sites.probe import add_mpi, generic_site, new_site

    parent = load_site(template or generic_site())
    scheduler = find_scheduler(parent.scheduler)
    if scheduler.installed:
        check_answers(scheduler, parent, "no site was written")
    path = new_site(name, parent.name, Path("site_configs"), environment=os.environ)
    echo(f"MPI: {add_mpi(path, Inspected(load_site_file(path), Path('runs'), probe=probe))}")
    echo(f"wrote {path}; after your changes, run: hpcprof sites check {path}")
