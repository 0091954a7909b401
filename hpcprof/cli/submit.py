"""``hpcprof submit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo, typed_command
from hpcprof.cli.job_options import job_options, log_origins, repeated_job, show_remarks, show_submitted
from hpcprof.cli.options import EXISTING_FILE, flag, push_option, repeatable
from hpcprof.cli.push import push_ended
from hpcprof.cli.pushing import hub_to_push_to
from hpcprof.common.errors import UsageError
from hpcprof.common.units import counted, format_bytes
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.checks import check_resubmission
from hpcprof.submit.jobs.job import OPTIONS, JobSpec
from hpcprof.submit.jobs.request import resolve
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.remote.request import Sync
from hpcprof.submit.rendering.job_scripts import draft_directory, render_masked
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT
from hpcprof.submit.sites.model import Site

if TYPE_CHECKING:
    from hpcprof.results.across.push import HubAddress
    from hpcprof.runs.directory import Run
    from hpcprof.submit.schedulers.base import JobStatus


@command_with_examples(
    "submit",
    "hpcprof submit --workload sequence-parallel --ranks-per-node 2 -- --steps 50",
    "hpcprof submit --ranks-per-node 4 --profiler nsys -- python train.py",
    "hpcprof submit --host polaris --sync . --exclude data -- python train.py",
)
@job_options
@flag("--dry-run", help="Show the job and its script without submitting.")
@flag("--wait", help="Wait until the job has ended; exit 0 only if it succeeded, 5 if it stalled.")
@click.option(
    "--from",
    "source",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Submit the job of this run again, unchanged.",
)
@click.option(
    "--script",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Submit this edited job.sh, instead of a rendered one.",
)
@click.option(
    "--sync",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="With --host: copy this folder to the run there, and start the program in it.",
)
@repeatable(
    "--exclude",
    "excludes",
    metavar="PATTERN",
    help="Leave these names or paths out of --sync, as in '*.pt'; .git, .venv and __pycache__ always are. "
    "Repeatable.",
)
@push_option
def command(
    request: JobSpec,
    dry_run: bool,
    wait: bool,
    source: str | None,
    script: Path | None,
    sync: Path | None,
    excludes: tuple[str, ...],
    hub: str | None,
) -> None:
    """Render a job's scripts and hand them to the scheduler.

    The program is a built-in workload, with its arguments after --, any command after --, or that of a job
    file.

    With --host, or a host in your own site file or configuration, the run's folder goes to that login node
    by ssh, and the scheduler's commands run there; hpcprof need not be installed there. The program then
    starts in your home folder there, or in the copy of --sync FOLDER.

    With --wait and --push, the run is collected and pushed to a hub when it has ended, also if it failed. The
    job itself pushes nothing: its nodes may reach no hub and have no hpcprof, and it has no token. Without
    --wait, hpcprof status --watch --push does it.
    """
    if hub and not wait:
        raise UsageError("--push is for --wait: give both, or push with hpcprof status --watch --push later.")
    address = hub_to_push_to(hub)
    runs_dir, template = request.runs_dir, request.template
    if source:
        if options_given := request.given():
            name = "the program" if options_given[0] == "program" else OPTIONS[options_given[0]].flag
            raise UsageError(f"--from repeats a run unchanged: leave out {name}.")
        site, job = repeated_job(source, runs_dir)
    else:
        site, job = resolve(request)
        log_origins(request, site, job)
    copied = _sync_folder(site, sync, excludes, bool(source))
    command_line = typed_command()
    if not wait:
        check_resubmission(site, job)
    show_remarks(site, [job], runs_dir)
    if dry_run:
        folder = draft_directory(site, runs_dir)
        texts = render_masked(site, job, folder, command_line, template=template, script=script)
        echo(_summary(site, job))
        echo(f"\n{texts[JOB_SCRIPT]}", nl=False)
        return
    # Imported here: --dry-run needs neither a scheduler nor a run directory, and is to be quick.
    from hpcprof.submit.submission import submit

    run = submit(site, job, runs_dir, command_line, template, script, sync=copied)
    if copied is not None:
        size = format_bytes(copied.size)
        echo(f"copied {counted(copied.files, 'file')} ({size}) of {copied.folder} to {site.host}")
    show_submitted(run)
    if wait:
        wait_for(run, template, script, address)


def _sync_folder(site: Site, folder: Path | None, excludes: tuple[str, ...], again: bool) -> Sync | None:
    if folder is None:
        if excludes:
            raise UsageError(f"--exclude {excludes[0]} is for --sync: give both, or neither.")
        return None
    if again:
        raise UsageError("--from repeats a run unchanged: leave out --sync.")
    if not site.host:
        raise UsageError(f"--sync {folder}: site {site.name} is used on this machine; give --host.")
    root, current = folder.resolve(), Path.cwd().resolve()
    below = str(current.relative_to(root)) if current.is_relative_to(root) else "."
    return Sync(root, excludes, below)


def _summary(site: Site, job: Job) -> str:
    profiled = job.profiled_ranks
    profiler = f"{job.profiler} on {len(profiled)} of {job.ranks} ranks" if profiled else "none"
    if profiled and len(profiled) <= 16:
        profiler += f" ({', '.join(map(str, profiled))})"
    return "\n".join(
        (
            f"site       {site.name} ({site.scheduler})",
            f"job        {job.name}: {job.nodes} x {job.ranks_per_node} ranks, "
            f"walltime {format_walltime(job.walltime)}",
            f"profiler   {profiler}",
        )
    )


def wait_for(
    run: Run, template: Path | None = None, script: Path | None = None, hub: HubAddress | None = None
) -> None:
    """Wait until a run has ended, as `follow` does, and push it if a hub is given.

    Exit 5 if the run was ended by a stall, 1 if it failed or was not pushed.
    """
    from hpcprof.submit.schedulers.base import JobState
    from hpcprof.submit.waiting import STALL_EXIT_CODE, ended_by_stall

    run, status = follow(run, template, script)
    pushed = hub is None or push_ended(hub, [run], run.path.parent)
    if status.state is not JobState.COMPLETED:
        sys.exit(STALL_EXIT_CODE if ended_by_stall(run) else 1)
    if not pushed:
        sys.exit(1)


def follow(run: Run, template: Path | None = None, script: Path | None = None) -> tuple[Run, JobStatus]:
    """Wait until a run has ended, showing its states, its output and why it failed.

    A run that stalled is submitted again if the job says so. Return the last run and its status.
    Ctrl-C, SIGTERM and SIGHUP leave the run running.
    """
    from hpcprof.submit.submission import runs_again, submit_again

    status = _wait_for_end(run)
    if runs_again(run):
        run = submit_again(run, template, script)
        echo(f"submitted it again as {run.id}")
        status = _wait_for_end(run)
    return run, status


def _wait_for_end(run: Run) -> JobStatus:
    from hpcprof.runs.directory import typed_name

    try:
        from hpcprof.cli.progress import WaitingLine
        from hpcprof.results.collect.stalls import stall_sentence
        from hpcprof.submit.runs.failures import completion_warnings
        from hpcprof.submit.schedulers.base import JobState
        from hpcprof.submit.waiting import describe_failure, ended_by_stall, wait_until_ended

        notes: list[str] = []

        def show_output(text: str) -> None:
            notes.extend(line for line in text.splitlines() if line.startswith("hpcprof: "))
            progress.print(text, nl=False)

        with WaitingLine(run.submission.job.walltime) as progress:
            status = wait_until_ended(run, progress.show_state, show_output)
    except KeyboardInterrupt:
        name = typed_name(run.path)
        echo(f"\nleft {run.id} running: hpcprof status {name}, hpcprof cancel {name}", err=True)
        sys.exit(130)
    if status.state is JobState.COMPLETED:
        echo(str(status))
        for warning in completion_warnings(run):
            if not any(warning in note for note in notes):  # the wrapper of a rank may have said it
                echo(f"hpcprof: warning: {warning}.", err=True)
    else:
        shown_rank = 0 if sys.stdout.isatty() else None
        lines = [f"{run.id} {status}"] if ended_by_stall(run) else describe_failure(run, status, shown_rank)
        echo("hpcprof: " + "\n".join(filter(None, [*lines, stall_sentence(run)])), err=True)
    return status
