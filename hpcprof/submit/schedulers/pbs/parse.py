"""Parsers of PBS's commands. Their output was seen on OpenPBS 23.06.06, unless noted otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.batch import parse_array_indices
from hpcprof.submit.schedulers.command import Refused, Unreachable, complaint
from hpcprof.submit.schedulers.pbs.states import record_from_attributes
from hpcprof.submit.schedulers.run_state import Record

# Error codes of PBS are 15000 and more; a command's exit code is their last eight bits.
_UNKNOWN_JOB = 153
_FINISHED_JOB = 35
_FINISHED_MEMBER = 55  # of an array
_USAGE = 2

_QSUB = {
    160: "the PBS server cannot be reached",
    166: "a value that it asks for is not valid",
    170: "the queue does not exist",
    173: "the queue does not accept jobs at present",
    174: "the queue does not accept jobs from you; is it behind a routing queue?",
    187: "it asks for a resource that the site does not have",
    188: "it exceeds a limit of the queue or the server, in nodes or in walltime",
    32: "a rule of the site refuses it",
}

_JOB_ID = re.compile(r"\d+(\[\d*\])?(\.\S+)?")
_SILENT = ("cannot connect", "Connection refused", "Unknown Host", "Connection timed out")


def parse_qsub(code: int, out: str, error: str) -> str:
    """Return the job id that qsub printed.

    Raises
    ------
    SchedulerError
        If PBS did not accept the job, with the meaning of the exit code and PBS's own message.
    """
    ids = [line.strip() for line in out.splitlines() if _JOB_ID.fullmatch(line.strip())]
    if code == 0 and ids:
        return ids[-1]
    own = _complaint(error if code else f"{error}\n{out}")
    meaning = "an option or directive is wrong" if code == _USAGE else _QSUB.get(code, "")
    # Without an answer, or with one that cannot be read, the job may have been accepted all the same.
    refused = code != 0 and "Connection timed out" not in error
    kind = Refused if refused else SchedulerError
    raise kind(f"qsub did not accept the job: {f'{meaning}: ' if meaning else ''}{own}.")


def parse_job_name(script: str) -> str:
    """Return the name that a script's directives give its job, the last one counts; empty if none does."""
    names = re.findall(r"^#PBS\b.*\s-N\s*(\S+)", script, re.MULTILINE)
    return names[-1] if names else ""


def parse_qselect(code: int, out: str, error: str) -> list[str]:
    """Return the ids that qselect printed, newest first; there may be none. An array has one.

    Raises
    ------
    Unreachable
        If the server did not answer.
    """
    _check(code, out, error, "qselect")
    return [line.strip() for line in reversed(out.splitlines()) if _JOB_ID.fullmatch(line.strip())]


def was_submitted_from(script: Path, out: str) -> bool:
    """Return whether ``qstat -f -F json`` printed a job whose script has this path: qsub's last argument."""
    found = re.search(r'^\s*"Submit_arguments"\s*:\s*"(.*)"\s*,?\s*$', out, re.MULTILINE)
    # Not as JSON: the job's environment can make it invalid.
    path = json.dumps(str(script), ensure_ascii=False)[1:-1]
    return found is not None and f" {found[1]}".endswith(f" {path}")


def has_no_history(error: str) -> bool:
    """Return whether ``qstat -x`` was refused because the server keeps no finished jobs.

    It then shows not even the jobs that run, and exits with 0. This is OpenPBS's default.
    """
    return "not configured to maintain job history" in error


def parse_job_history(out: str) -> bool:
    """Return whether the server keeps finished jobs, by ``qstat -B -f -F json``; it omits what is unset."""
    return re.search(r'"job_history_enable"\s*:\s*"?True', out) is not None


def parse_qstat(code: int, out: str, error: str) -> Mapping[str, Record]:
    """Return the records by job id that ``qstat -f -F json`` printed for one id, with or without ``-x``.

    A job that is unknown (exit code 153), or has finished without a history (35), is left out. With ``-t``
    the members of an array have records too.

    Raises
    ------
    Unreachable
        If the server did not answer.
    SchedulerError
        If the output cannot be understood.
    """
    if code in (_UNKNOWN_JOB, _FINISHED_JOB):
        return {}
    _check(code, out, error)
    try:
        document = json.loads(out, strict=False)  # line breaks in values are taken as they are
    except ValueError:
        document = _salvage(out)
    if not isinstance(document, dict):
        raise SchedulerError("the output of qstat is not a JSON object.")
    asked_at = _number(document.get("timestamp"))
    jobs = document.get("Jobs") or {}  # absent where there is no job to show
    attributes = {job_id: _texts(job) for job_id, job in jobs.items()}
    records = {
        job_id: record_from_attributes(job, asked_at)
        for job_id, job in attributes.items()
        if array_of(job_id) == job_id or "array_index" in job
    }
    for job_id, job in attributes.items():
        if "[]" in job_id:
            for member, record in _without_own(job_id, job, records[job_id]).items():
                records.setdefault(member, record)
    return records


def _without_own(array_id: str, job: Mapping[str, str], record: Record) -> dict[str, Record]:
    """Return the records of the members that wait, or that ended with their array before they ran.

    PBS makes a separate job, which has an ``array_index``, of a member when it starts. Until then it shows
    the array's attributes for the member, with another member's exit status among them (``status_subjob`` of
    OpenPBS, src/server/stat_job.c). So the state comes from the array, and a member that was deleted while it
    waited has none.
    """
    everyone = parse_array_indices(job.get("array_indices_submitted", ""))
    if record.state in (JobState.QUEUED, JobState.CANCELLED):
        members = dict.fromkeys(everyone, record)
    else:
        waiting = parse_array_indices(job.get("array_indices_remaining", ""))
        members = dict.fromkeys(waiting, Record(JobState.QUEUED, "waits for its turn in the array"))
    return {member_of(array_id, index): member for index, member in members.items()}


def parse_largest_array(code: int, out: str, error: str) -> int | None:
    """Return the ``max_array_size`` that ``qstat -B -f -F json`` printed; None if it is missing.

    Raises
    ------
    Unreachable
        If the server did not answer.
    """
    _check(code, out, error)
    found = re.search(r'"max_array_size"\s*:\s*"?(\d+)', out)
    return int(found[1]) if found else None


def parse_qdel(code: int, out: str, error: str) -> None:
    """Check the result of qdel; a job that has finished or is unknown need not be deleted.

    Raises
    ------
    SchedulerError
        If the job was not deleted.
    """
    if code not in (0, _UNKNOWN_JOB, _FINISHED_JOB, _FINISHED_MEMBER):
        raise SchedulerError(f"qdel did not delete the job: {_complaint(error or out)}.")


def parse_down_nodes(out: str) -> frozenset[str]:
    """Return the nodes that are down, of those that ``pbsnodes -l`` lists with state and comment.

    Jobs on nodes that are only offline go on.
    """
    lines = [line.split() for line in out.splitlines()]
    return frozenset(words[0] for words in lines if len(words) > 1 and "down" in words[1].split(","))


def array_of(job_id: str) -> str:
    """Return the id of a member's array; other ids are returned unchanged."""
    return re.sub(r"\[\d+\]", "[]", job_id, count=1)


def member_of(array_id: str, index: int) -> str:
    """Return the id of a member: ``123[4].server`` of ``123[].server``."""
    return array_id.replace("[]", f"[{index}]", 1)


def same_job(name: str, job_id: str) -> bool:
    """Return whether two ids name the same job: servers differ in how much of their name they print."""
    first, _, first_server = name.partition(".")
    second, _, second_server = job_id.partition(".")
    servers = (first_server.partition(".")[0], second_server.partition(".")[0])
    return first == second and (servers[0] == servers[1] or "" in servers)


def _texts(job: Mapping[str, Any]) -> dict[str, str]:
    """Return a job's plain attributes as text: qstat writes some of them as numbers and booleans."""
    return {name: str(value) for name, value in job.items() if not isinstance(value, dict | list)}


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _salvage(out: str) -> dict[str, Any]:
    """Read the attributes that matter from the invalid JSON of one job.

    An exported shell function or a quote in the job's environment can make it invalid. ``job_state`` and
    ``substate`` come before the environment, so their first line counts; ``comment`` and ``Exit_status`` come
    after it, so their last line counts.

    Raises
    ------
    SchedulerError
        If it is not the output of one job.
    """
    job_ids = re.findall(r'^\s*"(\d+(?:\[\d*\])?\.[^"\s]+)"\s*:\s*\{\s*$', out, re.MULTILINE)
    lines = re.findall(r'^\s*"([A-Za-z_]+)"\s*:\s*(?:"(.*)"|(-?[0-9.]+))\s*,?\s*$', out, re.MULTILINE)
    values = [(name, text or number) for name, text, number in lines]
    first = dict(reversed(values))
    last = dict(values)
    if len(job_ids) != 1 or "job_state" not in first:
        raise SchedulerError("the output of qstat is not valid JSON.")
    job = {name: first[name] for name in ("job_state", "substate", "Hold_Types", "depend") if name in first}
    job |= {
        name: last[name] for name in ("comment", "Exit_status", "history_timestamp", "etime") if name in last
    }
    return {"timestamp": first.get("timestamp"), "Jobs": {job_ids[0]: job}}


def _check(code: int, out: str, error: str, command: str = "qstat") -> None:
    if code == 0:
        return
    reason = _complaint(error or out)
    if any(words in error for words in _SILENT):
        raise Unreachable(f"PBS did not answer: {reason}.")
    raise SchedulerError(f"{command} failed with exit code {code}: {reason}.")


def _complaint(error: str) -> str:
    """Return PBS's message without the usage and the name of the command."""
    return re.sub(r"(^|\n)(?:\S*/)?q(?:sub|stat|del|select): +", r"\1", complaint(error))
