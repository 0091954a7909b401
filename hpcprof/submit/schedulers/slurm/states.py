"""Slurm's job states and pending reasons, in hpcprof's words.

States and reasons as in squeue's manual, "JOB STATE CODES" and "JOB REASON CODES".
"""

from __future__ import annotations

import re

from hpcprof.submit.schedulers.base import JobState

SLURM_STATES: dict[str, tuple[JobState, str]] = {
    "PENDING": (JobState.QUEUED, ""),
    "CONFIGURING": (JobState.QUEUED, "its nodes are being made ready"),
    "POWER_UP_NODE": (JobState.QUEUED, "its nodes are being made ready"),
    "REQUEUED": (JobState.QUEUED, "queued again"),
    "REQUEUE_FED": (JobState.QUEUED, "queued again by the federation"),
    "REQUEUE_HOLD": (JobState.QUEUED, "queued again and held"),
    "RESV_DEL_HOLD": (JobState.QUEUED, "held: its reservation was deleted"),
    "SPECIAL_EXIT": (JobState.QUEUED, "queued again and held after a special exit code"),
    "RUNNING": (JobState.RUNNING, ""),
    "COMPLETING": (JobState.RUNNING, "ending: its last processes and the epilogue"),
    "RESIZING": (JobState.RUNNING, "its number of nodes is changing"),
    "SIGNALING": (JobState.RUNNING, "it is being sent a signal"),
    "STAGE_OUT": (JobState.RUNNING, "ending: its files are being copied"),
    "STOPPED": (JobState.RUNNING, "stopped by a signal, with its nodes"),
    "SUSPENDED": (JobState.RUNNING, "suspended by the scheduler"),
    "COMPLETED": (JobState.COMPLETED, ""),
    "CANCELLED": (JobState.CANCELLED, ""),
    "PREEMPTED": (JobState.CANCELLED, "preempted by another job"),
    "TIMEOUT": (JobState.TIMEOUT, ""),
    "DEADLINE": (JobState.TIMEOUT, "its deadline has passed"),
    "FAILED": (JobState.FAILED, ""),
    "BOOT_FAIL": (JobState.FAILED, "a node did not start for it"),
    "LAUNCH_FAILED": (JobState.FAILED, "Slurm could not start job.sh"),
    "RECONFIG_FAIL": (JobState.FAILED, "a node could not be made ready for it"),
    "NODE_FAIL": (JobState.FAILED, "a node of the job failed"),
    "OUT_OF_MEMORY": (JobState.FAILED, "out of memory"),
    # The job has another id on the other cluster, which this cluster does not report.
    "REVOKED": (JobState.UNKNOWN, "another cluster of the federation has taken it"),
}

_NEVER = {
    "AccountNotAllowed": "the partition does not accept this account",
    "AssociationJobLimit": "it exceeds a limit of the account",
    "BadConstraints": "no nodes have what it asks for",
    "DependencyNeverSatisfied": "a job that it depends on did not succeed",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QOS is not valid",
    "JobHoldMaxRequeue": "it was queued again too often and is held",
    "PartitionConfig": "it asks for more than the partition has or permits",
    "PartitionNodeLimit": "it asks for more or fewer nodes than the partition permits",
    "PartitionTimeLimit": "its walltime exceeds the partition's limit",
    "QOSNotAllowed": "the partition does not accept this QOS",
}

_WAITING = {
    "AssocMaxJobsLimit": "the account's limit of jobs is reached",
    "BeginTime": "its start time has not been reached",
    "BurstBufferResources": "waits for burst buffers",
    "Cleaning": "an earlier run of it is still being cleaned up",
    "Dependency": "waits for another job to succeed",
    "InactiveLimit": "the system's inactive limit is reached",
    "JobArrayTaskLimit": "the array's limit of tasks at once is reached",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held by the user: scontrol release releases it",
    "Licenses": "waits for a licence",
    "MaxSubmitJobLimit": "the limit of submitted jobs is reached",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition does not start jobs at present",
    "Prolog": "its nodes are being made ready",
    "Priority": "jobs of higher priority are ahead of it",
    "QOSMaxJobsPerUserLimit": "the QOS's limit of jobs of one user is reached",
    "QOSResourceLimit": "a limit of the QOS is reached",
    "ReqNodeNotAvail": "nodes that it asks for are not available",
    "Reservation": "waits for its reservation",
    "Resources": "waits for nodes to become free",
}

# A single job exceeds such a limit, whatever else runs: QOSMaxNodePerJobLimit and the like.
_PER_JOB = re.compile(r"(?:Assoc|QOS|Max)\w*PerJob(?:Limit)?$")


def pending_reason(reason: str) -> str:
    """Return why a job waits, in plain words, with Slurm's own in parentheses for a search in its manual.

    Parameters
    ----------
    reason : str
        What squeue prints as REASON, for example ``Priority`` or
        ``ReqNodeNotAvail, UnavailableNodes:n4``.
    """
    word = reason.partition(",")[0].strip("() ")
    if word in ("", "None"):
        return ""
    if word in _NEVER:
        return f"it can never run: {_NEVER[word]} ({reason})"
    if _PER_JOB.match(word):
        return f"it can never run: it exceeds a limit for one job ({reason})"
    if word in _WAITING:
        return f"{_WAITING[word]} ({reason})"
    if word.startswith(("AssocGrp", "QOSGrp")):
        whose = "account" if word.startswith("Assoc") else "QOS"
        return f"the {whose}'s jobs together use all of a limit ({reason})"
    if word.startswith(("Assoc", "QOS", "Max")):
        return f"a limit of the account, the QOS or the user is reached ({reason})"
    return reason
