"""``hpcprof render``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hpcprof.atomic import write_atomically
from hpcprof.cli.examples import examples
from hpcprof.cli.options import job_options, site_and_job
from hpcprof.errors import HpcprofError
from hpcprof.render import JOB_SCRIPT
from hpcprof.scripts import scripts


@click.command(
    "render",
    epilog=examples("hpcprof render --ranks-per-node 2 --output job -- python train.py", "bash job/job.sh"),
)
@job_options
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write job.sh and wrapper.sh there; what the job leaves will lie there too.",
)
def command(output: Path | None, **options: Any) -> None:
    """Print or write the scripts that submit would use.

    Without --output, job.sh is printed.
    """
    site, job = site_and_job(options)
    directory = output or options["runs_dir"] / "RUN_ID"
    texts = scripts(site, job, directory, ["hpcprof", *sys.argv[1:]], options["template"])
    if output is None:
        click.echo(texts[JOB_SCRIPT], nl=False)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(output / name, text)
    except OSError as error:
        raise HpcprofError(f"cannot write to {output}: {error.strerror}.") from None
    click.echo(f"wrote {', '.join(str(output / name) for name in texts)}")
