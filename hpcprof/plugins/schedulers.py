"""Schedulers and their clients, for the entry points of the group ``hpcprof.schedulers``."""

from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus, Record, SchedulerClient
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
    "DaskJobs",
    "FurtherFile",
    "JobArrays",
    "JobState",
    "JobStatus",
    "Record",
    "Rendering",
    "Run",
    "Scheduler",
    "SchedulerClient",
    "Shortcoming",
    "status_from_record",
]
