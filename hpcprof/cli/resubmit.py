"""``hpcprof resubmit``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, typed_command
from hpcprof.cli.job_options import repeated_job, show_submitted
from hpcprof.cli.options import flag, runs_dir_option
from hpcprof.submit.jobs.checks import check_resubmission


@command_with_examples("resubmit", "hpcprof resubmit last --wait")
@runs_dir_option
@flag("--wait", help="Wait until the job has ended; exit 0 only if it succeeded, 5 if it stalled.")
@click.argument("run", shell_complete=complete_runs)
def command(runs_dir: Path, wait: bool, run: str) -> None:
    """Submit the job of a run again, unchanged."""
    from hpcprof.cli.submit import wait_for
    from hpcprof.submit.submission import submit

    site, job = repeated_job(run, runs_dir)
    if not wait:
        check_resubmission(site, job)
    again = submit(site, job, runs_dir, typed_command())
    show_submitted(again)
    if wait:
        wait_for(again)
