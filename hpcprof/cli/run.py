"""``hpcprof run``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_baselines
from hpcprof.cli.conventions import command_with_examples, echo, typed_command
from hpcprof.cli.job_options import job_options, log_origins, show_remarks, show_submitted
from hpcprof.cli.options import db_option, flag, push_option, with_default
from hpcprof.cli.pushing import hub_to_push_to, push_each
from hpcprof.cli.report import explain_first

if TYPE_CHECKING:
    from hpcprof.runs.directory import Run
    from hpcprof.runs.job import Job
    from hpcprof.submit.jobs.job import JobSpec
    from hpcprof.submit.schedulers.base import JobStatus
    from hpcprof.submit.sites.model import Site


@command_with_examples(
    "run",
    "hpcprof run --workload ddp --ranks-per-node 2 --profiler torch",
    "hpcprof run --here --ranks-per-node 4 -- ./solver input.txt",
    "hpcprof run --site perlmutter --nodes 2 --profiler nsys -- python train.py",
    "hpcprof run --repeat 5 --baseline main --profiler nsys -- python train.py",
)
@job_options
@flag("--here", help="Use the nodes of the job that this shell is in (salloc, qsub -I), without a new job.")
@with_default("--repeat", "count", type=click.IntRange(1, 100), default=1, help="Number of runs, one by one.")
@click.option(
    "--baseline",
    metavar="NAME",
    shell_complete=complete_baselines,
    help="With --repeat: take turns with the job of this baseline (A B B A), and compare.",
)
@db_option
@push_option
def command(
    request: JobSpec, here: bool, count: int, baseline: str | None, db: str | None, hub: str | None
) -> None:
    """Submit a job, wait for it, collect and explain its profiles, and show the report.

    The program is given as for hpcprof submit. Without --profiler, it runs under the profiler that the site's
    file names, if any. The exit code is that of the job; a job that failed is reported too if it left a
    profile. Ctrl-C leaves the job running; hpcprof report RUN shows it later.

    With --here, inside an allocation, the program starts at once on all of its nodes, or on --nodes of them,
    by the launcher of the site; this can be repeated as long as the allocation lasts.

    With --repeat and --baseline, the job of the baseline's last run is submitted as often as this one, in the
    order A B B A, so that a drift of the machine meets both alike; then both sides are compared. The first
    job that fails ends the repeats.
    """
    from hpcprof.cli.collect import collect_and_report
    from hpcprof.cli.repeats import check, repeat
    from hpcprof.cli.submit import follow
    from hpcprof.submit.jobs.merge import merged, site_of
    from hpcprof.submit.jobs.request import make_job
    from hpcprof.submit.launchers import check_starts_ranks
    from hpcprof.submit.submission import submit

    check_starts_ranks(os.environ)
    check(count, baseline, here)
    address = hub_to_push_to(hub)
    typed_request, request = request, merged(request)
    if here:
        from hpcprof.submit.jobs.merge import within_allocation

        site, request = within_allocation(request)
    else:
        site = site_of(request)
    if request.profiler is None and site.profiler:
        request = replace(request, profiler=site.profiler)
    job = make_job(site, request, draft=here)
    log_origins(typed_request, site, job)
    show_remarks(site, [job], request.runs_dir, here=here, explained=True)

    from hpcprof.results.store.store import open_store

    store = open_store(db, request.runs_dir)

    def run_job(site: Site, job: Job) -> tuple[Run, JobStatus, str | None]:
        """Submit a job, wait for it, collect and explain it.

        Return its run, status, and why it was not explained: an empty text if it was, None if nothing of it
        was collected.
        """
        run = submit(site, job, request.runs_dir, typed_command(), request.template, here=here)
        show_submitted(run)
        run, status = follow(run, request.template)
        # Imported here: a job is submitted without what reads profiles.
        from hpcprof.profiles.readers.discovery import find_profiles
        from hpcprof.results.collect.stalls import is_unprofiled

        ended_well = exit_code(status) == 0
        collects = bool(find_profiles(run.outputs())) or (ended_well and is_unprofiled(run, store))
        if collects or address is not None:
            store.prepare()
        if not collects:
            return run, status, None
        collect_and_report(run, store, aside=True)
        return run, status, explain_first(run, store)

    def push(run: Run, unexplained: str | None) -> int:
        """Push a run if a hub is given, and return 1 if it was not pushed."""
        collect = partial(collect_and_report, store=store, aside=True) if unexplained is None else None
        return int(address is not None and not push_each(address, [run], store, collect=collect))

    def run_again(site: Site, job: Job) -> Run:
        run, status, unexplained = run_job(site, job)
        if code := exit_code(status) or push(run, unexplained):
            echo(f"hpcprof: the repeats end here, since {run.id} did not succeed", err=True)
            sys.exit(code)
        return run

    if (count, baseline) != (1, None):
        repeat(count, baseline, site, job, store, request.runs_dir, run_again)
        return
    run, status, unexplained = run_job(site, job)
    from hpcprof.cli.tables import show_report
    from hpcprof.report.contents import gather
    from hpcprof.submit.runs.failures import nothing_recorded

    if unexplained is not None or any((run.outputs() / "results").glob("rank*.json")):
        show_report(gather(run, store, status, unexplained=unexplained or ""))
    elif job.profiler != "none" and not nothing_recorded(run):
        echo(
            f"hpcprof: no report of {run.id}: its ranks left no profile, and its program wrote no results",
            err=True,
        )
    pushed = push(run, unexplained)
    sys.exit(exit_code(status) or pushed)


def exit_code(status: JobStatus) -> int:
    """Return the exit code of a shell for an ended job: its own, 128 and more for a signal, else 1."""
    from hpcprof.submit.schedulers.base import JobState

    if status.state is JobState.COMPLETED:
        return 0
    if status.state is not JobState.FAILED or not status.exit_code:
        return 1
    return status.exit_code if status.exit_code > 0 else 128 - status.exit_code
