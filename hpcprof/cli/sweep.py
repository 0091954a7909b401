"""``hpcprof sweep``."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

import click

from hpcprof.cli.conventions import command_with_examples, echo, typed_command
from hpcprof.cli.job_options import job_options, log_origins, show_remarks, show_submitted
from hpcprof.cli.options import flag, repeatable
from hpcprof.cli.tables import show
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.masking import masked_command
from hpcprof.runs.directory import Run, sweep_of, typed_name
from hpcprof.submit.jobs.checks import check_array, check_resubmission
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.merge import merged, site_of
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.rendering.job_scripts import render_array
from hpcprof.submit.schedulers.command import Unreachable
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.workloads.sweep import label, parse_parameters, points, program_at


@command_with_examples(
    "sweep",
    "hpcprof sweep --workload sequence-parallel -P hidden-size=256,512 -P dtype=float32,bfloat16",
    "hpcprof sweep -P lr=0.1,0.01 -- python train.py --lr {lr}",
    "hpcprof sweep --site perlmutter … --array --at-once 4 -P batch=8,16,32 -- ./train {batch}",
)
@job_options
@repeatable(
    "-P",
    "--parameter",
    "parameters",
    required=True,
    metavar="KEY=VALUE,…",
    help="Values of a parameter. Repeatable: every combination is a run.",
)
@flag("--array", "as_array", help="Submit the runs as one job array (Slurm and PBS).")
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of runs at once, in an array or on this machine.  [default: all; on this machine 1]",
)
@flag("--wait", help="Wait until all runs have ended; exit 0 only if all succeeded, 5 if one stalled.")
@flag("--dry-run", help="Show the runs and the script of the array without submitting.")
def command(
    request: JobSpec,
    parameters: tuple[str, ...],
    as_array: bool,
    at_once: int | None,
    wait: bool,
    dry_run: bool,
) -> None:
    """Submit a run for every combination of parameters.

    A value replaces {KEY} in the program's arguments; a built-in workload gets it as --KEY VALUE.
    Every run is checked before the first one is submitted.

    With --array the runs are members of one job array, with the names SWEEP.0, SWEEP.1 and so on; status,
    cancel, collect and --after accept SWEEP for all of them, and hpcprof report SWEEP is a table of the step
    by parameter.

    On this machine too the runs have such names. They start one after another, so that they do not disturb
    each other's measurements, and continue after the command or the terminal has ended.
    """
    typed_request, request = request, merged(request)
    site = site_of(request)
    in_turn = find_scheduler(site.scheduler).runs_here and not as_array
    if at_once is not None and not as_array and not in_turn:
        raise UsageError("--at-once needs --array: separate jobs run independently of each other.")
    combinations = points(parse_parameters(parameters))
    programs = [program_at(point, request.program, request.workload) for point in combinations]
    members = [make_job(site, replace(request, program=tuple(program))) for program in programs]
    if as_array:
        check_array(site, members[0].queue, len(members), at_once)
    check_resubmission(site, members[0])
    log_origins(typed_request, site, members[0])
    line = typed_command()
    runs_dir, template = request.runs_dir, request.template
    show_remarks(site, members, runs_dir)
    if dry_run:
        show([(str(i), masked_command(job.arguments)) for i, job in enumerate(members)], ("run", "arguments"))
        if as_array:
            script, _ = render_array(site, members, runs_dir / "SWEEP_ID", line, at_once, template)
            echo(f"\n{script}", nl=False)
        return
    from hpcprof.submit.submission import submit, submit_array, submit_in_turn

    if as_array:
        submitted: Iterable[Run] = submit_array(site, members, runs_dir, line, at_once, template)
    elif in_turn:
        submitted = submit_in_turn(site, members, runs_dir, line, at_once or 1, template)
    else:
        submitted = (submit(site, job, runs_dir, line, template) for job in members)
    runs = []
    try:
        for run, point in zip(submitted, combinations, strict=True):
            runs.append(run)
            show_submitted(run, f"  {label(point)}")
    except BaseException as error:
        # The scheduler may have taken a job whose submission was interrupted.
        unsure = isinstance(error, Unreachable) or not isinstance(error, HpcprofError)
        if runs and (left := combinations[len(runs) + unsure :]):
            echo(f"not submitted: {'; '.join(map(label, left))}", err=True)
        raise
    if (sweep := sweep_of(run.id)) is not None:
        kind = "job array" if as_array else "sweep"
        echo(f"the runs are one {kind}: hpcprof status {typed_name(run.path.with_name(sweep))}")
    if wait:
        _wait_for(runs)


def _wait_for(runs: Sequence[Run]) -> None:
    """Show each change until all runs have ended. Exit 5 if one was ended by a stall, 1 if one failed."""
    from hpcprof.cli.status import show_states
    from hpcprof.submit.schedulers.base import JobState
    from hpcprof.submit.waiting import STALL_EXIT_CODE, ended_by_stall, watch

    try:
        for states in watch(runs):
            show_states(runs, states)
    except KeyboardInterrupt:
        names = {typed_name(run.path.with_name(sweep_of(run.id) or run.id)) for run in runs}
        name = names.pop() if len(names) == 1 else "RUN"
        echo(f"\nleft the runs running: hpcprof status {name}, hpcprof cancel {name}", err=True)
        sys.exit(130)
    if any(map(ended_by_stall, runs)):
        sys.exit(STALL_EXIT_CODE)
    if any(status.state is not JobState.COMPLETED for status in states.values()):
        sys.exit(1)
