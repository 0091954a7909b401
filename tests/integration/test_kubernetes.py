"""MPIJobs by a stand-in for kubectl and the operator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.doctor import CHECKS, Machine, Status
from hpcprof.submit.jobs.builder import make_job
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.runs import directory as runs
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.runs.intent import note_intent
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.kubernetes.client import KubernetesClient
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Option

DATA = Path(__file__).parents[1] / "data/kubernetes"
RUN_ID = "20261121-143005-sequence-parallel-3fa9"
NAME = "hpcprof-20261121-143005-sequence-parallel-3fa9"
OPTIONS = {"image": "registry.example/hpcprof:1.0", "pvc": "results"}


def texts(run_directory: Path = Path("/home/me/runs") / RUN_ID, **changes: Any) -> dict[str, str]:
    site = load_site("kubernetes")
    options = {**OPTIONS, **changes.pop("options", {})}
    command_line = changes.pop("command_line", ["hpcprof", "submit"])
    shape = {"arguments": ["true"], "nodes": 2, "ranks_per_node": 8}
    asked = make_job(site, **{**shape, **changes}, options=options)
    rendering = Rendering(run_directory, command_line, launch_command(site, asked), asked.arguments)
    return render(site, asked, rendering)


def documents(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    job, config_map = yaml.safe_load_all(texts(**changes)["mpijob.yaml"])
    return job, config_map


def worker(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    return pod


class Cluster:
    """The stand-in's cluster, and the operator's part in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write({"objects": [], "operator": True, "down": False, "calls": []})

    def read(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.path.read_text())
        return state

    def write(self, state: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(state))

    def set(self, **changes: Any) -> None:
        self.write({**self.read(), **changes})

    def condition(self, name: str, kind: str, reason: str = "", message: str = "") -> None:
        """Set a condition of an MPIJob as the operator does: those before stay."""
        state = self.read()
        for item in state["objects"]:
            if item["kind"] == "MPIJob" and item["metadata"]["name"] == name:
                conditions = item.setdefault("status", {}).setdefault("conditions", [])
                conditions.append({"type": kind, "status": "True", "reason": reason, "message": message})
        self.write(state)

    def pod(self, name: str, **status: Any) -> None:
        state = self.read()
        labels = {"app.kubernetes.io/managed-by": "hpcprof", "hpcprof/run": name}
        metadata = {"name": f"{name}-worker-0", "namespace": "default", "labels": labels}
        state["objects"].append({"kind": "Pod", "metadata": metadata, "status": status})
        self.write(state)

    def names(self) -> list[tuple[str, str]]:
        return [(item["kind"], item["metadata"]["name"]) for item in self.read()["objects"]]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "kubectl").write_text(f"#!{sys.executable}\n" + (DATA / "kubectl.py").read_text())
    (tools / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECTL_STATE", str(tmp_path / "state.json"))
    return Cluster(tmp_path / "state.json")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return new_run(tmp_path, RUN_ID)


def new_run(tmp_path: Path, run_id: str, **options: str) -> Run:
    site = load_site("kubernetes")
    job: Job = make_job(site, arguments=["true"], nodes=2, options={**OPTIONS, **options})
    rendered = texts(tmp_path / "runs" / run_id, options=options)
    return runs.create(run_id, tmp_path / "runs", site, job, ["hpcprof"], rendered)


def state_of(run: Run) -> tuple[JobState, str]:
    status = KubernetesClient().poll([run])[run.id]
    return status.state, status.reason


def test_submitting_creates_the_job_with_its_scripts(cluster: Cluster, run: Run) -> None:
    assert KubernetesClient().submit(run) == NAME
    assert cluster.names() == [("MPIJob", NAME), ("ConfigMap", NAME)]


def test_without_the_operator_nothing_is_left_behind(cluster: Cluster, run: Run) -> None:
    cluster.set(operator=False)
    with pytest.raises(SchedulerError, match=r"did not accept .* ensure CRDs are installed first"):
        KubernetesClient().submit(run)
    assert cluster.names() == []


def test_a_run_goes_through_the_states_that_the_operator_says(cluster: Cluster, run: Run) -> None:
    KubernetesClient().submit(run)
    assert state_of(run) == (JobState.QUEUED, "no pods yet: is the MPI operator running?")
    cluster.condition(NAME, "Created", "MPIJobCreated")
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    cluster.pod(NAME, phase="Pending", conditions=[{**unschedulable, "message": "0/3 nodes are available"}])
    assert state_of(run) == (JobState.QUEUED, "Unschedulable: 0/3 nodes are available")
    cluster.condition(NAME, "Running")
    assert state_of(run)[0] is JobState.RUNNING
    cluster.condition(NAME, "Succeeded")
    assert state_of(run) == (JobState.COMPLETED, "")


def test_an_image_that_cannot_be_pulled_is_why_a_run_waits(cluster: Cluster, run: Run) -> None:
    KubernetesClient().submit(run)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    cluster.pod(NAME, phase="Pending", containerStatuses=[{"name": "worker", "state": waiting}])
    assert state_of(run) == (JobState.QUEUED, "ImagePullBackOff: not found")


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("DeadlineExceeded", "was active longer", (JobState.TIMEOUT, "the walltime limit was exceeded")),
        ("MPIJobEvicted", "1/2 workers are evicted", (JobState.FAILED, "evicted: 1/2 workers are evicted")),
        ("BackoffLimitExceeded", "no", (JobState.FAILED, "BackoffLimitExceeded: no")),
        ("", "", (JobState.FAILED, "failed")),
    ],
)
def test_a_failed_job_says_how(
    cluster: Cluster, run: Run, reason: str, message: str, expected: tuple[JobState, str]
) -> None:
    KubernetesClient().submit(run)
    cluster.condition(NAME, "Running")
    cluster.condition(NAME, "Failed", reason, message)
    assert state_of(run) == expected


def test_the_exit_code_is_that_of_the_launcher(cluster: Cluster, run: Run) -> None:
    KubernetesClient().submit(run)
    ended = [{"name": "launcher", "state": {"terminated": {"exitCode": 7, "reason": "Error"}}}]
    cluster.pod(NAME, phase="Failed", containerStatuses=ended)
    cluster.condition(NAME, "Failed", "BackoffLimitExceeded")
    status = KubernetesClient().poll([run])[run.id]
    assert (status.state, status.reason, status.exit_code) == (JobState.FAILED, "exit code 7", 7)


def test_a_suspended_job_is_queued(cluster: Cluster, run: Run) -> None:
    KubernetesClient().submit(run)
    cluster.condition(NAME, "Suspended", "MPIJobSuspended", "MPIJob suspended")
    assert state_of(run) == (JobState.QUEUED, "MPIJob suspended")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"started": "x", "finished": "0"}, JobState.COMPLETED),
        ({"started": "x", "finished": "3"}, JobState.FAILED),
        ({"started": "x"}, JobState.FAILED),
        ({}, JobState.COMPLETED),
    ],
)
def test_success_needs_the_finished_file_where_the_volume_is_seen_here(
    cluster: Cluster, run: Run, files: dict[str, str], expected: JobState
) -> None:
    KubernetesClient().submit(run)
    cluster.condition(NAME, "Succeeded")
    for name, text in files.items():
        (run.path / "state" / name).write_text(f"{text}\n")
    assert state_of(run)[0] is expected


@pytest.mark.parametrize(
    ("finished", "expected"), [("0", JobState.COMPLETED), ("2", JobState.FAILED), (None, JobState.FAILED)]
)
def test_a_job_that_is_gone_is_judged_by_its_finished_file(
    cluster: Cluster, run: Run, finished: str | None, expected: JobState
) -> None:
    if finished is not None:
        (run.path / "state" / "finished").write_text(f"{finished}\n")
    assert state_of(run)[0] is expected


def test_a_job_whose_client_was_killed_is_found_by_its_name(cluster: Cluster, run: Run) -> None:
    note_intent(run)
    state, reason = state_of(run)
    assert (state, reason.startswith("being submitted by process ")) == (JobState.QUEUED, True)
    KubernetesClient().submit(run)
    cluster.condition(NAME, "Running")
    assert state_of(run) == (JobState.RUNNING, "")
    KubernetesClient().cancel(run)
    assert state_of(run)[0] is JobState.CANCELLED


def test_an_api_server_that_cannot_be_reached_leaves_the_state_unknown(cluster: Cluster, run: Run) -> None:
    KubernetesClient().submit(run)
    cluster.set(down=True)
    state, reason = state_of(run)
    assert state is JobState.UNKNOWN
    assert reason.startswith("the cluster did not answer: The connection to the server")


def test_a_machine_without_kubectl_leaves_the_state_unknown(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state_of(run) == (
        JobState.UNKNOWN,
        "cannot start kubectl: it is not on the PATH; install it, or load its module.",
    )
    with pytest.raises(SchedulerError, match="cannot start kubectl"):
        KubernetesClient().submit(run)


def test_many_runs_are_one_question_to_each_namespace(cluster: Cluster, tmp_path: Path) -> None:
    scheduler = KubernetesClient()
    here = [new_run(tmp_path, f"20261121-143005-a-{i:04x}") for i in range(6)]
    there = [new_run(tmp_path, f"20261121-143005-b-{i:04x}", namespace="other") for i in range(2)]
    for run in (*here, *there):
        scheduler.submit(run)
    before = len(cluster.read()["calls"])
    statuses = scheduler.poll([*here, *there])
    assert {status.state for status in statuses.values()} == {JobState.QUEUED}
    assert len(statuses) == 8
    assert len(cluster.read()["calls"]) == before + 2


def test_cancelling_deletes_the_job_and_is_no_failure(cluster: Cluster, run: Run) -> None:
    scheduler = KubernetesClient()
    scheduler.submit(run)
    scheduler.cancel(run)
    assert cluster.names() == []
    assert state_of(run) == (JobState.CANCELLED, "cancelled by the user")
    scheduler.cancel(run)


def test_cancelling_leaves_a_job_that_has_ended(cluster: Cluster, run: Run) -> None:
    KubernetesClient().submit(run)
    cluster.condition(NAME, "Succeeded")
    KubernetesClient().cancel(run)
    assert state_of(run)[0] is JobState.COMPLETED


def test_cancelling_says_so_when_the_cluster_does_not_answer(cluster: Cluster, run: Run) -> None:
    KubernetesClient().submit(run)
    cluster.set(down=True)
    with pytest.raises(SchedulerError, match="was not cancelled"):
        KubernetesClient().cancel(run)


def test_the_launcher_copies_the_scripts_to_the_volume_and_runs_the_job(tmp_path: Path) -> None:
    place = {"run_directory": tmp_path / "runs" / RUN_ID, "options": {"mount": str(tmp_path)}}
    job, config_map = documents(**place, profiler="torch")
    mounted, tools = tmp_path / "etc", tmp_path / "bin"
    tools.mkdir()
    pod = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    for item in pod["volumes"][1]["configMap"]["items"]:
        text = config_map["data"][item["key"]]
        # Kubernetes mounts links to a folder that the volume hides.
        file = mounted / "..data" / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("/etc/mpi/hostfile", str(tmp_path / "hostfile")))
    for entry in (mounted / "..data").iterdir():
        (mounted / entry.name).symlink_to(Path("..data", entry.name))
    (tmp_path / "hostfile").write_text("a-worker-0.a.ns.svc slots=8\na-worker-1.a.ns.svc slots=8\n")
    # Stands for mpirun: starts the last rank of those that it was asked for.
    (tools / "mpirun").write_text(
        '#!/bin/sh\nwhile [ "$1" != -n ]; do shift; done\nsize=$2; shift 4\n'
        'OMPI_COMM_WORLD_SIZE=$size OMPI_COMM_WORLD_LOCAL_RANK=7 OMPI_COMM_WORLD_RANK=$((size - 1)) "$@"\n'
    )
    (tools / "mpirun").chmod(0o755)
    given = pod["containers"][0]["command"]
    command = [word.replace("$$", "$").replace("/etc/hpcprof", str(mounted)) for word in given]
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    state = tmp_path / "runs" / RUN_ID / "state"
    assert (state / "nodes").read_text() == "a-worker-0.a.ns.svc a-worker-1.a.ns.svc \n"
    assert (state / "rank00015.exit").read_text() == "0\n"
    hook = tmp_path / "runs" / RUN_ID / "hook"
    assert {path.name for path in hook.iterdir()} == {
        *("sitecustomize.py", "hpcprof_torch_hook", "hpcprof_uncaught.py")
    }
    assert not (hook / "sitecustomize.py").is_symlink()
    assert (state / "finished").read_text() == "0\n"


def test_the_doctor_asks_the_cluster_of_the_site_for_the_operator(cluster: Cluster) -> None:
    site = load_site("kubernetes")
    there = replace(site, options={**site.options, "namespace": Option("where", default="training")})
    machine = Machine(there, Path("runs"))
    assert CHECKS["scheduler"](machine).status is Status.OK
    assert cluster.read()["calls"][-1][-1] == "--namespace=training"
    assert CHECKS["PyTorch"](machine).remedy == "Run hpcprof container test IMAGE."
    cluster.set(operator=False)
    finding = CHECKS["scheduler"](machine)
    assert "doesn't have a resource type" in finding.observation
    assert "MPI operator" in finding.remedy


def test_kubectl_itself_reads_the_manifest_as_it_was_written(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    name = "it's \U0001f600 $(x) \x85 {{ \u2028 # : \n\t end"
    rendered = texts(name=name, arguments=["program", name])
    (tmp_path / "mpijob.yaml").write_text(rendered["mpijob.yaml"], encoding="utf-8")
    # Annotates a copy on this machine, and so prints as JSON what its own YAML parser has read.
    call = [kubectl, "annotate", "--local", f"--filename={tmp_path}/mpijob.yaml", "a=b", "--output=json"]
    done = subprocess.run(call, env={**os.environ, "KUBECONFIG": "/dev/null"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    job, end = json.JSONDecoder().raw_decode(done.stdout)
    config_map = json.loads(done.stdout[end:])
    assert job["metadata"]["annotations"]["hpcprof/job-name"] == name
    files = {file.replace("/", "."): text for file, text in rendered.items() if file != "mpijob.yaml"}
    assert config_map["data"] == files
