"""``hpcprof doctor``."""

import sys
from pathlib import Path

import click

from hpcprof.cli.completion import complete_sites
from hpcprof.cli.conventions import command_with_examples
from hpcprof.cli.options import EXISTING_FILE, default_site, flag, runs_dir_option
from hpcprof.cli.tables import show
from hpcprof.submit.doctor import CHECKS, Inspected, Status, examine, node_evidence
from hpcprof.submit.sites.files import load_site, load_site_file


@command_with_examples("doctor", "hpcprof doctor", "hpcprof doctor --site mycluster --probe")
@click.option(
    "--site",
    default=default_site,
    shell_complete=complete_sites,
    help="Site whose requirements are checked.  [default: that of hpcprof config, or local]",
)
@click.option("--site-file", type=EXISTING_FILE, metavar="FILE", help="Site file, instead of a name.")
@flag("--probe", help="Also start two MPI ranks, in a job of a few seconds.")
@flag(
    "--node", help="Also test on a node, in a job, which evidence of hangs and deaths can be gathered there."
)
@runs_dir_option
def command(site: str, site_file: Path | None, probe: bool, node: bool, runs_dir: Path) -> None:
    """Check what works here, and suggest fixes.

    The exit code is 1 if something is broken; absent software may not be needed.
    """
    loaded = load_site_file(site_file) if site_file else load_site(site)
    option = loaded.options.get("python")
    python = (option.default if option else "") or sys.executable
    machine = Inspected(loaded, runs_dir, python, probe)
    findings = [*examine(machine, CHECKS), *(node_evidence(machine) if node else ())]
    show(
        [(f.name, f.status.value, f"{f.observation} {f.remedy}".rstrip()) for f in findings],
        ("check", "status", "observation"),
    )
    if any(f.status is Status.BROKEN for f in findings):
        sys.exit(1)
