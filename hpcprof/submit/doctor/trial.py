"""A small job at the site, for checks that this machine cannot make."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpcprof.common.errors import HpcprofError
from hpcprof.runs.directory import Run
from hpcprof.submit.doctor.machine import Inspected, nearest_folder
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.schedulers.base import JobStatus

QUEUE_SECONDS = 120
"""The most seconds that the job waits for a node."""
MINUTES = 5
"""Its time limit, which ends it if hpcprof is killed."""


class NotGranted(HpcprofError):
    """The scheduler gave no node; the message is the end of a sentence."""


@contextmanager
def trial_job(
    machine: Inspected, program: Sequence[str], ranks: int, option: str
) -> Iterator[tuple[Run, JobStatus]]:
    """Run a program as a job for ``option``; yield run and status, or raise `NotGranted` if it is late."""
    # Submitting needs modules that no other check needs.
    from hpcprof.submit.submission import submit
    from hpcprof.submit.waiting import cancel_and_wait, poll_until

    folder = Path(tempfile.mkdtemp(prefix=".hpcprof-probe-", dir=nearest_folder(machine.runs)))
    try:
        spec = JobSpec(tuple(program), ranks_per_node=ranks, walltime=f"{MINUTES}m")
        run = submit(machine.site, make_job(machine.site, spec), folder, ["hpcprof", "doctor", option])
        status = poll_until(run, QUEUE_SECONDS)
        if not status.state.ended:
            cancel_and_wait([run])
            raise NotGranted(f"the job is {status} after {QUEUE_SECONDS} s.")
        yield run, status
    finally:
        shutil.rmtree(folder, ignore_errors=True)
