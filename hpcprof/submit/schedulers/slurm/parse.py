"""Parsers of Slurm's commands. Their output was seen on Slurm 22.05.8, unless noted otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.batch import parse_array_indices
from hpcprof.submit.schedulers.command import Refused, Unreachable, complaint
from hpcprof.submit.schedulers.run_state import Record
from hpcprof.submit.schedulers.slurm.states import SLURM_STATES, pending_reason

# Columns of fixed width, which no value but the reason can fill, and last the only value that may contain
# spaces. The job's name is left out, since it may contain anything.
SQUEUE_FORMAT = "JobArrayID:40,State:24,exit_code:12,EndTime:24,Reason:200"
# The id of a job or a whole array, then the script that was submitted.
SCRIPTS_FORMAT = "%F %o"
SACCT_FIELDS = ("JobID", "State", "ExitCode", "End")

_JOB_ID = re.compile(r"\d+(;\S+)?")
_ARRAY_LIMITS = re.compile(r"MaxArraySize\s*=\s*(\d+)|\bmax_array_tasks=(\d+)")
# sbatch has not reached the controller, so that no job can have been accepted.
_NOT_REACHED = "Unable to contact slurm controller (connect failure)"
_SILENT = (
    "Unable to contact slurm controller",
    "Problem talking to database",
    "Problem talking to the database",
    "Unable to connect to database",
    "Connection refused",
    "Connection timed out",
    "Socket timed out",
    "Zero Bytes were transmitted or received",
    "munge",
    "can't be reached now",
)


def parse_sbatch(code: int, out: str, error: str) -> str:
    """Return the job id that ``sbatch --parsable`` printed: ``123`` or ``123;cluster``.

    Raises
    ------
    SchedulerError
        If Slurm did not accept the job.
    """
    lines = out.split("\n")
    ids = [line.strip() for line in lines if _JOB_ID.fullmatch(line.strip())]
    if code == 0 and ids:
        return ids[-1]
    reason = _complaint(error if code else f"{error}\n{out}")
    # Without an answer, or with one that cannot be read, the job may have been accepted all the same.
    refused = code != 0 and (_NOT_REACHED in error or not any(words in error for words in _SILENT))
    raise (Refused if refused else SchedulerError)(f"sbatch did not accept the job: {reason}.")


def parse_squeue(code: int, out: str, error: str, now: float) -> Mapping[str, Record]:
    """Return the records that ``squeue --noheader --states=all --Format=SQUEUE_FORMAT`` printed.

    Parameters
    ----------
    code, out, error : int, str, str
        The result of the command. It fails for a single unknown id, and leaves out unknown ones of several.
    now : float
        The present time in seconds since the epoch.

    Raises
    ------
    Unreachable
        If the controller did not answer.
    """
    if code != 0 and "Invalid job id" in error:
        return {}
    _check("squeue", code, error)
    records = {}
    for line in out.splitlines():
        values = line.split(maxsplit=4)
        if len(values) == 5:  # a line "CLUSTER: name" comes before another cluster's jobs
            job_id, state, status, end, reason = values
            records[job_id] = _record(state, reason.strip(), _from_wait_status(status), end, now)
    return _by_member(records)


def parse_scripts(code: int, out: str, error: str) -> dict[str, str]:
    """Return the newest job or array of each script, from ``squeue --noheader --format=SCRIPTS_FORMAT``.

    Raises
    ------
    Unreachable
        If the controller did not answer.
    """
    _check("squeue", code, error)
    lines = [line.partition(" ") for line in out.splitlines()]
    jobs = [(int(number), script) for number, _, script in lines if number.isdigit()]
    return {script: str(number) for number, script in sorted(jobs)}


def parse_sacct(code: int, out: str, error: str, now: float) -> Mapping[str, Record]:
    """Return the records of ended jobs that ``sacct --parsable2 --noheader --allocations`` printed.

    A job that sacct shows as waiting or running though squeue no longer lists it is left out: accounting lags
    by seconds, or has missed the end. Without accounting the result is empty.

    Raises
    ------
    Unreachable
        If the database did not answer.
    """
    if code != 0 and "accounting storage is disabled" in error:
        return {}
    _check("sacct", code, error)
    records = {}
    for line in out.splitlines():
        values = line.split("|")
        if len(values) == len(SACCT_FIELDS) and values[0] != "JobID":
            job_id, state, exit_code, end = values
            record = _record(state, "", _from_pair(exit_code), end, now)
            if record.state.ended:
                records[job_id] = record
    return _by_member(records)


def parse_largest_array(code: int, out: str, error: str) -> int | None:
    """Return how many members an array may have, from ``scontrol show config``; None if it does not say.

    Indices are below ``MaxArraySize``; some sites set a lower limit, ``max_array_tasks``.

    Raises
    ------
    Unreachable
        If the controller did not answer.
    """
    _check("scontrol", code, error)
    limits = [int(size or tasks) for size, tasks in _ARRAY_LIMITS.findall(out)]
    return min(limits, default=None)


def parse_scancel(code: int, out: str, error: str) -> None:
    """Check the result of scancel, which also succeeds for ended and unknown jobs.

    Raises
    ------
    SchedulerError
        If the job was not cancelled.
    """
    if code != 0 and "already completing or completed" not in error and "Invalid job id" not in error:
        raise SchedulerError(f"scancel did not cancel the job: {_complaint(error or out)}.")


def _by_member(records: Mapping[str, Record]) -> dict[str, Record]:
    """Give each member in a line such as ``129_[2-3%2]`` the record of that line.

    Waiting members share a line; in sacct, so do members that were cancelled while they waited. That line may
    also name members that ran, whose own line takes precedence.
    """
    found = dict(records)
    for job_id, record in records.items():
        array, _, text = job_id.partition("_[")
        for index in parse_array_indices(text.rstrip("]")):
            found.setdefault(f"{array}_{index}", record)
    return found


def _record(state: str, reason: str, code: int | None, end: str, now: float) -> Record:
    word = state.split()[0].rstrip("+")  # "CANCELLED by 1000"; sacct marks a cut with +
    present, words = SLURM_STATES.get(word, (JobState.UNKNOWN, f"Slurm calls its state {word}"))
    if word == "PENDING":
        words = pending_reason(reason)
    elif present is JobState.CANCELLED and reason == "DependencyNeverSatisfied":
        words = "a job that it depended on did not succeed"
    elif word == "FAILED" and reason == "JobLaunchFailure":
        words = _signal(code)
    if not present.ended:
        return Record(present, words)
    # An exit code of 0 with a failure means nothing: timeouts and lost nodes are 0:0 in sacct.
    known = code if present is JobState.COMPLETED or code else None
    return Record(present, words, known, _seconds_since(end, now), preempted=word == "PREEMPTED")


def _signal(code: int | None) -> str:
    return f"ended by signal {-code}" if code is not None and code < 0 else "Slurm could not start job.sh"


def _from_wait_status(text: str) -> int | None:
    """Read squeue's exit_code, a status of wait(2): 768 is exit code 3, 11 is signal 11."""
    if not text.isdigit():
        return None
    status = int(text)
    return status >> 8 if status >> 8 else -(status & 0x7F)


def _from_pair(text: str) -> int | None:
    """Read sacct's ``code:signal``; sacct subtracts 128, so that a segmentation fault is 11:0."""
    code, _, signal = text.partition(":")
    if not code.isdigit() or not signal.isdigit():
        return None
    return int(code) or -int(signal)


def _seconds_since(end: str, now: float) -> float | None:
    try:
        return now - datetime.strptime(end, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:  # N/A, Unknown, None
        return None


def _check(command: str, code: int, error: str) -> None:
    if code == 0:
        return
    reason = _complaint(error)
    if any(words in error for words in _SILENT):
        raise Unreachable(f"Slurm did not answer: {reason}.")
    raise SchedulerError(f"{command} failed: {reason}.")


def _complaint(error: str) -> str:
    """Return Slurm's message without the prefix ``sbatch: error:`` of each line and the hint at --help."""
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line) for line in error.splitlines()]
    text = complaint("\n".join(line for line in lines if not line.startswith("Try ")))
    return text.removeprefix("Batch job submission failed: ").replace(" Batch job submission failed:", ":")
