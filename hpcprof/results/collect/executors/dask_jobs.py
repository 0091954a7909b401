"""A Dask cluster whose workers run in batch jobs, which dask-jobqueue submits."""

import logging
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import HpcprofError, SchedulerError, UsageError
from hpcprof.results.collect.executors.dask import (
    OnDask,
    certificates,
    interrupts_held,
    load_dask,
    root_message,
)
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.batch import BatchScheduler
from hpcprof.submit.schedulers.command import complaint
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.worker_jobs import WorkerJobs

_ASK_SECONDS = 15
"""Minimum time between two questions to the scheduler about jobs."""
_SUBMIT_SECONDS = 300
"""Maximum time for the scheduler to accept jobs."""
_RESUBMISSIONS = 3
"""Maximum number of ended jobs per node before the collect gives up."""
_CLOCKS_DIFFER = timedelta(hours=1)


@contextmanager
def batch_cluster(jobs: WorkerJobs, folders: Sequence[Path]) -> Iterator[OnDask]:
    """Start a cluster whose workers run in batch jobs, and end the jobs afterwards.

    Raises UsageError if Dask or dask-jobqueue is not installed, and HpcprofError if the jobs cannot be
    submitted.
    """
    load_dask()
    dask_jobqueue = _dask_jobqueue()
    folder = Path(jobs.options["log_directory"])
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # dask-jobqueue does not remove its files with the certificates.
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="certificates-", dir=folder))
        try:
            with interrupts_held():
                cluster = stack.enter_context(
                    getattr(dask_jobqueue, jobs.cluster)(
                        **jobs.options,
                        shared_temp_directory=shared,
                        security=certificates(),
                        scheduler_options={"dashboard_address": "127.0.0.1:0"},
                        silence_logs=logging.CRITICAL,
                    )
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise HpcprofError(
                f"a Dask scheduler cannot start on this machine: {root_message(error)}."
            ) from error
        submitted = _Jobs(jobs, cluster)
        submitted.submit()
        if submitted.refusal:
            raise HpcprofError(f"the jobs of the Dask workers cannot be submitted: {submitted.refusal}.")
        client = stack.enter_context(cluster.get_client())
        name = f"the Dask cluster in jobs (see {folder})"
        yield OnDask(client, jobs.nodes * jobs.workers, tuple(folders), look_after=submitted, name=name)


def _dask_jobqueue() -> Any:
    """Return the module ``dask_jobqueue``, and undo the handler of Ctrl-C that its import installs.

    Raises UsageError if it is not installed.
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


class _Jobs(msgspec.Struct):
    """The jobs of a cluster: one that has ended is submitted again, for a bounded number of times."""

    jobs: WorkerJobs
    cluster: Any
    refusal: str = ""
    """The reason why the last jobs could not be submitted; empty if they could."""
    _lost: int = 0
    _queued: bool = False
    _looked: float = 0.0
    _numbers: Iterator[int] = msgspec.field(default_factory=count)
    _began: datetime = msgspec.field(default_factory=lambda: datetime.now(timezone.utc))

    def __call__(self) -> bool:
        """Submit ended jobs again, and return whether jobs wait in the queue.

        Raises HpcprofError if jobs keep ending.
        """
        if time.monotonic() - self._looked < _ASK_SECONDS:
            return self._queued
        self._looked = time.monotonic()
        states = self._states()
        if states is None:
            return self._queued
        # Dask itself drops a job with a single worker that has left.
        lost = [name for name in self.cluster.worker_spec if states.get(name, JobState.FAILED).ended]
        self._lost += len(lost)
        if self._lost > _RESUBMISSIONS * self.jobs.nodes:
            reason = self.refusal or f"see {self.jobs.options['log_directory']}"
            raise HpcprofError(f"the jobs of the Dask workers keep ending: {reason}.")
        if lost:
            self.submit(lost)
        self._queued = bool(lost) or JobState.QUEUED in states.values()
        return self._queued

    def submit(self, lost: Sequence[str] = ()) -> None:
        """Forget the jobs named ``lost``, and submit jobs until there is one for each node."""
        try:
            self.cluster.sync(self._replace, lost, callback_timeout=_SUBMIT_SECONDS)
            self.refusal = ""
        except TimeoutError:
            self.refusal = f"the scheduler has not answered for {_SUBMIT_SECONDS} s"
        except (OSError, RuntimeError, ValueError) as error:
            self.refusal = complaint(str(error).partition("stderr:\n")[2] or str(error))

    async def _replace(self, lost: Sequence[str]) -> None:
        from distributed import Status

        for name in lost:
            self.cluster.worker_spec.pop(name, None)
            job = self.cluster.workers.pop(name, None)
            if job is not None:
                # The job may still run although the scheduler no longer lists it.
                await job.close()
        while len(self.cluster.worker_spec) < self.jobs.nodes:
            # Dask refuses the name of a worker that it still believes to be alive.
            self.cluster.worker_spec[f"{self.jobs.options['job_name']}-{next(self._numbers)}"] = (
                self.cluster.new_spec
            )
        try:
            await self.cluster
        finally:
            for job in self.cluster.workers.values():
                if job.job_id is None:
                    # Dask cannot close a cluster with a job that it believes to be alive.
                    job.status = Status.failed

    def _states(self) -> dict[str, JobState] | None:
        """Return the states of the jobs that the scheduler knows, by name; None if it does not answer."""
        ids = {name: job.job_id for name, job in self.cluster.workers.items() if job.job_id}
        scheduler = find_scheduler(self.jobs.scheduler)
        assert isinstance(scheduler, BatchScheduler)
        try:
            records = scheduler.states([*ids.values()], self._began - _CLOCKS_DIFFER)
        except SchedulerError:
            return None
        return {name: records[job_id].state for name, job_id in ids.items() if job_id in records}
