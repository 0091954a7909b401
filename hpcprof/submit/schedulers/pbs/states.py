"""PBS's job states, substates and exit statuses, as records.

States as in the PBS reference guide, "Job States"; what the attributes of finished jobs look like was
seen on OpenPBS 23.06.06. A finished job has ``job_state`` F (a subjob of an array: X), and:

================================= ======== ===========
case                              substate Exit_status
================================= ======== ===========
success                           92       0
failure                           93       the code
walltime                          93       -29
deleted while running             91       271, or 0
deleted while queued              91       absent
removed by its dependency         92       absent
array with a failed subjob        93       0
its node's daemon died            93       -20
================================= ======== ===========
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.run_state import Record

_DELETED = "91"
_FAILED = "93"
_WALLTIME = -29
_NODE_LOST = -20
_BY_SIGTERM = 256 + signal.SIGTERM  # qdel ends a job by SIGTERM

# PBS kills a job over its limits, or could not run it (JOB_EXEC_KILL_* of OpenPBS, src/include/job.h).
_NEGATIVE = {
    _NODE_LOST: "the node that ran it was lost",
    -24: "it used more CPUs than it asked for",
    -25: "it used more CPUs than it asked for",
    -26: "it used more virtual memory than it asked for",
    -27: "it used more memory than it asked for",
    -28: "it used more CPU time than it asked for",
}

_HOLDS = {
    "u": "held by the user: qrls releases it",
    "o": "held by an operator",
    "s": "held by the system",
    "p": "held: its password is wrong",
}

# (n1:ncpus=4+n2[0]:ncpus=4)+(n3:ncpus=8)
_VNODE = re.compile(r"[(+]([^\s:()+]+):")

_QUEUED = {"T": "being moved to another queue", "W": "its start time has not been reached"}

_RUNNING = {
    "B": "the array has begun",
    "E": "ending: its output is being copied",
    "S": "suspended by the scheduler",
    "U": "suspended: the user of the workstation is active",
}


def record_from_attributes(job: Mapping[str, str], asked_at: float | None) -> Record:
    """Return the record of a job from its attributes, as text.

    Parameters
    ----------
    job : mapping
        The attributes that ``qstat -f`` prints.
    asked_at : float or None
        The server's time of the answer, in seconds since the epoch.
    """
    state = job.get("job_state", "")
    comment = job.get("comment", "")
    if state in ("F", "X"):
        return _ended(job, asked_at)
    if state in ("Q", "H", *_QUEUED):
        # An array has the exit status of one of its members.
        lost = job.get("Exit_status") == str(_NODE_LOST) and "array" not in job
        return Record(JobState.QUEUED, _pending(state, job, comment), node_lost=lost)
    if state == "R" or state in _RUNNING:
        # After qdel the job still has state R for seconds; only the comment shows the deletion.
        dying = "terminated by" in comment
        nodes = frozenset(_VNODE.findall(job.get("exec_vnode", "")))
        return Record(JobState.RUNNING, "being deleted" if dying else _RUNNING.get(state, ""), nodes=nodes)
    if state == "M":
        return Record(JobState.UNKNOWN, "it was moved to another server")
    return Record(JobState.UNKNOWN, f"PBS calls its state {state or 'nothing'}")


def _pending(state: str, job: Mapping[str, str], comment: str) -> str:
    _, _, why = comment.partition("Can Never Run:")
    if why:
        return f"it can never run: {why.strip()}"
    if state == "H":
        if "s" in job.get("Hold_Types", "") and job.get("depend"):
            return f"waits for another job to succeed ({job['depend']})"
        held = [words for letter, words in _HOLDS.items() if letter in job.get("Hold_Types", "")]
        return "; ".join([*held, comment] if comment else held)
    return comment.removeprefix("Not Running:").strip() or _QUEUED.get(state, "")


def _ended(job: Mapping[str, str], asked_at: float | None) -> Record:
    when = job.get("history_timestamp", "")
    ago = asked_at - float(when) if asked_at is not None and when.isdigit() else None
    text = job.get("Exit_status")
    if text is None:
        return Record(JobState.CANCELLED, _never_ran(job), None, ago)
    code = int(float(text))
    if code == _WALLTIME:
        return Record(JobState.TIMEOUT, "", None, ago)
    if job.get("substate") == _DELETED or code == _BY_SIGTERM:
        return Record(JobState.CANCELLED, "", None, ago)
    if code < 0:
        words = _NEGATIVE.get(code, f"PBS could not run it (Exit_status {code}): {job.get('comment', '')}")
        return Record(JobState.FAILED, words, None, ago)
    if code > 256:
        return Record(JobState.FAILED, f"ended by {_signal_name(code - 256)}", 256 - code, ago)
    if code > 128:
        return Record(JobState.FAILED, f"exit code {code} ({_signal_name(code - 128)})", code, ago)
    if code > 0:
        return Record(JobState.FAILED, "", code, ago)
    if job.get("substate") == _FAILED:
        return Record(JobState.FAILED, "a job of the array failed", None, ago)
    unwritten = job.get("Stageout_status") == "0"
    return Record(JobState.COMPLETED, "PBS could not write its output files" if unwritten else "", 0, ago)


def _never_ran(job: Mapping[str, str]) -> str:
    _, _, why = job.get("comment", "").partition("Can Never Run:")
    if why:
        return f"deleted from the queue; it could never run: {why.removesuffix('and terminated').strip()}"
    if job.get("substate") != _DELETED and job.get("depend"):
        return "removed by PBS: a job that it depended on did not succeed"
    return "deleted while it waited in the queue"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
