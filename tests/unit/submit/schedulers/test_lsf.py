"""LSF: parsers and directives, on outputs as IBM's documentation of LSF 10.1 has them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.command import Refused, Unreachable
from hpcprof.submit.schedulers.lsf import parse_bjobs, parse_bkill, parse_bsub
from hpcprof.submit.sites.files import load_site_file
from tests.jobs import make_job

NOW = datetime(2025, 1, 29, 13, 47, tzinfo=timezone.utc)


def shown(**job: str) -> Record:
    text = json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [{"JOBID": "7", **job}]})
    return parse_bjobs(0, text, "", NOW)["7"]


@pytest.mark.parametrize(
    ("submitted", "seconds"),
    [
        ("Jan 29 13:17", 1800),
        ("Jan 29 13:17:40", 1800),
        ("Wed Jan 29 13:17:40 2025", 1800),
        ("Jan  9 13:47", 20 * 86400),
        ("Jan 29 20:47", -7 * 3600),  # of a server that does not print UTC
        ("Dec 31 13:47", 29 * 86400),  # of the year before
        ("Feb 30 13:47", None),
        ("-", None),
    ],
)
def test_a_job_has_its_output_and_the_time_of_its_submission(submitted: str, seconds: float | None) -> None:
    record = shown(STAT="RUN", SUBMIT_TIME=submitted, OUTPUT_FILE="/runs/r/logs/job.out")
    assert (record.submitted_seconds, record.script) == (seconds, "/runs/r/logs/job.out")


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            {"STAT": "PEND", "PEND_REASON": "Job slot limit reached;"},
            (JobState.QUEUED, "Job slot limit reached"),
        ),
        ({"STAT": "PSUSP"}, (JobState.QUEUED, "held: bresume releases it")),
        ({"STAT": "RUN"}, (JobState.RUNNING, "")),
        ({"STAT": "SSUSP"}, (JobState.RUNNING, "suspended by the scheduler")),
        ({"STAT": "DONE"}, (JobState.COMPLETED, "")),
        ({"STAT": "EXIT", "EXIT_CODE": "3"}, (JobState.FAILED, "")),
        (
            {"STAT": "EXIT", "EXIT_CODE": "140", "EXIT_REASON": "TERM_RUNLIMIT: job killed"},
            (JobState.TIMEOUT, ""),
        ),
        (
            {"STAT": "EXIT", "EXIT_CODE": "130", "EXIT_REASON": "TERM_OWNER: x"},
            (JobState.CANCELLED, "by its owner"),
        ),
        (
            {"STAT": "EXIT", "EXIT_CODE": "137", "EXIT_REASON": "TERM_MEMLIMIT: job killed"},
            (JobState.FAILED, "it used more memory than it asked for"),
        ),
        (
            {"STAT": "UNKWN"},
            (JobState.UNKNOWN, "LSF has lost contact with its node, where it may still run"),
        ),
        (
            {"STAT": "ZOMBI"},
            (
                JobState.UNKNOWN,
                "it was killed while LSF had no contact with its node: bkill -r removes it",
            ),
        ),
    ],
)
def test_states_and_termination_reasons(job: dict[str, str], expected: tuple[JobState, str]) -> None:
    record = shown(**job)
    assert (record.state, record.reason) == expected


def test_a_dependency_that_cannot_come_true_is_named_and_an_unknown_job_is_left_out() -> None:
    record = shown(STAT="PEND", PEND_REASON="Dependency condition invalid or never satisfied;")
    assert record.reason.startswith("it can never run: a job that it depends on did not succeed")
    unknown = '{"RECORDS": [{"JOBID": "9", "ERROR": "Job <9> is not found"}]}'
    assert parse_bjobs(255, unknown, "", NOW) == parse_bjobs(255, "", "Job <9> is not found", NOW) == {}
    with pytest.raises(Unreachable):
        parse_bjobs(255, "", "LSF is down. Please wait ...", NOW)
    with pytest.raises(SchedulerError, match="not as expected"):
        parse_bjobs(0, '{"JOBS": 1}', "", NOW)


def test_submission_and_deletion() -> None:
    assert parse_bsub(0, "Job <771278> is submitted to default queue <short>.\n", "") == "771278"
    with pytest.raises(Refused, match=r"nosuch: No such queue\.$"):
        parse_bsub(255, "", "nosuch: No such queue. Job not submitted.\n")
    parse_bkill(255, "Job <7>: Job has already finished\nJob <9>: No matching job found\n")
    with pytest.raises(SchedulerError, match="User permission denied"):
        parse_bkill(255, "Job <7>: User permission denied\n")


def script(folder: Path, text: str, **options: object) -> str:
    (folder / "mine.yaml").write_text(f"extends: generic-lsf\n{text}")
    site = load_site_file(folder / "mine.yaml")
    job = make_job(site, arguments=["true"], name="j", nodes=2, ranks_per_node=3, **options)  # type: ignore[arg-type]
    return render_scripts(site, job, Path("/r"), ["hpcprof"])["job.sh"]


def test_a_job_asks_for_slots_or_for_nodes_as_the_site_has_it(tmp_path: Path) -> None:
    slots = script(tmp_path, "node: {gpus: 4}\n", reservation="res")
    for line in ("-n 6", "-R span[ptile=3]", "-gpu num=4", "-U res", "-W 60"):
        assert f"\n#BSUB {line}\n" in slots
    nodes = script(tmp_path, "lsf: {allocation: nodes}\nlauncher: {name: jsrun}\n", account="me")
    assert "\n#BSUB -nnodes 2\n" in nodes and "#BSUB -n " not in nodes and "\n#BSUB -P me\n" in nodes
    assert "NR > 1" in nodes and "NR > 1" not in slots
    with pytest.raises(UsageError, match="LSF counts in minutes"):
        script(tmp_path, "", walltime="90s")
