"""``hpcprof render``."""

from pathlib import Path

import click

from hpcprof.cli.conventions import command_with_examples, echo, typed_command
from hpcprof.cli.job_options import job_options, log_origins
from hpcprof.cli.options import FILE, FOLDER
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import writing
from hpcprof.common.private import private_mode
from hpcprof.submit.jobs.checks import missing_requirements
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.merge import merged
from hpcprof.submit.jobs.request import resolve
from hpcprof.submit.rendering.job_scripts import draft_directory, render_masked, render_scripts
from hpcprof.submit.schedulers.registry import find_scheduler


@command_with_examples(
    "render", "hpcprof render --ranks-per-node 2 --output job -- python train.py", "bash job/job.sh"
)
@job_options
@click.option(
    "--output",
    type=FOLDER,
    metavar="DIR",
    help="Write the scripts to this folder, which is then the run directory of the job.",
)
@click.option("--save", type=FILE, metavar="FILE", help="Also write a job file.")
def command(request: JobSpec, output: Path | None, save: Path | None) -> None:
    """Print or write the scripts that submit would use.

    Without --output, job.sh is printed, or for Kubernetes the manifest with job.sh in it, with secrets masked
    (***). Files have them, and only you can read these. Options that the site requires may be missing; they
    are named on standard error.
    """
    site, job = resolve(request, draft=True)
    log_origins(request, site, job)
    for sentence in missing_requirements(job, site):
        echo(f"hpcprof: a draft that submit would refuse: {sentence}", err=True)
    directory = output or draft_directory(site, request.runs_dir)
    render = render_masked if output is None else render_scripts
    texts = render(site, job, directory, typed_command(), template=request.template)
    if save is not None:
        from hpcprof.submit.jobs.job_file import dump_job_file

        with writing(save):
            write_atomically(save, dump_job_file(merged(request)), private_mode())
    if output is None:
        echo(texts[find_scheduler(site.scheduler).submitted_file], nl=False)
        return
    for name, text in texts.items():
        with writing(output / name):
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(output / name, text, private_mode(script=text.startswith("#!")))
    echo(f"wrote {', '.join(str(output / name) for name in texts)}")
