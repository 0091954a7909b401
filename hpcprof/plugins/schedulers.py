"""Schedulers and their clients, for the entry points of the group ``hpcprof.schedulers``."""

from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus, Record, SchedulerClient
from hpcprof.submit.schedulers.batch import BatchScheduler
from hpcprof.submit.schedulers.command import Refused, Unreachable, run_scheduler_command
from hpcprof.submit.schedulers.run_state import status_from_record
from hpcprof.submit.schedulers.scheduler import (
    DaskJobs,
    FurtherFile,
    JobArrays,
    Rendering,
    Scheduler,
    Shortcoming,
)

__all__ = [
    "BatchScheduler",
    "DaskJobs",
    "FurtherFile",
    "JobArrays",
    "JobState",
    "JobStatus",
    "Record",
    "Refused",
    "Rendering",
    "Run",
    "Scheduler",
    "SchedulerClient",
    "Shortcoming",
    "Unreachable",
    "run_scheduler_command",
    "status_from_record",
]
