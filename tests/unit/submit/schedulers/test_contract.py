"""Each scheduler keeps the promises of `Scheduler` and `SchedulerClient`; a new one joins `SCHEDULERS`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.runs.directory import Run, all_runs
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.rendering.templates import template_files
from hpcprof.submit.schedulers.base import JobState, JobStatus, user_name
from hpcprof.submit.schedulers.batch import BatchScheduler
from hpcprof.submit.schedulers.command import Refused
from hpcprof.submit.schedulers.polling import cancel, poll
from hpcprof.submit.schedulers.registry import BUILT_IN, find_scheduler
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT, Scheduler
from hpcprof.submit.schedulers.submitting_shell import without_options
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Site
from hpcprof.submit.submission import _job_ids, submit
from tests.jobs import make_job
from tests.unit.submit.schedulers.standins import ENDS, Flux, Kubernetes, Local, Lsf, Pbs, Slurm, StandIn

SCHEDULERS: dict[str, type[StandIn]] = {
    "slurm": Slurm,
    "pbs": Pbs,
    "flux": Flux,
    "lsf": Lsf,
    "kubernetes": Kubernetes,
    "local": Local,
}


@pytest.fixture(params=SCHEDULERS)
def standin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    monkeypatch.chdir(tmp_path)
    found = SCHEDULERS[request.param]()
    found.install(monkeypatch)
    return found


asked = pytest.mark.parametrize("standin", [name for name in SCHEDULERS if name != "local"], indirect=True)
"""Those that another machine runs, which may not answer."""


@pytest.fixture
def site(standin: StandIn) -> Site:
    return load_site(standin.site)


@pytest.fixture
def scheduler(site: Site) -> Scheduler:
    return find_scheduler(site.scheduler)


def submitted(standin: StandIn, after: Sequence[str] = ()) -> Run:
    site = load_site(standin.site)
    job = make_job(
        site, arguments=["true"], walltime="5m", options=dict(standin.options), after=list(after), name="name"
    )
    return submit(site, job, Path("runs"), ["hpcprof"])


def status(run: Run) -> JobStatus:
    return poll([run])[run.id]


def test_every_scheduler_is_here() -> None:
    assert SCHEDULERS.keys() == BUILT_IN.keys()


def test_a_job_waits_runs_and_completes(standin: StandIn) -> None:
    run = submitted(standin)
    assert [run.job_id] == list(standin.jobs)
    assert status(run).state is JobState.QUEUED
    standin.start(run)
    assert status(run).state is JobState.RUNNING
    standin.end(run, JobState.COMPLETED)
    assert status(run) == JobStatus(JobState.COMPLETED, "", 0)


def test_a_job_that_fails_has_its_exit_code_and_one_over_its_walltime_is_a_timeout(standin: StandIn) -> None:
    failed, late = submitted(standin), submitted(standin)
    standin.end(failed, JobState.FAILED)
    standin.end(late, JobState.TIMEOUT)
    (failed.path / "state" / "finished").unlink()  # the scheduler knows it too
    assert status(failed) == JobStatus(JobState.FAILED, "exit code 3", 3)
    assert (status(late).state, status(late).reason[:18]) == (JobState.TIMEOUT, "the walltime limit")


@pytest.mark.parametrize("standin", ["slurm", "pbs", "flux", "lsf"], indirect=True)
def test_a_job_is_submitted_from_the_users_own_environment(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "it_IT.UTF-8")
    run = submitted(standin)
    submission = next(i for i, words in enumerate(standin.calls) if any("job.sh" in word for word in words))
    status(run)
    assert standin.environments[submission] == without_options(os.environ)
    assert standin.environments[-1] == {
        **without_options(os.environ),
        "LC_ALL": "C",
        "SLURM_BITSTR_LEN": "0",
        "TZ": "UTC",
    }


def test_success_needs_the_finished_file(standin: StandIn) -> None:
    run = submitted(standin)
    standin.end(run, JobState.COMPLETED)
    (run.path / "state" / "finished").unlink()
    (run.path / "state" / "unfinished").write_text("0\n")
    found = status(run)
    assert (found.state, found.provisional) == (JobState.FAILED, True)
    (run.path / "state" / "finished").write_text("0\n")
    assert status(run).state is JobState.COMPLETED


@pytest.mark.parametrize(
    ("finished", "expected"),
    [("0", JobState.COMPLETED), ("3", JobState.FAILED), ("", JobState.FAILED), ("plain", JobState.ENDED)],
)
def test_a_job_that_the_scheduler_has_forgotten_is_judged_by_its_files(
    standin: StandIn, finished: str, expected: JobState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.submit.schedulers.run_state.UNRECORDED_SECONDS", -1.0)
    run = submitted(standin)
    standin.start(run)
    if finished.isdigit():
        (run.path / "state" / "finished").write_text(f"{finished}\n")
    elif finished:
        (run.path / JOB_SCRIPT).write_text("#!/bin/sh\ntrue\n")
    standin.forget(run)
    status(run)  # notes the time from which on the file is waited for
    assert status(run).state is expected


@asked
def test_what_has_ended_keeps_its_state_and_asks_nothing(standin: StandIn) -> None:
    run = submitted(standin)
    standin.end(run, JobState.TIMEOUT)
    before = status(run)
    standin.forget(run)
    standin.calls.clear()
    assert status(run) == before
    cancel([run])
    assert standin.calls == []


@asked
def test_while_the_scheduler_is_silent_only_the_runs_files_count(standin: StandIn) -> None:
    finished, running = submitted(standin), submitted(standin)
    standin.start(running)
    standin.end(finished, JobState.COMPLETED)
    standin.down = True
    assert status(finished) == JobStatus(JobState.COMPLETED, "", 0, provisional=True)
    state = status(running)
    assert (state.state, standin.silence[2].split()[-1].strip("()") in state.reason) == (
        JobState.UNKNOWN,
        True,
    )
    standin.down = False
    assert status(running).state is JobState.RUNNING


@asked
@pytest.mark.parametrize("trouble", ["down", "absent"])
def test_without_an_answer_nothing_is_submitted_or_cancelled_and_that_is_said(
    standin: StandIn, trouble: str
) -> None:
    run = submitted(standin)
    setattr(standin, trouble, True)
    if standin.absent:
        assert (status(run).state, status(run).reason[:12]) == (JobState.UNKNOWN, "cannot start")
    with pytest.raises(SchedulerError, match=r"nothing was submitted|cannot start"):
        submitted(standin)
    with pytest.raises(SchedulerError, match=r"was not cancelled|cannot start"):
        cancel([run])
    with pytest.raises(SchedulerError, match="was not cancelled"):
        find_scheduler(run.submission.site.scheduler).client().cancel(run)
    assert len(all_runs(Path("runs"))) == 1
    assert not (run.path / "state" / "cancelled").exists()


def test_a_refused_job_is_one_sentence_and_leaves_no_run(standin: StandIn) -> None:
    standin.refuses = True
    with pytest.raises(Refused, match=r"^(\w+ did not accept|cannot start the job)[^\n]*\.$"):
        submitted(standin)
    assert all_runs(Path("runs")) == []


def test_cancelling_ends_a_job_and_leaves_one_that_has_ended(standin: StandIn) -> None:
    running, ended = submitted(standin), submitted(standin)
    standin.start(running)
    standin.end(ended, JobState.FAILED)
    find_scheduler(running.submission.site.scheduler).client().cancel(running, ended)
    assert status(running).state is JobState.CANCELLED
    assert status(running).reason in (f"by {user_name(os.getuid())}, with hpcprof cancel", "by its owner")
    assert status(ended).state is JobState.FAILED


@asked
def test_a_cancellation_that_fails_is_said_and_leaves_no_mark(standin: StandIn) -> None:
    run = submitted(standin)
    standin.start(run)
    standin.denies = True
    with pytest.raises(SchedulerError, match=standin.denial[2].split()[-2]):
        cancel([run])
    assert run.state_file("cancelled") is None
    assert status(run) == JobStatus(JobState.RUNNING)


@asked
def test_a_secret_that_the_scheduler_quotes_is_masked(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(standin)
    standin.denies = True
    code, output, errors = standin.denial
    quoting = code, output, f"{errors.rstrip()} of train.py --token S3CRET\n"
    monkeypatch.setattr(type(standin), "denial", quoting)
    with pytest.raises(SchedulerError, match="--token") as raised:
        find_scheduler(run.submission.site.scheduler).client().cancel(run)
    assert "S3CRET" not in str(raised.value)


def test_a_job_waits_only_for_jobs_that_can_still_succeed(standin: StandIn, scheduler: Scheduler) -> None:
    runs = {state: submitted(standin) for state in (JobState.RUNNING, *ENDS)}
    standin.start(runs[JobState.RUNNING])
    for state in ENDS:
        standin.end(runs[state], state)
    client = scheduler.client()
    assert client.unfinished([]) == []
    if not isinstance(scheduler, BatchScheduler):
        with pytest.raises(SchedulerError, match=r"submit (it once|the job when)"):
            client.unfinished(list(standin.jobs))
        return
    going, completed, *lost = standin.jobs
    assert client.unfinished([going, completed]) == [going]
    for job_id in (*lost, "999999"):
        with pytest.raises(
            SchedulerError, match=rf"job {job_id}, which this one must wait for, (has not|is un)"
        ):
            client.unfinished([job_id])


ASKED: dict[str, Any] = {
    "cpus_per_rank": 8,
    "gpus_per_rank": 3,
    "mem": "64G",
    "constraint": "",
    "scheduler_args": ["-l place=pack"],
}


@pytest.mark.parametrize("field", ASKED)
def test_a_resource_is_in_what_the_scheduler_gets_or_is_refused_by_its_option(
    standin: StandIn, site: Site, scheduler: Scheduler, field: str
) -> None:
    def handed_over(**asked: Any) -> str:
        job = make_job(site, arguments=["true"], ranks_per_node=1, options=dict(standin.options), **asked)
        return render_scripts(site, job, Path("/run"), ["hpcprof"])[scheduler.submitted_file]

    value = ASKED[field] or standin.constraint
    if field in scheduler.resources:
        new = set(handed_over(**{field: value}).splitlines()) - set(handed_over().splitlines())
        word = re.split(r"[=\s]", value[0] if isinstance(value, list) else str(value))[-1]
        assert any(word.lower() in line.lower() for line in new)
        return
    flag = f"--{field.removesuffix('s').replace('_', '-')}"
    with pytest.raises(
        UsageError, match=rf"^{flag} .*: site {site.name} {scheduler.no_resources}; leave it out"
    ):
        handed_over(**{field: value})


def test_what_the_template_writes_cannot_be_passed_on(scheduler: Scheduler, standin: StandIn) -> None:
    site = load_site(standin.site)
    job = make_job(
        site,
        arguments=["true"],
        account="" if scheduler.runs_here else "me",
        name="job",
        options=dict(standin.options),
    )
    text = render_scripts(site, job, Path("/run"), ["hpcprof"])[JOB_SCRIPT]
    mark = {"slurm": "#SBATCH", "pbs": "#PBS", "flux": "#flux:", "lsf": "#BSUB"}.get(scheduler.name, "#NONE")
    # Options that may be repeated add up, and limits of Slurm may be chosen.
    for line in re.findall(rf"^{mark} (?!--broker-opts=|--setopt=|--propagate=)(.*)", text, re.MULTILINE):
        taken = scheduler.settings(line) & scheduler.own_settings(site).keys()
        assert taken == scheduler.settings(line)
        with pytest.raises(UsageError, match=r"hpcprof sets .* itself; \w+"):
            make_job(site, arguments=["true"], scheduler_args=[line])


@pytest.mark.parametrize("standin", ["slurm", "pbs", "flux", "lsf"], indirect=True)
def test_a_dependency_is_passed_on_unless_the_job_has_one_of_hpcprof(
    scheduler: Scheduler, standin: StandIn
) -> None:
    line = DEPENDENCIES[scheduler.name]
    site = load_site(standin.site)
    job = make_job(site, arguments=["true"], scheduler_args=[line])
    assert f" {line}\n" in render_scripts(site, job, Path("/run"), ["hpcprof"])[JOB_SCRIPT]
    with pytest.raises(UsageError, match="itself; give --after"):
        make_job(site, arguments=["true"], scheduler_args=[line], after=[submitted(standin).id])


@pytest.mark.parametrize("standin", ["slurm", "flux"], indirect=True)
def test_a_run_of_another_site_is_none_to_wait_for_and_named(standin: StandIn) -> None:
    first, site = submitted(standin), load_site("generic-pbs")
    job = make_job(site, arguments=["true"], after=[first.id])
    says = f"--after {first.id}: it runs at {standin.site}, whose jobs no job of generic-pbs can wait for"
    with pytest.raises(UsageError, match=says):
        _job_ids(job, Path("runs"), find_scheduler(site.scheduler).client(), site)


DEPENDENCIES = {
    "slurm": "--dependency=singleton",
    "pbs": "-W depend=afterany:7.server",
    "flux": "--dependency=afterany:f7",
    "lsf": "-w ended:7",
}
"""Directives by which jobs wait for what --after cannot name."""


@pytest.mark.parametrize("standin", ["slurm", "pbs", "flux", "lsf"], indirect=True)
def test_what_a_scheduler_says_as_it_takes_a_job_is_kept(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = standin.taken
    monkeypatch.setattr(standin, "taken", lambda job_id: (*taken(job_id)[:2], "a note: --token S3CRET\n"))
    kept = submitted(standin).state_file("submission") or ""
    assert kept.startswith("a note: --token ") and "S3CRET" not in kept
    monkeypatch.setattr(standin, "taken", taken)
    assert submitted(standin).state_file("submission") is None


def test_a_scheduler_has_a_template_and_a_short_name_for_jobs(scheduler: Scheduler) -> None:
    assert scheduler.template in template_files()
    assert scheduler.runs_here or scheduler.commands
    if isinstance(scheduler, BatchScheduler):
        assert re.fullmatch(r"[\w.-]{1,15}", scheduler.job_name("a name / with ü that is long"))
