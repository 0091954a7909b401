"""Schedulers in memory: what each prints of its jobs. They stand for the commands, which are not started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import yaml

from hpcprof.common.process_identity import ProcessIdentity
from hpcprof.common.processes import CommandNotStarted, Completed
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers import polling
from hpcprof.submit.schedulers.base import JobState
from tests.unit.submit.schedulers.recorded import recorded

Said = tuple[int, str, str]
"""An exit code, the standard output and the standard error."""

ENDS: Mapping[JobState, str] = {JobState.COMPLETED: "0", JobState.FAILED: "3", JobState.TIMEOUT: ""}
"""The ends of jobs, each with the text that job.sh then writes to ``finished``."""


class StandIn:
    """A scheduler with its jobs: what they do, as `JobState`, by id.

    A subclass prints what the scheduler prints: that it does not answer (``silence``), that it accepts no
    job (``refusal``) or deletes none (``denial``), and the answers to its commands.
    """

    site: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    constraint: ClassVar[str] = "a100"
    silence: ClassVar[Said]
    refusal: ClassVar[Said]
    denial: ClassVar[Said]

    def __init__(self) -> None:
        self.jobs: dict[str, JobState] = {}
        self.down = self.absent = self.refuses = self.denies = False
        self.calls: list[list[str]] = []
        self.environments: list[object] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the commands, and let nobody wait for them."""
        monkeypatch.setattr("hpcprof.runs.directory._git_state", lambda _: None)
        for module in ("command", "kubernetes.client"):
            monkeypatch.setattr(f"hpcprof.submit.schedulers.{module}.run_command", self.run)
        monkeypatch.setattr("hpcprof.submit.schedulers.command._PAUSES", (0.0, 0.0, 0.0))
        monkeypatch.setattr(polling, "_silent_schedulers", {})

    def run(self, arguments: Sequence[str], text_input: str = "", **options: object) -> Completed:
        """Answer a command."""
        words = list(arguments)
        self.calls.append(words)
        self.environments.append(options.get("environment"))
        if self.absent:
            raise CommandNotStarted(words[0], "it is not on the PATH")
        code, out, error = self.silence if self.down else self.answer(words, text_input)
        return Completed(tuple(words), code, out, error, 0.0)

    def answer(self, words: list[str], text: str) -> Said:
        """Return what a command prints."""
        raise NotImplementedError

    def taken(self, job_id: str) -> Said:
        """Accept a job."""
        if self.refuses:
            return self.refusal
        self.jobs[job_id] = JobState.QUEUED
        return 0, f"{job_id}\n", ""

    def deleted(self, job_ids: Sequence[str]) -> Said:
        """Delete jobs."""
        if self.denies:
            return self.denial
        self.jobs |= dict.fromkeys(job_ids, JobState.CANCELLED)
        return 0, "", ""

    def start(self, run: Run) -> None:
        """Start a job: job.sh notes it."""
        self.jobs[run.job_id] = JobState.RUNNING
        (run.path / "state" / "started").write_text("now\n")

    def end(self, run: Run, state: JobState) -> None:
        """Start and end a job."""
        self.start(run)
        self.jobs[run.job_id] = state
        if ENDS[state]:
            (run.path / "state" / "finished").write_text(f"{ENDS[state]}\n")

    def forget(self, run: Run) -> None:
        """Lose the record of a job."""
        del self.jobs[run.job_id]


class Slurm(StandIn):
    """Slurm without accounting."""

    site = "generic-slurm"
    silence = (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    refusal = (1, "", "sbatch: error: Batch job submission failed: Invalid account\n")
    denial = (1, "", "scancel: error: Kill job error on job id 5: Access/permission denied\n")
    codes: ClassVar = {JobState.FAILED: 3 << 8, JobState.QUEUED: 0}

    def answer(self, words: list[str], text: str) -> Said:
        """Answer sbatch, squeue, sacct, scancel or scontrol."""
        match words[0]:
            case "sbatch":
                return self.taken(str(101 + len(self.jobs)))
            case "scancel":
                return self.deleted(words[1:])
            case "sacct":
                return 1, "", "Slurm accounting storage is disabled\n"
            case "squeue":
                lines = [self._line(*job) for job in self.jobs.items()]
                return (0, "".join(lines), "") if lines else (1, "", "error: Invalid job id specified\n")
        return 0, "", ""

    def _line(self, job_id: str, state: JobState) -> str:
        name = {JobState.QUEUED: "PENDING"}.get(state, state.name)
        return f"{job_id:40}{name:24}{self.codes.get(state, 0):<12}{'N/A':24}{'None':200}\n"


class Pbs(StandIn):
    """PBS with a history."""

    site = "generic-pbs"
    constraint = "gpu_type=a100"
    silence = recorded("pbs/down_qstat.txt")
    refusal = (170, "", "qsub: Unknown queue\n")
    denial = (168, "", "qdel: Unauthorized Request 5.pbshost\n")
    attributes: ClassVar = {
        JobState.QUEUED: {"job_state": "Q"},
        JobState.RUNNING: {"job_state": "R"},
        JobState.COMPLETED: {"job_state": "F", "substate": 92, "Exit_status": 0},
        JobState.FAILED: {"job_state": "F", "substate": 93, "Exit_status": 3},
        JobState.TIMEOUT: {"job_state": "F", "substate": 93, "Exit_status": -29},
        JobState.CANCELLED: {"job_state": "F", "substate": 91, "Exit_status": 271},
    }

    def answer(self, words: list[str], text: str) -> Said:
        """Answer qsub, qstat or qdel."""
        match words[0]:
            case "qsub":
                return self.taken(f"{101 + len(self.jobs)}.pbshost")
            case "qdel":
                return self.deleted(words[1:])
        if "-B" in words or words[-1] in self.jobs:
            jobs = {} if "-B" in words else {words[-1]: self.attributes[self.jobs[words[-1]]]}
            return 0, json.dumps({"Jobs": jobs}), ""
        return 153, "{}", f"qstat: Unknown Job Id {words[-1]}\n"


class Flux(StandIn):
    """An instance of Flux."""

    site = "generic-flux"
    silence = (
        1,
        "",
        "flux-jobs: ERROR: Unable to connect to Flux: broker socket /run/flux/local was not found\n",
    )
    refusal = (1, "", "flux-batch: ERROR: 'nosuch' is not a valid queue\n")
    denial = (1, "", "flux-cancel: ERROR: fR2zPx: cancel requires owner or flux instance owner\n")
    results: ClassVar = {JobState.FAILED: ("FAILED", 3), JobState.TIMEOUT: ("TIMEOUT", 142)}

    def answer(self, words: list[str], text: str) -> Said:
        """Answer ``flux batch``, ``flux jobs`` or ``flux cancel``."""
        match words[1]:
            case "batch":
                return self.taken(f"fR2zP{'xyzabc'[len(self.jobs)]}")
            case "cancel":
                return self.deleted(words[2:])
            case "jobs":
                asked = words[words.index("--json") + 1 :]
                found = [self._job(job_id, self.jobs[job_id]) for job_id in asked if job_id in self.jobs]
                unknown = "".join(f"JobID {job_id} unknown\n" for job_id in asked if job_id not in self.jobs)
                shown = found[0] if len(asked) == 1 and found else {"jobs": found}
                return (0, json.dumps(shown), unknown) if found else (1, "", unknown)
        return 0, "", ""

    def _job(self, job_id: str, state: JobState) -> dict[str, Any]:
        named = {JobState.QUEUED: "SCHED", JobState.RUNNING: "RUN"}
        job = {"jobid": job_id, "state": named.get(state, "INACTIVE"), "urgency": 16}
        if state.ended:
            result, code = self.results.get(state, (state.name.replace("LL", "L"), 0))
            job |= {"result": result, "waitstatus": code << 8, "returncode": code}
        return job


class Lsf(StandIn):
    """LSF, as its documentation has it."""

    site = "generic-lsf"
    silence = (255, "", "Failed in an LSF library call: LIM is down; try later\n")
    refusal = (255, "", "nosuch: No such queue. Job not submitted.\n")
    denial = (255, "", "Job <101>: User permission denied\n")
    states: ClassVar = {
        JobState.QUEUED: ("PEND", "", ""),
        JobState.RUNNING: ("RUN", "", ""),
        JobState.COMPLETED: ("DONE", "", ""),
        JobState.FAILED: ("EXIT", "3", ""),
        JobState.TIMEOUT: ("EXIT", "140", "TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
        JobState.CANCELLED: ("EXIT", "130", "TERM_OWNER: job killed by owner"),
    }

    def answer(self, words: list[str], text: str) -> Said:
        """Answer bsub, bjobs or bkill."""
        match words[0]:
            case "sh":
                code, out, error = self.taken(str(101 + len(self.jobs)))
                return (
                    code,
                    f"Job <{out.strip()}> is submitted to default queue <normal>.\n" if out else "",
                    error,
                )
            case "bkill":
                return self.deleted(words[1:])
            case "bjobs":
                records = [self._record(job_id) for job_id in words[words.index("-o") + 2 :]]
                return 0, json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}), ""
        return 0, "", ""

    def _record(self, job_id: str) -> dict[str, str]:
        if job_id not in self.jobs:
            return {"JOBID": job_id, "ERROR": f"Job <{job_id}> is not found"}
        state, code, reason = self.states[self.jobs[job_id]]
        return {"JOBID": job_id, "STAT": state, "EXIT_CODE": code, "EXIT_REASON": reason, "PEND_REASON": ""}


class Kubernetes(StandIn):
    """A cluster with the MPI operator."""

    site = "kubernetes"
    options: ClassVar = {"image": "registry.example/hpcprof:1.0", "pvc": "results"}
    constraint = "pool=gpu"
    silence = (1, "", "The connection to the server localhost:8080 was refused\n")
    refusal = (1, "", "error: no matches for kind MPIJob\nensure CRDs are installed first\n")
    denial = (1, "", "Error from server (Forbidden): cannot delete resource\n")
    conditions: ClassVar = {
        JobState.RUNNING: ("Running", ""),
        JobState.COMPLETED: ("Succeeded", ""),
        JobState.FAILED: ("Failed", "BackoffLimitExceeded"),
        JobState.TIMEOUT: ("Failed", "DeadlineExceeded"),
    }

    def answer(self, words: list[str], text: str) -> Said:
        """Answer ``kubectl create``, ``get`` or ``delete``."""
        (verb,) = {"create", "get", "delete"}.intersection(words)
        if verb == "create":
            name = next(yaml.safe_load_all(text))["metadata"]["name"]
            code, _, error = self.taken(name)
            return code, "" if code else f"mpijob.kubeflow.org/{name}\n", error
        names = [word.partition("/")[2] for word in words if word.startswith("mpijobs.kubeflow.org/")]
        if verb == "delete":
            code, _, error = self.deleted(names)
            return code, "", error
        items = [item for job in self.jobs.items() for item in self._items(*job)]
        return 0, json.dumps({"items": items}), ""

    def deleted(self, job_ids: Sequence[str]) -> Said:
        """Delete jobs, of which nothing remains."""
        said = super().deleted(job_ids)
        self.jobs = {name: state for name, state in self.jobs.items() if state is not JobState.CANCELLED}
        return said

    def _items(self, name: str, state: JobState) -> list[dict[str, Any]]:
        kind, reason = self.conditions.get(state, ("Created", ""))
        status = {"conditions": [{"type": kind, "status": "True", "reason": reason}]}
        ended = {"terminated": {"exitCode": int(ENDS.get(state) or 0)}}
        pod = {"containerStatuses": [{"name": "launcher", "state": ended}]}
        metadata = {"name": name, "labels": {"hpcprof/run": name}}
        return [
            {"kind": "MPIJob", "metadata": metadata, "status": status},
            {"kind": "Pod", "metadata": metadata, "status": pod if ENDS.get(state) else {}},
        ]


class _Process(NamedTuple):
    pid: int

    def poll(self) -> None:
        """Say that it still runs."""


class Local(StandIn):
    """This machine: supervisors that are no processes."""

    site = "local"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the supervisors."""
        super().install(monkeypatch)
        self.states: dict[str, Path] = {}
        monkeypatch.setattr("hpcprof.submit.schedulers.local.client.start_in_background", self._begin)
        monkeypatch.setattr(ProcessIdentity, "alive", lambda identity: self._runs(str(identity.pid)))
        monkeypatch.setattr(
            os, "kill", lambda pid, _: self._note(str(pid), JobState.CANCELLED, "cancelled -15")
        )

    def end(self, run: Run, state: JobState) -> None:
        """End a job as its supervisor does."""
        super().end(run, state)
        self._note(run.job_id, state, f"exited {ENDS[state]}" if ENDS[state] else "timeout -15")

    def _runs(self, job_id: str) -> bool:
        return self.jobs.get(job_id) in (JobState.QUEUED, JobState.RUNNING)

    def _note(self, job_id: str, state: JobState, how: str) -> None:
        self.jobs[job_id] = state
        (self.states[job_id] / "ended").write_text(f"{how}\n")

    def _begin(self, command: Sequence[str], *_: object) -> _Process:
        if self.refuses:
            raise CommandNotStarted(command[0], "it is not executable")
        process = _Process(4_000_000 + len(self.jobs))  # more than any process of Linux
        state = self.states[str(process.pid)] = Path(command[3]) / "state"
        (state / "supervisor").write_text(f"{process.pid} 1 boot\n")
        self.jobs[str(process.pid)] = JobState.QUEUED
        return process
