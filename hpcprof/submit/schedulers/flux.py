"""Flux, by flux batch, flux jobs and flux cancel.

A job may run in an instance of Flux that is itself a job (``flux alloc``, ``flux batch``). Its id is then
``ID;URI`` with the address of that instance. Outputs were seen on flux-core 0.88; states follow
flux-jobs(1) and RFC 21, directives RFC 36.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import SchedulerError
from hpcprof.common.processes import Completed
from hpcprof.runs.job import Job
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.batch import BatchScheduler, records_by_place
from hpcprof.submit.schedulers.command import (
    Unreachable,
    complaint,
    ids_by_place,
    read_options,
    remote_runs,
    run_scheduler_command,
    run_submission,
    submission_error,
)
from hpcprof.submit.schedulers.scheduler import directive_path, directive_value, gpus_per_node
from hpcprof.submit.sites.machine import Ask, Machine, most_common_node, parse_count
from hpcprof.submit.sites.model import LauncherName, Node, Queue, Site

_OPTIONS = read_options(__file__)


class FluxKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a site file under ``flux``."""

    exclusive: bool = True
    """True if jobs take whole nodes; otherwise each takes the cores and GPUs of its ranks."""


class FluxScheduler(BatchScheduler):
    """Flux. Jobs take whole nodes unless the site, or the user, asks for cores and GPUs of each rank."""

    name = "flux"
    title = "Flux"
    keys = FluxKeys
    commands = ("flux",)
    job_id_variable = "FLUX_URI"  # also of an instance that flux start made, which has no id
    silence_remedy = "Ask the operators whether Flux is running, or start an instance: flux start."
    starters = (LauncherName.FLUX,)
    resources = ("cpus_per_rank", "gpus_per_rank", "constraint", "scheduler_args")
    masks_gpus = True
    own_options = _OPTIONS.own
    dependency = "--dependency"
    template_filters = {"directive_path": directive_path}  # noqa: RUF012 (never changed)
    named_files = {"flux.lua": "job/flux.lua.j2"}  # noqa: RUF012

    def directives(self, site: Site, job: Job) -> list[str]:
        """Return all directives but those for the logs."""
        takes_nodes = self.keys_of(site).exclusive and job.cpus_per_rank is None
        gpus = gpus_per_node(job) if takes_nodes else job.gpus_per_rank
        values = {
            "job-name": self.job_name(job.name),
            "bank": job.account,
            "queue": job.queue,
            "time-limit": f"{job.walltime}s",
            "nodes": str(job.nodes),
            "nslots": ""
            if takes_nodes and job.gpus_per_rank is None
            else str(job.nodes if takes_nodes else job.ranks),
            "cores-per-slot": "" if takes_nodes else str(job.cpus_per_rank or 1),
            "gpus-per-slot": str(gpus) if gpus and job.gpus_per_rank is not None else "",
            "requires": job.constraint,
        }
        lines = [f"--{option}={directive_value(value)}" for option, value in values.items() if value]
        return [*lines, *(["--exclusive"] if takes_nodes else []), *super().directives(site, job)]

    def allocated_nodes(self, environment: Mapping[str, str]) -> int:
        """Return the size of the instance, which has a broker on each node."""
        size = run_scheduler_command(["flux", "getattr", "size"]).stdout.strip()
        return int(size) if size.isdigit() else 1

    def settings(self, directive: str) -> frozenset[str]:
        """Return the long name of the option."""
        name = re.split(r"[= ]", directive)[0]
        return frozenset({name if name.startswith("--") else _OPTIONS.long_names.get(name[:2], name[:2])})

    def submit(
        self, script: Path, directory: Path, after: Sequence[str] = (), options: Sequence[str] = ()
    ) -> str:
        """Submit by ``flux batch``, to the instance that the shell is in."""
        depends = [f"--dependency=afterok:{job_id.partition(';')[0]}" for job_id in after]
        submission = run_submission(["flux", "batch", *depends, *options, str(script)], directory)
        job_id = parse_batch(*submission.answer)
        nested = self.job_id_variable in os.environ and remote_runs.get() is None
        return f"{job_id};{os.environ.get('FLUX_URI', '')}" if nested else job_id

    def states(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask each instance for its jobs by ``flux jobs --json``, which also lists ended ones."""
        return records_by_place(
            job_ids,
            lambda instance, ids: parse_jobs(*_flux(instance, ["jobs", "--json", *ids]).answer, time.time()),
        )

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs by ``flux cancel``."""
        for instance, ids in ids_by_place(job_ids).items():
            exit_code, _, errors = _flux(instance, ["cancel", *ids]).answer
            parse_cancel(exit_code, errors)

    def submitted_from(self, script: Path, owner: str) -> str:
        """Return the id of the user's job whose script, which Flux keeps, names the run's folder."""
        listing = run_scheduler_command(["flux", "jobs", "-a", "--json", f"--user={owner}"])
        for job in _jobs(*listing.answer):
            jobspec = run_scheduler_command(["flux", "job", "info", _ascii_id(job["jobid"]), "jobspec"])
            if f"/{json.dumps(script.parent.name)[1:-1]}/" in jobspec.stdout:
                return _ascii_id(job["jobid"])
        return ""

    def question(self, site: Site) -> list[str]:
        """Return the command that fails if no instance answers."""
        return ["flux", "uptime"]

    def probe(self, ask: Ask) -> Machine:
        """Return the queues, and the cores and GPUs of a node."""
        nodes = []
        for line in ask(["flux", "resource", "list", "-no", "{nnodes} {ncores} {ngpus}"]).splitlines():
            counts = [parse_count(word) for word in line.split()]
            if len(counts) == 3 and counts[0]:
                cores, gpus = (count // counts[0] if count else None for count in counts[1:])
                nodes += [Node(cores=cores, gpus=gpus)] * counts[0]
        names = ask(["flux", "queue", "list", "-no", "{queue}"]).split()
        return Machine({name: Queue() for name in names}, node=most_common_node(nodes, []))


def _flux(instance: str, words: Sequence[str]) -> Completed:
    return run_scheduler_command([*(["flux", "proxy", instance] if instance else []), "flux", *words])


def _ascii_id(job_id: str) -> str:
    """Return an id in ASCII: Flux writes the first letter as ƒ where the locale allows it."""
    return job_id.replace("ƒ", "f")


_JOB_ID = re.compile(r"f[1-9A-HJ-NP-Za-km-z]+")
_NO_ANSWER = ("Unable to connect to Flux", "Connection refused", "Connection reset", "Host is down")
_ALREADY_ENDED = ("job is inactive", "unknown job id")


def parse_batch(code: int, out: str, error: str) -> str:
    """Return the job id that ``flux batch`` printed."""
    ids = [_ascii_id(line.strip()) for line in out.splitlines() if _JOB_ID.fullmatch(_ascii_id(line.strip()))]
    if code == 0 and ids:
        return ids[-1]
    refused = code != 0 and (_NO_ANSWER[0] in error or not any(words in error for words in _NO_ANSWER))
    raise submission_error("flux", _complaint(error), refused=refused)


def parse_jobs(code: int, out: str, error: str, now: float) -> dict[str, Record]:
    """Return records by ASCII id from ``flux jobs --json ID…`` at ``now`` (s since 1970)."""
    return {
        _ascii_id(job["jobid"]): replace(
            _record(job, now),
            script=str(job.get("name", "")),
            submitted_seconds=_seconds_since(job, "t_submit", now),
        )
        for job in _jobs(code, out, error)
    }


def parse_cancel(code: int, error: str) -> None:
    """Check the result of ``flux cancel``: a job that has ended or is unknown need not be cancelled."""
    lines = [line for line in error.splitlines() if line.strip() and not line.endswith(_ALREADY_ENDED)]
    if code != 0 and lines:
        raise SchedulerError(f"flux did not cancel the job: {_complaint(error)}.")


def _jobs(code: int, out: str, error: str) -> list[dict[str, Any]]:
    """Return the jobs in the output of ``flux jobs --json``, which for a single id is the job itself."""
    if code != 0 and not re.search(r"^JobID \S+ unknown$", error, re.MULTILINE):
        if "flux-proxy" in error:
            raise Unreachable("Flux did not answer: the instance that has the job cannot be reached.")
        if any(words in error for words in _NO_ANSWER):
            raise Unreachable(f"Flux did not answer: {_complaint(error)}.")
        raise SchedulerError(f"flux jobs failed: {_complaint(error)}.")
    try:
        document = json.loads(out or "{}")
        jobs = document.get("jobs", [document] if document else [])
        return [job for job in jobs if isinstance(job["jobid"], str)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SchedulerError("the output of flux jobs is not as expected.") from None


_WAITING_STATES = ("NEW", "DEPEND", "PRIORITY", "SCHED")
_DEPENDENCIES = {
    "after-": "waits for another job",
    "begin-time=": "its start time has not been reached",
    "max-": "a limit of the user, the bank or the queue is reached",
}
"""The meanings of dependencies, by the beginnings of their descriptions (flux-core, flux-accounting)."""
_RUNNING_STATES = {"RUN": "", "CLEANUP": "ending: its last processes and the epilogue"}


def _record(job: Mapping[str, Any], now: float) -> Record:
    state = job.get("state")
    if state in _WAITING_STATES:
        held = "held: flux job urgency JOB default releases it" if job.get("urgency") == 0 else ""
        return Record(JobState.QUEUED, held or _waits_for(job))
    if state in _RUNNING_STATES:
        return Record(JobState.RUNNING, _RUNNING_STATES[state])
    if state != "INACTIVE":
        return Record(JobState.UNKNOWN, f"Flux calls its state {state}")
    return _ended_record(job, now)


def _waits_for(job: Mapping[str, Any]) -> str:
    """Return the reason why a job waits: its dependencies, or the scheduler's note (RFC 27)."""
    reasons = []
    for name in job.get("dependencies") or ():
        words = next((text for start, text in _DEPENDENCIES.items() if name.startswith(start)), "waits")
        reasons.append(f"{words} ({name})")
    return "; ".join(reasons) or (job.get("annotations") or {}).get("sched", {}).get("reason_pending", "")


def _ended_record(job: Mapping[str, Any], now: float) -> Record:
    ended = _seconds_since(job, "t_inactive", now)
    result, exception = job.get("result"), job.get("exception") or {}
    kind, note = exception.get("type"), exception.get("note") or ""
    if result == "COMPLETED":
        return Record(JobState.COMPLETED, "", 0, ended)
    if result == "TIMEOUT":
        return Record(JobState.TIMEOUT, "", None, ended)
    if kind == "dependency":
        return Record(JobState.CANCELLED, "a job that it depended on did not succeed", None, ended)
    if result == "CANCELED":
        return Record(JobState.CANCELLED, note, None, ended)
    if kind == "alloc":
        return Record(JobState.FAILED, f"it can never run: {note}", None, ended)
    code = job.get("returncode") if "waitstatus" in job else None
    return Record(JobState.FAILED, note, code, ended)


def _seconds_since(job: Mapping[str, Any], event: str, now: float) -> float | None:
    return now - job[event] if isinstance(job.get(event), (int, float)) else None


def _complaint(error: str) -> str:
    lines = [line for line in error.splitlines() if not line.startswith(("usage:", "Try "))]
    return complaint("\n".join(re.sub(r"^flux[- ]\w+: (?:ERROR|error): ", "", line) for line in lines))
