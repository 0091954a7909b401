"""Submission: from a site and a job to a run in the hands of the scheduler."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import HpcprofError, UsageError, writing
from hpcprof.common.logs import log_command
from hpcprof.common.paths import absolute_path
from hpcprof.runs import directory as runs
from hpcprof.runs.intent import note_intent, remove_intent
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.checks import check_resubmission
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.presence import check_present
from hpcprof.submit.jobs.request import resolve
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.notify import write_targets
from hpcprof.submit.remote.folders import send_folder, send_texts
from hpcprof.submit.remote.host import Host
from hpcprof.submit.remote.request import CODE, HOME, Sync
from hpcprof.submit.rendering.job_scripts import member_directory, render_array, render_scripts
from hpcprof.submit.schedulers.base import JobState, SchedulerClient
from hpcprof.submit.schedulers.command import Refused, Unreachable, on_host
from hpcprof.submit.schedulers.local.scheduler import LocalScheduler
from hpcprof.submit.schedulers.polling import check_answers, poll
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import WRAPPER
from hpcprof.submit.sites.model import Site, recorded_site
from hpcprof.submit.waiting import describe_failure, ended_by_stall, wait_until_ended


def submit(
    site: Site,
    job: Job,
    runs_directory: Path,
    command_line: list[str],
    template: Path | None = None,
    script: Path | None = None,
    behind: runs.Run | None = None,
    sync: Sync | None = None,
    *,
    here: bool = False,
    run_id: str = "",
) -> runs.Run:
    """Make a run directory, hand its job.sh to the scheduler, and record the job id.

    ``here`` runs job.sh at once in the allocation that this shell is in, as a run of this machine. ``run_id``
    is that of a member of a sweep on this machine.

    If the site has a host, the run's folder is sent there and the scheduler's commands run there; with
    ``sync`` also a folder of the user's, in which the program starts. On this machine the job can be queued
    ``behind`` another run: it starts after the other run's end. An error before the job is handed over leaves
    no run directory. If the scheduler stops answering meanwhile, the directory remains, since it may have
    taken the job.
    """
    if template is None and script is None:
        check_present(site, job)
    host, site, (job,) = _reach_host(site, [job])
    started_by = msgspec.structs.replace(site, scheduler=LocalScheduler.name) if here else site
    with on_host(host, runs_directory):
        client = _answering_client(started_by)
        after = _job_ids(job, runs_directory, client, started_by)
        write_targets(job.notify)
        # Rendered once to find mistakes in a template before anything is made.
        draft = Path(host.folder("RUN_ID")) if host else runs_directory / "RUN_ID"
        render_scripts(site, job, draft, command_line, template, script)
        run_id = run_id or runs.new_run_id(job.name, runs_directory)
        members: list[runs.Run] = []
        with _handing_over(host, members, runs_directory / run_id):
            folder = host.folder(run_id) if host else runs_directory / run_id
            if host is not None and sync is not None:
                job = msgspec.structs.replace(job, directory=str(folder / CODE / sync.below))
                send_folder(host, sync, host.folder(run_id) / CODE)
            texts = render_scripts(site, job, Path(folder), command_line, template, script)
            code = sync.folder if sync else None if host else Path(job.directory)
            run = runs.create(run_id, runs_directory, started_by, job, command_line, texts, code)
            if behind is not None:
                client.queue_behind(run, behind)
            if host is not None:
                send_texts(host, host.folder(run_id), _texts_there(run, texts))
            elif script is None:
                log_command([*launch_command(site, job), WRAPPER], "for job.sh to run")
            note_intent(run)
            members.append(run)
            return _submitted(run, client.submit(run, after))


def _reach_host(site: Site, jobs: Sequence[Job]) -> tuple[Host | None, Site, Sequence[Job]]:
    """Return the host of a site, to which there is a connection now, and the site and jobs as it has them."""
    host = Host.of(site)
    if host is None:
        return None, site, jobs
    host.connect()
    host = host.account()
    # A job without a folder there starts in the home folder.
    moved = [
        msgspec.structs.replace(job, directory=host.home) if job.directory == HOME else job for job in jobs
    ]
    remote_site = msgspec.structs.replace(site, host=host.name, user=host.user, runs_dir=host.runs_dir)
    return host, remote_site, moved


def _texts_there(run: runs.Run, texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of a run as its host has them: to hpcprof there it is a run of that machine."""
    site = msgspec.structs.replace(recorded_site(run.submission), host="", user="", runs_dir="")
    manifest = msgspec.structs.replace(run.submission, site_keys=runs.site_keys(site))
    encoded = {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}
    return {**encoded, runs.MANIFEST: msgspec.json.encode(manifest)}


def submit_in_turn(
    site: Site,
    jobs: Sequence[Job],
    runs_directory: Path,
    command_line: list[str],
    at_once: int = 1,
    template: Path | None = None,
) -> Iterator[runs.Run]:
    """Submit jobs here as members of a sweep, dealt to ``at_once`` queues in turn; yield each run."""
    sweep = runs_directory / runs.new_run_id(jobs[0].name, runs_directory)
    sweep.rmdir()  # Its members alone have folders.
    submitted: list[runs.Run] = []
    for index, job in enumerate(jobs):
        behind = submitted[index - at_once] if index >= at_once else None
        name = member_directory(sweep, index).name
        run = submit(site, job, runs_directory, command_line, template, behind=behind, run_id=name)
        submitted.append(run)
        yield run


def submit_request(request: JobSpec, script: Path | None = None, wait: bool = False) -> runs.Run:
    """Submit what a user asks for, as `hpcprof.submit_job` describes, and return the run."""
    site, job = resolve(request)
    line = ["hpcprof", "submit", *request.to_arguments()]
    if not wait:
        check_resubmission(site, job)
    run = submit(site, job, request.runs_dir, line, request.template, script)
    if wait:
        status = wait_until_ended(run, lambda status, seconds: None, lambda text: None)
        if runs_again(run):
            run = submit_again(run, request.template, script)
            status = wait_until_ended(run, lambda status, seconds: None, lambda text: None)
        if status.state is not JobState.COMPLETED:
            raise HpcprofError("\n".join(describe_failure(run, status)))
    return run


def runs_again(run: runs.Run) -> bool:
    """Return whether a run that has ended is to be submitted again, since it stalled or its time was over."""
    job, scheduler = run.submission.job, find_scheduler(run.submission.site.scheduler)
    stalled = job.on_stall == "resubmit" and ended_by_stall(run)
    timed_out = job.on_timeout == "resubmit" and run.state_file("warned") is not None
    return (stalled or timed_out) and not scheduler.requeues


def submit_again(run: runs.Run, template: Path | None = None, script: Path | None = None) -> runs.Run:
    """Submit the job of a run once more that stalled or whose time was over; the same again ends it."""
    once = {"on_stall": "stop"} if ended_by_stall(run) else {"on_timeout": "report"}
    job = msgspec.structs.replace(run.submission.job, **once)
    site = recorded_site(run.submission)
    return submit(site, job, run.path.parent, run.submission.command_line, template, script)


def submit_array(
    site: Site,
    jobs: Sequence[Job],
    runs_directory: Path,
    command_line: list[str],
    at_once: int | None = None,
    template: Path | None = None,
) -> list[runs.Run]:
    """Submit jobs as one job array, ``at_once`` of which may run together (None: all).

    Each member is a run with its own directory and job id; `hpcprof.runs.directory.sweep_of` returns
    the sweep that they belong to. An error before the array is handed over leaves no directory.
    """
    for job in jobs if template is None else ():
        check_present(site, job)
    host, site, jobs = _reach_host(site, jobs)
    with on_host(host, runs_directory):
        client = _answering_client(site)
        after = _job_ids(jobs[0], runs_directory, client, site)
        largest = client.largest_array()
        if largest is not None and len(jobs) > largest:
            raise UsageError(
                f"--array: {len(jobs)} runs exceed the scheduler's limit of {largest} for one job array."
            )
        write_targets(jobs[0].notify)
        # Rendered once to find mistakes before anything is made.
        render_array(site, jobs, runs_directory / "SWEEP_ID", command_line, at_once, template)
        sweep = runs_directory / runs.new_run_id(jobs[0].name, runs_directory)
        folder = Path(host.folder(sweep.name)) if host else sweep
        directories = [member_directory(sweep, index) for index in range(len(jobs))]
        members: list[runs.Run] = []
        with _handing_over(host, members, sweep, *directories):
            script, texts = render_array(site, jobs, folder, command_line, at_once, template)
            created = [
                runs.create(
                    *(directory.name, runs_directory, site, job, command_line, text),
                    code=None if host else Path(job.directory),
                )
                for directory, job, text in zip(directories, jobs, texts, strict=True)
            ]
            path = absolute_path(sweep) / runs.ARRAY_SCRIPT
            with writing(path):
                write_atomically(path, script)
            if host is not None:
                send_texts(host, host.folder(sweep.name), {runs.ARRAY_SCRIPT: script.encode()}, ())
                for member, text in zip(created, texts, strict=True):
                    send_texts(host, host.folder(member.id), _texts_there(member, text))
            for member in created:
                note_intent(member)
            members += created
            arrays = find_scheduler(site.scheduler).arrays
            assert arrays is not None  # else nothing was rendered
            ids = client.submit_array(path, members, arrays.index_in_path, after)
            return [_submitted(run, job_id) for run, job_id in zip(members, ids, strict=True)]


def _answering_client(site: Site) -> SchedulerClient:
    scheduler = find_scheduler(site.scheduler)
    check_answers(scheduler, site, "nothing was submitted")
    return scheduler.client()


@contextmanager
def _handing_over(host: Host | None, members: Sequence[runs.Run], *directories: Path) -> Iterator[None]:
    """Remove new directories, also on a host, if an error comes before a job is handed over, or refuses it.

    From then on there are ``members``. Other errors are noted in them, as the scheduler may have their jobs,
    and an interrupt names the run, whose job may be running.
    """
    try:
        yield
    except BaseException as error:
        if not members or isinstance(error, Refused):
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)
            if host is not None:
                with suppress(HpcprofError):
                    host.run(["rm", "-rf", "--", *(str(host.folder(path.name)) for path in directories)])
            raise
        for run in members:
            note_intent(run, str(error) or "it was interrupted")
        if isinstance(error, Unreachable):
            raise Unreachable(f"{error} If it did, hpcprof status {members[0].id} shows it.") from None
        if isinstance(error, KeyboardInterrupt):
            name = runs.typed_name(members[0].path)
            raise KeyboardInterrupt(
                f"{members[0].id} may be running: hpcprof status {name}, hpcprof cancel {name}"
            ) from None
        raise


def _submitted(run: runs.Run, job_id: str) -> runs.Run:
    manifest = msgspec.structs.replace(run.submission, scheduler_job_id=job_id)
    saved = runs.save(runs.Run(run.id, run.path, manifest))
    remove_intent(run)
    return saved


def _job_ids(job: Job, runs_directory: Path, client: SchedulerClient, site: Site) -> list[str]:
    waited = [runs.open_run(runs_directory / name) for name in job.after]
    states = poll(waited)
    for run in waited:
        if states[run.id].state not in (JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED):
            raise UsageError(f"--after {run.id}: it is {states[run.id]}.")
    unfinished = [run for run in waited if not states[run.id].state.ended]
    for run in unfinished:
        other = run.submission.site
        if (other.scheduler, other.host) != (site.scheduler, site.host):
            place = f"{other.name}{f' at {other.host}' if other.host else ''}"
            sentence = f"it runs at {place}, whose jobs no job of {site.name} can wait for"
            raise UsageError(f"--after {run.id}: {sentence}; submit this one when it has ended.")
    return client.unfinished([run.job_id for run in unfinished])
