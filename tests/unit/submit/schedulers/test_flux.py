"""Flux: parsers of what flux-core 0.88 printed, and its directives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.common.processes import Completed
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.schedulers import flux
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.command import Refused, Unreachable
from hpcprof.submit.schedulers.flux import FluxScheduler, parse_batch, parse_cancel, parse_jobs
from hpcprof.submit.sites.files import load_site, load_site_file
from tests.jobs import make_job
from tests.unit.submit.schedulers.recorded import recorded_json

_NOW = 1795871400.0


def test_the_states_of_jobs_that_a_real_flux_ended() -> None:
    code, out, error = recorded_json("flux/jobs_ended.json")
    found = parse_jobs(code, out, error, _NOW)
    assert {job_id: (record.state, record.reason, record.exit_code) for job_id, record in found.items()} == {
        "f3mnD7Zy": (JobState.TIMEOUT, "", None),
        "f3tGmy9Z": (JobState.FAILED, "", 139),
        "f3NSeRH9": (JobState.CANCELLED, "", None),
        "f3JgiErT": (
            JobState.FAILED,
            "it can never run: unsatisfiable request: need 5 exclusive node(s), only 2 eligible",
            None,
        ),
        **dict.fromkeys(("f3EScJ5F", "f3EScJ5E", "f3EScJ5D"), (JobState.COMPLETED, "", 0)),
        "fXuQ2hu": (JobState.FAILED, "", 3),
    }
    assert found["f3mnD7Zy"].ended_seconds == pytest.approx(0.33, abs=0.01)


def shown(**job: object) -> Record:
    (record,) = parse_jobs(0, json.dumps({"jobid": "ƒ1", **job}), "", _NOW).values()
    return record


def test_a_job_has_its_name_and_the_time_of_its_submission() -> None:
    record = shown(state="RUN", name="train", t_submit=_NOW - 60)
    assert (record.script, record.submitted_seconds) == ("train", 60)


@pytest.mark.parametrize(
    ("dependencies", "words"),
    [
        (["after-success=ƒ3"], "waits for another job (after-success=ƒ3)"),
        (["after-finish=ƒ3"], "waits for another job (after-finish=ƒ3)"),
        (["begin-time=1795871460.000"], "its start time has not been reached (begin-time=1795871460.000)"),
        (
            ["max-running-jobs-user-limit", "dws-create"],
            "a limit of the user, the bank or the queue is reached (max-running-jobs-user-limit); "
            "waits (dws-create)",
        ),
    ],
)
def test_a_job_that_waits_names_what_for(dependencies: list[str], words: str) -> None:
    assert shown(state="DEPEND", urgency=16, dependencies=dependencies) == Record(JobState.QUEUED, words)


def test_jobs_that_wait_run_or_lost_what_they_depended_on() -> None:
    assert shown(state="DEPEND") == shown(state="SCHED", annotations={}) == Record(JobState.QUEUED)
    note = {"sched": {"reason_pending": "insufficient resources"}}
    assert shown(state="SCHED", urgency=16, annotations=note).reason == "insufficient resources"
    assert shown(state="SCHED", urgency=0).reason == "held: flux job urgency JOB default releases it"
    assert shown(state="RUN") == Record(JobState.RUNNING)
    assert shown(state="CLEANUP").state is JobState.RUNNING
    assert shown(state="ODD").state is JobState.UNKNOWN
    lost = {"type": "dependency", "note": "dependency after-success=f3 can never be satisfied"}
    assert shown(state="INACTIVE", result="FAILED", exception=lost).state is JobState.CANCELLED


def test_an_id_is_kept_in_ascii_and_a_refusal_is_told_apart_from_silence() -> None:
    assert parse_batch(0, "ƒXuQ2hu\n", "") == parse_batch(0, "fXuQ2hu\n", "") == "fXuQ2hu"
    with pytest.raises(Refused, match=r"'nosuch' is not a valid queue\.$"):
        parse_batch(1, "", "flux-batch: ERROR: 'nosuch' is not a valid queue\n")
    with pytest.raises(Refused, match=r"unrecognized arguments: --zzz\.$"):
        parse_batch(1, "", "usage: flux batch\nflux batch: error: unrecognized arguments: --zzz\n")
    with pytest.raises(SchedulerError) as unanswered:
        parse_batch(1, "", "flux-batch: ERROR: Connection reset by peer\n")
    assert not isinstance(unanswered.value, Refused)


def test_unknown_jobs_are_left_out_and_an_instance_that_is_away_is_silent() -> None:
    assert parse_jobs(1, "", "JobID f999999 unknown\n", _NOW) == {}
    for words in ("flux-jobs: ERROR: Unable to connect to Flux: broker socket", "flux-proxy: Sending SIGHUP"):
        with pytest.raises(Unreachable):
            parse_jobs(1, "", words, _NOW)
    with pytest.raises(SchedulerError, match="not as expected"):
        parse_jobs(0, '{"jobs": [1]}', "", _NOW)
    parse_cancel(1, "flux-cancel: ERROR: f3: job is inactive\nflux-cancel: ERROR: f9: unknown job id\n")
    with pytest.raises(SchedulerError, match="guest"):
        parse_cancel(1, "flux-cancel: ERROR: f3: guests can only cancel their own jobs\n")


def test_a_job_in_an_instance_that_is_a_job_has_its_address_and_is_asked_for_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], *_: object) -> object:
        asked.append(words)
        return Completed((*words,), 0, "fB\n" if "batch" in words else "", "", 0.0)

    monkeypatch.setattr(flux, "run_scheduler_command", run)
    monkeypatch.setattr(flux, "run_submission", run)
    monkeypatch.setenv("FLUX_URI", "local:///tmp/flux/local-0")
    scheduler = FluxScheduler()
    job_id = scheduler.submit(Path("job.sh"), Path("/"), ["fC;local:///tmp/flux/local-0"])
    assert job_id == "fB;local:///tmp/flux/local-0"
    scheduler.cancel([job_id, "fD"])
    assert asked == [
        ["flux", "batch", "--dependency=afterok:fC", "job.sh"],
        ["flux", "proxy", "local:///tmp/flux/local-0", "flux", "cancel", "fB"],
        ["flux", "cancel", "fD"],
    ]


def directives(text: str, folder: Path, **options: object) -> list[str]:
    path = folder / "mine.yaml"
    path.write_text(f"extends: generic-flux\n{text}")
    site = load_site_file(path)
    job = make_job(site, arguments=["true"], name="j", walltime="5m", nodes=2, ranks_per_node=2, **options)  # type: ignore[arg-type]
    lines = render_scripts(site, job, Path("/r"), ["hpcprof"])["job.sh"].splitlines()
    found = [line.removeprefix("#flux: ") for line in lines if line.startswith("#flux: ")]
    assert found[:2] == _SIGNALS
    return [line for line in found[2:] if not line.startswith(("--job-name", "--time", "--out", "--err"))]


_SIGNALS = ["--broker-opts=-Sbroker.rc2_pgrp=1", "--setopt=userrc=/r/flux.lua"]
"""Directives of jobs of several nodes, by which signals to the job reach each rank once."""


def test_brokers_of_further_nodes_leave_signals_alone_by_a_file_of_the_run(tmp_path: Path) -> None:
    site = load_site("generic-flux")
    for nodes in (1, 2):
        job = make_job(site, arguments=["true"], name="j", walltime="5m", nodes=nodes)
        scripts = render_scripts(site, job, tmp_path, ["hpcprof"])
        assert ("flux.lua" in scripts) == ("userrc" in scripts["job.sh"]) == (nodes > 1)
    assert "rank > 0" in scripts["flux.lua"] and '"kill_event_handler"' in scripts["flux.lua"]


def test_jobs_take_whole_nodes_or_what_their_ranks_need(tmp_path: Path) -> None:
    assert directives("", tmp_path) == ["--nodes=2", "--exclusive"]
    own = ["--nodes=2", "--nslots=4", "--cores-per-slot=1"]
    assert directives("flux: {exclusive: false}\n", tmp_path) == own
    asked = {"cpus_per_rank": 3, "gpus_per_rank": 1}
    assert directives("", tmp_path, **asked) == [
        *("--nodes=2", "--nslots=4", "--cores-per-slot=3", "--gpus-per-slot=1")
    ]


def test_a_schedulers_own_keys_are_checked_and_read_where_0_3_had_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown key 'exclusiv' in .*mine.yaml, flux; did you mean"):
        directives("flux: {exclusiv: false}\n", tmp_path)
    with pytest.raises(UsageError, match="flux: write a mapping of exclusive"):
        directives("flux: 7\n", tmp_path)
    for text in ("queue_directive: --qos\n", "slurm: {queue_directive: --qos}\n"):
        (tmp_path / "s.yaml").write_text(f"extends: generic-slurm\n{text}")
        assert load_site_file(tmp_path / "s.yaml").scheduler_keys == {"queue_directive": "--qos"}
    (tmp_path / "mine.yaml").write_text("extends: perlmutter\nqueue_directive: --partition\n")
    assert load_site_file(tmp_path / "mine.yaml").scheduler_keys == {"queue_directive": "--partition"}
    with pytest.raises(UsageError, match="unknown key 'pbs'"):
        (tmp_path / "s.yaml").write_text("extends: generic-slurm\npbs: {select: a}\n")
        load_site_file(tmp_path / "s.yaml")
    assert load_site("perlmutter").scheduler_keys == {"queue_directive": "--qos"}
