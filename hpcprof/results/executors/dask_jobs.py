"""A Dask cluster whose workers run in batch jobs, which dask-jobqueue submits."""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcprof.common.errors import HpcprofError, SchedulerError, UsageError
from hpcprof.results.executors.dask import OnDask, certificates, interrupts_held, load_dask
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.worker_jobs import WorkerJobs

_ASK_SECONDS = 15
"""How often the scheduler is asked about jobs at most."""
_RESUBMISSIONS = 3
"""How often a job may end, on average, before the collect gives up."""


@contextmanager
def batch_cluster(jobs: WorkerJobs, folders: Sequence[Path]) -> Iterator[OnDask]:
    """Start a cluster whose workers run in batch jobs, and end the jobs afterwards.

    Raises
    ------
    UsageError
        If Dask or dask-jobqueue is not installed.
    HpcprofError
        If the jobs cannot be submitted.
    """
    load_dask()
    known = _dask_jobqueue()
    folder = Path(jobs.options["log_directory"])
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # dask-jobqueue leaves the files with the certificates there.
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="certificates-", dir=folder))
        with interrupts_held():
            cluster = stack.enter_context(
                getattr(known, jobs.cluster)(
                    **jobs.options,
                    shared_temp_directory=shared,
                    security=certificates(),
                    scheduler_options={"dashboard_address": "127.0.0.1:0"},
                    silence_logs=logging.CRITICAL,
                )
            )
        cluster.scale(jobs=jobs.nodes)
        client = stack.enter_context(cluster.get_client())
        yield OnDask(client, jobs.nodes * jobs.workers, tuple(folders), _Jobs(jobs, cluster))


def _dask_jobqueue() -> Any:
    """Return the module ``dask_jobqueue``, whose import makes Ctrl-C exit with 0, without that.

    Raises
    ------
    UsageError
        If it is not installed.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        import dask_jobqueue
    except ImportError as error:
        raise UsageError(f"--executor dask needs pip install 'hpcprof[dask]': {error}.") from None
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
    return dask_jobqueue


@dataclass
class _Jobs:
    """The jobs of a cluster: one that has ended is submitted again, for a bounded number of times."""

    jobs: WorkerJobs
    cluster: Any
    left: int = 0
    looked: float = 0.0

    def __post_init__(self) -> None:
        self.left = _RESUBMISSIONS * self.jobs.nodes

    def __call__(self) -> None:
        """Submit ended jobs again.

        Raises
        ------
        HpcprofError
            If jobs keep ending.
        """
        if time.monotonic() - self.looked < _ASK_SECONDS:
            return
        self.looked = time.monotonic()
        for name, job in list(self.cluster.workers.items()):
            if self._ended(job.job_id):
                # Cancels the job, should the scheduler have failed to answer.
                self.cluster.sync(self.cluster.workers.pop(name).close)
        # Dask itself drops a job of one worker that has left.
        self.left -= self.jobs.nodes - len(self.cluster.workers)
        if self.left < 0:
            raise HpcprofError(
                f"the jobs of the Dask workers keep ending: see {self.jobs.options['log_directory']}."
            )
        self.cluster.scale(jobs=self.jobs.nodes)

    def _ended(self, job_id: str | None) -> bool:
        if job_id is None:
            return False
        try:
            return not find_scheduler(self.jobs.scheduler).client().unfinished([job_id])
        except SchedulerError:
            # A job that failed is one for which nobody can wait.
            return True
