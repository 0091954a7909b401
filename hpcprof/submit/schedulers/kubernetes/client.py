"""The client of Kubernetes, by kubectl: a run is an MPIJob of Kubeflow's operator, found by its label.

The state comes from the conditions that the operator sets (``JobCondition`` in
github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go), from the pods' own, and, where the
volume of results is mounted here too, from the run's state files.
"""

from collections.abc import Mapping, Sequence

import msgspec

from hpcprof.common.decode import from_json, read_text
from hpcprof.common.errors import HpcprofError, SchedulerError
from hpcprof.common.grouping import grouped
from hpcprof.common.masking import masked
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, Completed, run_command
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers import run_state
from hpcprof.submit.schedulers.base import (
    CANCELLED_FILE,
    JobState,
    JobStatus,
    SchedulerClient,
    mark_cancelled,
)
from hpcprof.submit.schedulers.command import seconds_left, submission_error
from hpcprof.submit.schedulers.kubernetes import MPIJOB_FILE, object_name

_SECONDS = 60.0
# Deleting waits for the pods, which have 30 seconds to end after SIGTERM by default.
_DELETE_SECONDS = 120.0


class KubernetesClient(SchedulerClient):
    """Talks to the API server in each run's context and namespace."""

    cannot_wait = "Kubernetes cannot start one MPIJob after another: submit it once the other has ended."

    def submit(self, run: Run, after: Sequence[str] = ()) -> str:
        """Create the MPIJob and its ConfigMap; the job id is the MPIJob's name."""
        try:
            manifest = read_text(run.path / MPIJOB_FILE)
        except OSError as error:
            raise SchedulerError(f"cannot read {run.path / MPIJOB_FILE}: {error.strerror}.") from None
        result = _kubectl(run, "create", "--filename=-", "--output=name", text=manifest)
        name = parse_created(result.stdout) if result.exit_code == 0 else None
        if name is None:
            # kubectl creates what it can: without the operator, the ConfigMap alone.
            _kubectl(run, "delete", f"configmap/{object_name(run.id)}", "--ignore-not-found")
            refused = result.exit_code != 0 and "timeout" not in result.stderr.lower()
            raise submission_error("kubectl", last_line(result.stderr).rstrip("."), refused=refused)
        return name

    def poll(self, runs: Sequence[Run]) -> dict[str, JobStatus]:
        """Return each run's status, asking each cluster and namespace once."""
        places = grouped((tuple(_place(run)), run) for run in runs)
        statuses: dict[str, JobStatus] = {}
        for group in places.values():
            try:
                # All MPIJobs of hpcprof in the runs' namespace, and their pods, at once.
                which = ("mpijobs.kubeflow.org,pods", "--selector=app.kubernetes.io/managed-by=hpcprof")
                objects = parse_objects(*_kubectl(group[0], "get", *which, "--output=json").answer)
            except HpcprofError as error:
                statuses.update({run.id: JobStatus(JobState.UNKNOWN, str(error)) for run in group})
            else:
                statuses.update({run.id: status_from_objects(run, objects) for run in group})
        return statuses

    def cancel(self, *runs: Run) -> None:
        """Delete the MPIJobs and wait until their pods have ended; an MPIJob that has ended is kept."""
        for run in runs:
            present = self.poll([run])[run.id]
            if present.state.ended:
                continue
            if present.state is JobState.UNKNOWN:
                raise SchedulerError(f"{run.id} was not cancelled: {present.reason}")
            mark = mark_cancelled(run)
            name, wait = _name(run), f"--timeout={_DELETE_SECONDS:.0f}s"
            objects = (f"mpijobs.kubeflow.org/{name}", f"configmap/{name}")
            result = _kubectl(run, "delete", *objects, "--ignore-not-found", "--cascade=foreground", wait)
            if result.exit_code != 0:
                mark.unlink()
                raise SchedulerError(f"{run.id} was not cancelled: {last_line(result.stderr)}")


def status_from_objects(run: Run, objects: "Mapping[str, Objects]") -> JobStatus:
    """Return a run's status, from the objects of its namespace and its own state files."""
    job = objects.get(_name(run))
    if job is None:
        return _without_record(run)
    present = job.status()
    finished = run_state.status_by_finished_file(run)
    if present.state is JobState.COMPLETED and finished is not None:
        return finished
    if present.state is JobState.COMPLETED and run.state_file("started") is not None:
        return JobStatus(JobState.FAILED, "job.sh ended without its finished file", 0, provisional=True)
    if present.state is JobState.QUEUED and run.state_file("started") is not None:
        return JobStatus(JobState.RUNNING)
    return present


def _without_record(run: Run) -> JobStatus:
    """Return the status of a run whose MPIJob was deleted, by a user or at the end of its time to live."""
    if (who := run.state_file(CANCELLED_FILE)) is not None:
        return JobStatus(JobState.CANCELLED, who)
    if (finished := run_state.status_by_finished_file(run)) is not None:
        return finished
    if not run.job_id:
        return run_state.status_of_submission(run)
    reason = f"the MPIJob {_name(run)} was deleted"
    if not run_state.records(run, "finished"):
        return run_state.unknown_result(reason)
    return JobStatus(JobState.FAILED, f"{reason}, and the run has no finished file", provisional=True)


def _name(run: Run) -> str:
    return run.job_id or object_name(run.id)


def _place(run: Run) -> list[str]:
    options = run.submission.job.options
    return [f"--{key}={options[key]}" for key in ("context", "namespace") if options.get(key)]


def _kubectl(run: Run, *arguments: str, text: str = "") -> Completed:
    command = ["kubectl", *_place(run), *arguments]
    seconds = _DELETE_SECONDS + _SECONDS if arguments[0] == "delete" else _SECONDS
    try:
        return run_command(command, timeout=seconds_left("kubectl", seconds), text_input=text)
    except CommandNotStarted as error:
        sentence = f"cannot start kubectl: {error.reason}; install it, or load its module."
        raise SchedulerError(sentence) from None
    except CommandTimedOut:
        sentence = f"kubectl {arguments[0]} did not answer within {round(seconds, 1):g} s."
        raise SchedulerError(sentence) from None


class Condition(msgspec.Struct, frozen=True):
    """A condition of an MPIJob or a pod; ``status`` is True, False or Unknown, as text."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    exitCode: int | None = None


class _Container(msgspec.Struct, frozen=True):
    name: str
    state: dict[str, _State] = {}


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: list[Condition] | None = None
    containerStatuses: list[_Container] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str] = {}


class Item(msgspec.Struct, frozen=True):
    """An MPIJob or a pod, with the fields that determine its state, which have the same names in both."""

    kind: str
    metadata: _Metadata
    status: _Status = _Status()

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of type ``kind`` if it is true."""
        return next((c for c in self.status.conditions or () if (c.type, c.status) == (kind, "True")), None)


class _List(msgspec.Struct, frozen=True):
    items: list[Item]


class Objects(msgspec.Struct, frozen=True):
    """A run's MPIJob and pods."""

    job: Item
    pods: list[Item]

    def status(self) -> JobStatus:
        """Return the state that the cluster shows."""
        # The end comes first: the operator leaves Created true, and also Running if a worker was evicted.
        if failed := self.job.condition("Failed"):
            return self._failed_status(failed)
        if self.job.condition("Succeeded"):
            return JobStatus(JobState.COMPLETED, "", 0)
        if suspended := self.job.condition("Suspended"):
            return JobStatus(JobState.QUEUED, suspended.message or "suspended")
        if self.job.condition("Restarting"):
            return JobStatus(JobState.RUNNING, "restarting")
        if self.job.condition("Running"):
            return JobStatus(JobState.RUNNING)
        return JobStatus(JobState.QUEUED, why_pending(self.pods))

    def _failed_status(self, condition: Condition) -> JobStatus:
        code = launcher_exit_code(self.pods)
        if condition.reason == "DeadlineExceeded":
            return JobStatus(JobState.TIMEOUT, "the walltime limit was exceeded", code)
        if condition.reason == "MPIJobEvicted":
            return JobStatus(JobState.FAILED, f"evicted: {condition.message}", code)
        if code:
            return JobStatus(JobState.FAILED, f"exit code {code}", code)
        reason = f"{condition.reason}: {condition.message}".strip(": ")
        return JobStatus(JobState.FAILED, reason or "failed", code)


def parse_objects(code: int, out: str, error: str) -> dict[str, Objects]:
    """Return the runs' objects by the name of their MPIJob, from ``kubectl get mpijobs,pods -o json``."""
    if code != 0:
        raise SchedulerError(f"the cluster did not answer: {last_line(error)}")
    try:
        items = from_json(out, _List).items
    except msgspec.MsgspecError as wrong:
        raise SchedulerError(f"the output of kubectl get is not a list of objects: {wrong}.") from None
    jobs: dict[str, Item] = {}
    pods: dict[str, list[Item]] = {}
    for item in items:
        name = item.metadata.labels.get("hpcprof/run", item.metadata.name)
        if item.kind == "MPIJob":
            jobs[name] = item
        else:
            pods.setdefault(name, []).append(item)
    return {name: Objects(job, pods.get(name, [])) for name, job in jobs.items()}


def parse_created(out: str) -> str | None:
    """Return the MPIJob's name from ``kubectl create -o name``, None if none was created."""
    kinds = dict(line.strip().split("/", 1) for line in out.splitlines() if "/" in line)
    return kinds.get("mpijob.kubeflow.org")


def why_pending(pods: Sequence[Item]) -> str:
    """Return why pods do not run: the reason that the cluster's scheduler or the node gives for one."""
    for pod in pods:
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"{condition.reason}: {condition.message}".strip(": ")
        for container in pod.status.containerStatuses or ():
            waiting = container.state.get("waiting")
            if waiting is not None and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
                return f"{waiting.reason}: {waiting.message}".strip(": ")
    return "" if pods else "no pods yet: is the MPI operator running?"


def launcher_exit_code(pods: Sequence[Item]) -> int | None:
    """Return the exit code of job.sh, the same as the launcher container's."""
    for pod in pods:
        for container in pod.status.containerStatuses or ():
            ended = container.state.get("terminated")
            if container.name == "launcher" and ended is not None:
                return ended.exitCode
    return None


def last_line(text: str) -> str:
    """Return the last line of kubectl's errors without secrets: the reason, after retries and warnings."""
    lines = [line.strip() for line in masked(text).splitlines() if line.strip()]
    return f"{lines[-1].rstrip('.')}." if lines else "it gave no reason."
