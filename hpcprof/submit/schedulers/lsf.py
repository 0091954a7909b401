"""LSF, by bsub, bjobs and bkill.

Nothing here was seen on a real LSF. Options, fields and states follow IBM's documentation of Spectrum LSF
10.1 (bsub, bjobs, bkill, "Termination reasons displayed by bacct, bhist, and bjobs"), and ``-nnodes`` OLCF's
guide to Summit.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import SchedulerError
from hpcprof.runs.job import Job
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.batch import BatchScheduler, check_whole_minutes
from hpcprof.submit.schedulers.command import (
    Unreachable,
    complaint,
    read_options,
    run_scheduler_command,
    run_submission,
    seconds_since,
    submission_error,
)
from hpcprof.submit.schedulers.scheduler import GPUS, directive_value, gpus_per_node
from hpcprof.submit.sites.machine import Ask, Machine
from hpcprof.submit.sites.model import LauncherName, Queue, Site


class Allocation(Enum):
    """The unit in which jobs ask for resources."""

    SLOTS = "slots"
    NODES = "nodes"


class LsfKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a site file under ``lsf``."""

    allocation: Allocation = Allocation.SLOTS
    """The unit of a request: slots, one for each rank (-n), or whole nodes (-nnodes, with jsrun)."""


class LsfScheduler(BatchScheduler):
    """LSF. A script is read from standard input, since ``bsub FILE`` ignores the directives in a file."""

    name = "lsf"
    title = "LSF"
    keys = LsfKeys
    commands = ("bsub", "bjobs", "bkill")
    job_id_variable = "LSB_JOBID"
    shell_prefixes = ("LSB_DEFAULT", "BSUB_")
    shell_options = {"LSB_DEFAULTPROJECT": "account", "LSB_DEFAULTQUEUE": "queue"}  # noqa: RUF012
    starters = (LauncherName.JSRUN, LauncherName.OPENMPI, LauncherName.MPICH)
    resources = ("cpus_per_rank", "gpus_per_rank", "constraint", "reservation", "scheduler_args")
    masks_gpus = True
    own_options = read_options(__file__).own
    dependency = "-w"
    log_flags = ("-o", "-e")

    def check(self, job: Job, site: Site) -> None:
        """Check that the walltime is one of whole minutes."""
        check_whole_minutes(job, self.title)

    def directives(self, site: Site, job: Job) -> list[str]:
        """Return all directives but those for the logs."""
        values = {"-J": self.job_name(job.name), "-P": job.account, "-q": job.queue, "-U": job.reservation}
        lines = [f"{option} {directive_value(value)}" for option, value in values.items() if value]
        lines.append(f"-W {job.walltime // 60}")
        if self.keys_of(site).allocation is Allocation.NODES:
            lines.append(f"-nnodes {job.nodes}")
        else:
            lines += [f"-n {job.ranks}", f"-R span[ptile={job.ranks_per_node}]"]
            lines += [f"-R affinity[core({job.cpus_per_rank})]"] if job.cpus_per_rank else []
        inherited = super().directives(site, job)
        gpus = (site.node.gpus or 0) if job.gpus_per_rank is None else gpus_per_node(job)
        if gpus and not any(GPUS in self.settings(line) for line in inherited):
            lines.append(f"-gpu num={gpus}")
        lines += [f"-R select[{directive_value(job.constraint)}]"] if job.constraint else []
        return [*lines, *inherited]

    def allocated_nodes(self, environment: Mapping[str, str]) -> int:
        """Return the number of hosts in LSB_MCPU_HOSTS, each followed by its slots."""
        return len(environment.get("LSB_MCPU_HOSTS", "host 1").split()) // 2

    def settings(self, directive: str) -> frozenset[str]:
        """Return the option, with the section of a resource requirement (``-R``): they add to each other."""
        option, _, value = directive.partition(" ")
        section = value.strip().partition("[")[0]
        return frozenset({GPUS if option == "-gpu" else f"-R {section}" if option == "-R" else option})

    def submit(
        self, script: Path, directory: Path, after: Sequence[str] = (), options: Sequence[str] = ()
    ) -> str:
        """Submit by ``bsub``."""
        depends = ["-w", " && ".join(f"done({job_id})" for job_id in after)] if after else []
        command = ["sh", "-c", 'exec bsub "$@" <"$0"', str(script), *depends, *options]
        submission = run_submission(command, directory)
        return parse_bsub(*submission.answer)

    def states(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Ask for all jobs at once by ``bjobs -json``, which also lists those that have ended lately."""
        fields = "jobid stat exit_code exit_reason pend_reason suspend_reason submit_time output_file"
        listing = run_scheduler_command(["bjobs", "-a", "-json", "-o", fields, *job_ids])
        return parse_bjobs(*listing.answer, datetime.now(timezone.utc))

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs by ``bkill``."""
        exit_code, output, errors = run_scheduler_command(["bkill", *job_ids]).answer
        parse_bkill(exit_code, f"{output}\n{errors}")

    def submitted_from(self, script: Path, owner: str) -> str:
        """Look for the file of the run's output among the user's jobs."""
        listing = run_scheduler_command(["bjobs", "-a", "-u", owner, "-json", "-o", "jobid output_file"])
        out = f"/{script.parent.name}/logs/job.out"
        jobs = reversed(_jobs(*listing.answer))
        return next((str(job["JOBID"]) for job in jobs if str(job.get("OUTPUT_FILE")).endswith(out)), "")

    def question(self, site: Site) -> list[str]:
        """Return the command that asks the batch daemon for its queues."""
        return ["bqueues"]

    def probe(self, ask: Ask) -> Machine:
        """Return the open queues."""
        answer = ask(["bqueues", "-o", "queue_name status", "-noheader"])
        return Machine({name: Queue() for name in re.findall(r"^(\S+) +Open:Active", answer, re.MULTILINE)})


_NO_ANSWER = ("LSF is down", "not responding", "Failed in an LSF library call", "Connection refused")
_NOT_FOUND_MESSAGE = re.compile(
    r"(?:Job <[^>]*> is not found|No (?:unfinished )?job found|No matching job found)"
)
_NOT_KILLED_MESSAGE = re.compile(r"Job <[^>]*>: (?!Job has already finished|No matching job)(.*)")


def parse_bsub(code: int, out: str, error: str) -> str:
    """Return the job id in bsub's ``Job <123> is submitted to queue <normal>.``."""
    answer = re.search(r"^Job <(\d+)> is submitted", out, re.MULTILINE)
    if code == 0 and answer:
        return answer[1]
    refused = code != 0 and not any(words in error for words in _NO_ANSWER)
    reason = complaint(error or out).removesuffix(". Job not submitted")
    raise submission_error("bsub", reason, refused=refused)


def parse_bjobs(code: int, out: str, error: str, now: datetime) -> dict[str, Record]:
    """Return the records that ``bjobs -json`` printed at ``now``, by job id; unknown jobs are left out."""
    return {
        str(job["JOBID"]): replace(
            _record(job),
            script=str(job.get("OUTPUT_FILE") or ""),
            submitted_seconds=_age(str(job.get("SUBMIT_TIME", "")), now),
        )
        for job in _jobs(code, out, error)
    }


def parse_bkill(code: int, text: str) -> None:
    """Check the result of bkill: a job that has ended or is unknown need not be ended."""
    if code != 0 and (
        (refused := _NOT_KILLED_MESSAGE.search(text)) or not re.search(r"^Job <", text, re.MULTILINE)
    ):
        reason = refused[1] if refused else text
        raise SchedulerError(f"bkill did not end the job: {complaint(reason)}.")


def _jobs(code: int, out: str, error: str) -> list[dict[str, Any]]:
    if code != 0 and not _NOT_FOUND_MESSAGE.search(f"{out}\n{error}"):
        if any(words in error for words in _NO_ANSWER):
            raise Unreachable(f"LSF did not answer: {complaint(error)}.")
        raise SchedulerError(f"bjobs failed: {complaint(error or out)}.")
    try:
        records = json.loads(out)["RECORDS"] if out.lstrip().startswith("{") else []
        return [record for record in records if "ERROR" not in record and record["JOBID"]]
    except (ValueError, KeyError, TypeError):
        raise SchedulerError("the output of bjobs is not as expected.") from None


_STATES = {
    "PEND": JobState.QUEUED,
    "PSUSP": JobState.QUEUED,
    "WAIT": JobState.QUEUED,
    "FWD_PEND": JobState.QUEUED,
    "PROV": JobState.QUEUED,
    "RUN": JobState.RUNNING,
    "USUSP": JobState.RUNNING,
    "SSUSP": JobState.RUNNING,
    "DONE": JobState.COMPLETED,
    "UNKWN": JobState.UNKNOWN,
    "ZOMBI": JobState.UNKNOWN,
}
_WORDS = {
    "PSUSP": "held: bresume releases it",
    "PROV": "its nodes are being made ready",
    "USUSP": "suspended by a user: bresume continues it",
    "SSUSP": "suspended by the scheduler",
    "UNKWN": "LSF has lost contact with its node, where it may still run",
    "ZOMBI": "it was killed while LSF had no contact with its node: bkill -r removes it",
}
_SUBMIT_TIME = re.compile(
    r"(?:\w{3} )?(?P<day>[A-Z][a-z]{2} +\d{1,2}) +(?P<time>\d{1,2}:\d{2})(?::\d{2})?(?: +(?P<year>\d{4}))?"
)
_CLOCK_SECONDS = 86400.0
"""Maximum time of a submission ahead of this clock (s); one further ahead is of the year before."""
_NEVER = "Dependency condition invalid or never satisfied"

_TERMINATIONS: dict[str, tuple[JobState, str]] = {
    "TERM_RUNLIMIT": (JobState.TIMEOUT, ""),
    "TERM_DEADLINE": (JobState.TIMEOUT, "its deadline has passed"),
    "TERM_WINDOW": (JobState.TIMEOUT, "the queue's run window has closed"),
    "TERM_OWNER": (JobState.CANCELLED, "by its owner"),
    "TERM_FORCE_OWNER": (JobState.CANCELLED, "by its owner"),
    "TERM_ADMIN": (JobState.CANCELLED, "by an administrator"),
    "TERM_FORCE_ADMIN": (JobState.CANCELLED, "by an administrator"),
    "TERM_ORPHAN_SYSTEM": (JobState.CANCELLED, "a job that it depended on did not succeed"),
    "TERM_PREEMPT": (JobState.CANCELLED, "preempted by another job"),
    "TERM_MEMLIMIT": (JobState.FAILED, "it used more memory than it asked for"),
    "TERM_SWAP": (JobState.FAILED, "it used more swap space than it asked for"),
    "TERM_CPULIMIT": (JobState.FAILED, "it used more CPU time than it asked for"),
    "TERM_PROCESSLIMIT": (JobState.FAILED, "it had more processes than the queue permits"),
    "TERM_THREADLIMIT": (JobState.FAILED, "it had more threads than the queue permits"),
    "TERM_PRE_EXEC_FAIL": (JobState.FAILED, "the command that prepares its nodes failed"),
    "TERM_CWD_NOTEXIST": (JobState.FAILED, "its working directory is not on the node"),
    "TERM_ZOMBIE": (JobState.FAILED, "LSF lost its node"),
}
"""The reasons for which LSF ends jobs."""


def _record(job: Mapping[str, Any]) -> Record:
    word = str(job.get("STAT", ""))
    if word == "EXIT":
        reason = str(job.get("EXIT_REASON") or "")
        code = int(text) if (text := str(job.get("EXIT_CODE") or "")).isdigit() else None
        state, words = _TERMINATIONS.get(reason.partition(":")[0].strip(), (JobState.FAILED, ""))
        return Record(state, words, code)
    if word not in _STATES:
        return Record(JobState.UNKNOWN, f"LSF calls its state {word}")
    state = _STATES[word]
    if state is JobState.COMPLETED:
        return Record(state, "", 0)
    reason = str(job.get("PEND_REASON") or "") if state is JobState.QUEUED else ""
    if _NEVER in reason:
        return Record(state, f"it can never run: a job that it depends on did not succeed ({_NEVER})")
    return Record(state, _WORDS.get(word) or reason.rstrip("; "))


def _age(submitted: str, now: datetime) -> float | None:
    """Return the seconds since ``Nov 29 13:47``, in UTC; seconds and year may follow the minutes."""
    if not (match := _SUBMIT_TIME.match(submitted)):
        return None
    ages = (
        seconds_since(f"{year} {match['day']} {match['time']}", "%Y %b %d %H:%M", now.timestamp())
        for year in ([match["year"]] if match["year"] else [now.year, now.year - 1])
    )
    return next((age for age in ages if age is not None and age > -_CLOCK_SECONDS), None)
