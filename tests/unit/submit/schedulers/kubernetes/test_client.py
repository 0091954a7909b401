"""The state of an MPIJob and its pods, and what the client asks kubectl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcprof.common.errors import SchedulerError
from hpcprof.runs import directory as runs
from hpcprof.runs.directory import Run
from hpcprof.runs.intent import note_intent
from hpcprof.submit.doctor import CHECKS, Inspected, Status
from hpcprof.submit.doctor.machine import Answer
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.kubernetes.client import (
    KubernetesClient,
    parse_created,
    parse_objects,
    status_from_objects,
)
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import SiteOption
from tests.jobs import make_job
from tests.unit.submit.schedulers.standins import Kubernetes

NAME = "hpcprof-a"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    found = Kubernetes()
    found.install(monkeypatch)
    return found


def new_run(folder: Path, run_id: str = "a", **options: str) -> Run:
    site = load_site("kubernetes")
    job = make_job(site, arguments=["true"], options={**Kubernetes.options, **options})
    name = json.dumps(f"hpcprof-{run_id}")
    return runs.create(
        run_id, folder, site, job, ["hpcprof"], {"mpijob.yaml": f"metadata: {{name: {name}}}\n"}
    )


@pytest.mark.parametrize(
    ("conditions", "pod", "expected"),
    [
        ([], None, (JobState.QUEUED, "no pods yet: is the MPI operator running?")),
        (
            [],
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes",
                    }
                ]
            },
            (JobState.QUEUED, "Unschedulable: 0/3 nodes"),
        ),
        (
            [],
            {
                "containerStatuses": [
                    {
                        "name": "worker",
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "absent"}},
                    }
                ]
            },
            (JobState.QUEUED, "ImagePullBackOff: absent"),
        ),
        ([("Suspended", "", "MPIJob suspended")], None, (JobState.QUEUED, "MPIJob suspended")),
        ([("Created", "", ""), ("Running", "", "")], {}, (JobState.RUNNING, "")),
        # Those before stay.
        (
            [("Running", "", ""), ("Failed", "MPIJobEvicted", "1/2 workers are evicted")],
            {},
            (JobState.FAILED, "evicted: 1/2 workers are evicted"),
        ),
        ([("Failed", "BackoffLimitExceeded", "no")], {}, (JobState.FAILED, "BackoffLimitExceeded: no")),
        ([("Failed", "", "")], {}, (JobState.FAILED, "failed")),
        ([("Succeeded", "", "")], {}, (JobState.COMPLETED, "")),
    ],
)
def test_the_state_is_that_of_the_conditions_with_the_reason_of_a_pod(
    conditions: list[tuple[str, str, str]],
    pod: dict[str, Any] | None,
    expected: tuple[JobState, str],
    cluster: Kubernetes,
    tmp_path: Path,
) -> None:
    given = [dict(zip(("type", "reason", "message"), c, strict=True), status="True") for c in conditions]
    metadata = {"name": NAME, "labels": {"hpcprof/run": NAME}}
    items = [{"kind": "MPIJob", "metadata": metadata, "status": {"conditions": given}}]
    items += [] if pod is None else [{"kind": "Pod", "metadata": metadata, "status": pod}]
    status = status_from_objects(new_run(tmp_path), parse_objects(0, json.dumps({"items": items}), ""))
    assert (status.state, status.reason) == expected


def test_a_job_that_the_operator_has_not_seen_has_no_conditions() -> None:
    item = {"kind": "MPIJob", "metadata": {"name": "a", "labels": {}}, "status": {"conditions": None}}
    assert parse_objects(0, json.dumps({"items": [item]}), "")["a"].status().state is JobState.QUEUED


@pytest.mark.parametrize("out", ["", "[]", "No resources found", '{"items": [{"kind": "Pod"}]}'])
def test_an_answer_that_is_no_list_is_an_error_and_never_a_state(out: str) -> None:
    with pytest.raises(SchedulerError, match="not a list of objects"):
        parse_objects(0, out, "")


def test_the_name_of_the_job_is_read_from_what_create_prints() -> None:
    assert parse_created("mpijob.kubeflow.org/a\nconfigmap/a\n") == "a"
    assert parse_created("configmap/a\n") is None


def test_without_the_operator_nothing_is_left_behind(cluster: Kubernetes, tmp_path: Path) -> None:
    cluster.refuses = True
    with pytest.raises(SchedulerError, match=r"did not accept .* ensure CRDs are installed first"):
        KubernetesClient().submit(new_run(tmp_path))
    assert cluster.calls[-1] == ["kubectl", "delete", f"configmap/{NAME}", "--ignore-not-found"]


def test_a_job_whose_client_was_killed_is_found_by_its_name(cluster: Kubernetes, tmp_path: Path) -> None:
    client, run = KubernetesClient(), new_run(tmp_path)
    note_intent(run)
    assert client.poll([run])[run.id].reason.startswith("being submitted by process ")
    assert client.submit(run) == NAME
    cluster.jobs[NAME] = JobState.RUNNING
    assert client.poll([run])[run.id].state is JobState.RUNNING
    client.cancel(run)
    assert (cluster.jobs, client.poll([run])[run.id].state) == ({}, JobState.CANCELLED)


def test_many_runs_are_one_question_to_each_namespace(cluster: Kubernetes, tmp_path: Path) -> None:
    here = [new_run(tmp_path, f"a{i}") for i in range(6)]
    there = [new_run(tmp_path, f"b{i}", namespace="other") for i in range(2)]
    assert len(KubernetesClient().poll([*here, *there])) == 8
    assert [call[1:2] for call in cluster.calls] == [["get"], ["--namespace=other"]]


def test_the_doctor_asks_the_cluster_of_the_site_for_the_operator() -> None:
    site = load_site("kubernetes")
    there = replace(site, options={**site.options, "namespace": SiteOption("where", default="training")})
    answer, asked = Answer(0), []

    def run(words: list[str], **_: object) -> Answer:
        asked.append(words)
        return answer

    machine = Inspected(there, Path("runs"), run=run, which=str)
    assert CHECKS["scheduler"](machine).status is Status.OK
    assert asked[-1][-1] == "--namespace=training"
    assert CHECKS["PyTorch"](machine).remedy == "Run hpcprof container test IMAGE."
    answer = Answer(1, stderr="error: the server doesn't have a resource type mpijobs\n")
    finding = CHECKS["scheduler"](machine)
    assert "doesn't have a resource type" in finding.observation
    assert "MPI operator" in finding.remedy
