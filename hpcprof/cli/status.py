"""``hpcprof status``."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import flag, push_option, runs_dir_option
from hpcprof.cli.push import push_ended
from hpcprof.cli.pushing import hub_to_push_to
from hpcprof.cli.tables import show
from hpcprof.common.errors import UsageError
from hpcprof.results.collect.jobs import find_jobs
from hpcprof.results.collect.stalls import describe_end
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import describe_live_steps
from hpcprof.runs.preparation import describe_old_pythons, describe_staging
from hpcprof.submit.notify import failed_notices
from hpcprof.submit.remote.mirror import connect
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll
from hpcprof.submit.waiting import STALL_EXIT_CODE, ended_by_stall, watch


@command_with_examples("status", "hpcprof status", "hpcprof status 20261121-14 --watch")
@runs_dir_option
@flag("--watch", "watching", help="Show each change, until all runs have ended.")
@push_option
@click.argument("runs", nargs=-1, metavar="[RUN]…", shell_complete=complete_runs)
def command(runs_dir: Path, watching: bool, hub: str | None, runs: tuple[str, ...]) -> None:
    """Show the state of runs.

    RUN is a run id, a name that means one run, a path, or last (the default). An array sweep means all
    its runs.

    For a PyTorch program, and one that marks its steps, the number of steps done and the step time are shown,
    and ranks that have stopped are named, as is the rank whose memory on the host grows most with each step,
    with when its node is full. Where no rank makes progress, the rank that holds the others up is named.

    An environment that was staged has a line with the times of packing and unpacking.

    With --watch, the exit code is 5 if a run was ended because it had stalled. With --push too, the runs are
    collected and pushed to a hub when all have ended; the exit code is 1 if one was not.
    """
    if hub and not watching:
        sentence = "--push is for --watch: give both, or neither. hpcprof push pushes runs that have ended."
        raise UsageError(sentence)
    address = hub_to_push_to(hub)
    jobs = find_jobs(runs or ("last",), runs_dir)
    connect(jobs)
    for states in watch(jobs) if watching else [poll(jobs, LISTING_SECONDS)]:
        show_states(jobs, states)
    for run in jobs:
        if staged := describe_staging(run):
            echo(f"{run.id}: environment: {staged}")
        if old := describe_old_pythons(run):
            echo(f"{run.id}: Python {old}")
        if failed := failed_notices(run):
            echo(f"hpcprof: warning: {run.id}: not told: {failed}.", err=True)
    pushed = address is None or push_ended(address, jobs, runs_dir)
    if watching and any(map(ended_by_stall, jobs)):
        sys.exit(STALL_EXIT_CODE)
    if not pushed:
        sys.exit(1)


def show_states(runs: Sequence[Run], states: Mapping[str, JobStatus]) -> None:
    """Show the state of each run, and the reason for it."""
    rows = [(run.id, states[run.id].state.value, _detail(run, states[run.id])) for run in runs]
    show(rows, ("run", "state", "detail"))


def _detail(run: Run, status: JobStatus) -> str:
    """Return the reason for the state of a run, else how far its steps are, and what grows while it runs."""
    reason = describe_end(run, status)
    if reason or status.state is not JobState.RUNNING:
        return reason or describe_live_steps(run)
    from hpcprof.results.collect.run_memory import growing_memory

    steps, growth = describe_live_steps(run, time.time()), growing_memory(run)
    return f"{steps.rstrip('.')}. {growth}" if steps and growth else steps or growth
