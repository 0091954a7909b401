"""Runs tasks on a Dask cluster: one that already runs, one on this machine, or one in batch jobs of a site.

The client submits a bounded number of chunks, and drops each result once it has been taken, so its memory
does not grow with the number of tasks. Connections to clusters that hpcprof starts are encrypted and need a
certificate: a Dask scheduler runs any code of its clients as its owner.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker, set_forkserver_preload
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.processes import without_working_folder
from hpcprof.results.collect.executors.interface import Lost, ResultT, TaskT
from hpcprof.results.collect.executors.planning import chunks, one_start
from hpcprof.results.collect.rank_task import PRELOAD

if TYPE_CHECKING:
    from distributed import Client, Future

_LOST_TASK_NOTE = (
    "four Dask workers died on it, the last two while they ran nothing else, as happens when memory runs out"
)
_KEPT_PROFILES_NOTE = "Collected profiles are kept: collect again for the rest."

_CHUNKS_PER_THREAD = 2
"""Chunks submitted for each worker thread: with one in reserve, it never waits for the client."""
_LOOK_SECONDS = 2.0
"""Time between two checks for new and lost workers."""
_MAX_SECONDS_WITHOUT_WORKER = 600.0
"""Maximum time without any worker, running or queued, before the collect gives up."""
_MAX_MISSED_SECONDS = 60
"""Time without its worker after which a nanny counts as lost.

Dask ends a worker that takes longer to restart, and blames the task that it has just begun. Imports from a
file system of many nodes take several seconds.
"""
_CONNECT_SECONDS = 20
_MAX_IDLE_DEATHS = 10
"""Maximum number of workers in a row that may end before they begin their only task."""

_COMPARED_PACKAGES = ("python", "distributed", "hpcprof")
"""Packages whose versions must be equal here and on the workers."""


@dataclass(frozen=True)
class OnDask:
    """Runs tasks on the workers of a Dask cluster."""

    client: Client
    workers: int
    """The number of workers that the cluster is meant to have."""
    folders: tuple[Path, ...] = ()
    """Folders that each worker must see."""
    work: Callable[[Any], float] = one_start
    """Estimates the work of a task, in starts of a worker; see `planning`."""
    look_after: Callable[[], bool] = lambda: False
    """Called while no chunk ends: replaces lost workers, and returns whether some wait in a queue. Raises an
    `HpcprofError` if none can come.
    """
    name: str = "the Dask cluster"
    """The cluster's name in messages, with the place of its logs."""

    @property
    def dashboard(self) -> str:
        """The address of the cluster's dashboard."""
        return str(self.client.dashboard_link)

    def __call__(
        self, function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        """Yield each task with its result; a task is tried four times if its worker dies.

        Dask does not tell which task of a dead worker was running, hence the order of the tries:

        1. in a chunk with other tasks;
        2. in a chunk of its own, beside other chunks;
        3. alone on the cluster, so that no other task can have ended the worker. The worker notes that the
           task runs; if it died before or after, the try does not count;
        4. alone again, for a worker that something else ended, such as its nanny.

        Raises HpcprofError if the cluster is lost, has no worker for long, its workers keep ending, or one
        does not see a folder.
        """
        work = [self.work(task) for task in tasks]
        waiting = [[tasks[number] for number in chunk] for chunk in chunks(work, self.workers)]
        for alone in (False, False, True, True):
            killed: list[list[TaskT]] = []
            for chunk, results in self._stream(function, waiting, alone):
                if results is None:
                    killed += [[task] for task in chunk]
                else:
                    yield from zip(chunk, results, strict=True)
            waiting = killed
        for (task,) in waiting:
            yield task, Lost(_LOST_TASK_NOTE)

    def _stream(
        self, function: Callable[[TaskT], ResultT], chunks: Sequence[list[TaskT]], alone: bool
    ) -> Iterator[tuple[list[TaskT], list[ResultT | Lost] | None]]:
        """Yield each chunk with its results, None if its workers died."""
        waiting, ended = deque(chunks), SimpleQueue[Any]()
        # Dask drops a task once its future is dropped, so the futures are kept here.
        running: dict[Any, tuple[Future[Any], list[TaskT]]] = {}
        watch, spared = _Watch(self), 0
        while waiting or running:
            at_once = 1 if alone else max(1, _CHUNKS_PER_THREAD * self.threads())
            for _ in range(min(len(waiting), at_once - len(running))):
                chunk = waiting.popleft()
                run = _run_and_note if alone else _run
                future = self.client.submit(run, function, chunk, self.folders, pure=False)
                running[future.key] = future, chunk
                future.add_done_callback(ended.put)
            try:
                key = ended.get(timeout=_LOOK_SECONDS).key
            except Empty:
                watch.look()
                continue
            future, chunk = running.pop(key)
            results = self._results(future, watch)
            del future  # The worker frees its results.
            if results is None and alone and not self._was_running(key):
                spared += 1
                if spared > _MAX_IDLE_DEATHS:
                    raise HpcprofError(
                        f"the workers of {self.name} keep ending between tasks. {_KEPT_PROFILES_NOTE}"
                    )
                waiting.append(chunk)
                continue
            spared = 0
            yield chunk, results

    def _was_running(self, key: Any) -> bool:
        """Return whether a task was running when its worker ended, and delete the note of it."""
        from distributed import Event

        runs = Event(key, self.client)
        with self._connection_errors():
            ran = bool(runs.is_set())
            runs.clear()
        return ran

    def threads(self) -> int:
        """Return the number of threads that the workers have now."""
        with self._connection_errors():
            return sum(self.client.nthreads().values())

    def _results(self, future: Future[Any], watch: _Watch) -> Any:
        """Fetch the results of a chunk.

        Until then they are on the worker. If it ends, Dask computes them again on another worker, so the
        client has to look after the workers meanwhile.
        """
        from distributed import KilledWorker

        loop: Any = self.client.loop
        fetching = asyncio.run_coroutine_threadsafe(_fetch(self.client, future), loop.asyncio_loop)
        try:
            while not wait([fetching], _LOOK_SECONDS).done:
                watch.look()
            with self._connection_errors():
                return fetching.result()
        except KilledWorker:
            return None
        finally:
            fetching.cancel()

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        """Turn the exceptions of a lost scheduler into an `HpcprofError`."""
        address = self.client.scheduler.address if self.client.scheduler else "of the cluster"
        try:
            yield
        except (CancelledError, OSError, TimeoutError) as error:
            raise HpcprofError(f"the connection to the Dask scheduler {address} was lost.") from error


class _Watch(msgspec.Struct):
    """Looks after the workers of a cluster while the client waits."""

    dask: OnDask
    seen: float = msgspec.field(default_factory=time.monotonic)

    def look(self) -> None:
        """Let the cluster replace workers; raise HpcprofError if it has had none for long."""
        if self.dask.look_after() or self.dask.threads():
            self.seen = time.monotonic()
        elif time.monotonic() - self.seen > _MAX_SECONDS_WITHOUT_WORKER:
            raise HpcprofError(
                f"{self.dask.name} has had no worker for {_MAX_SECONDS_WITHOUT_WORKER / 60:.0f} minutes. "
                f"{_KEPT_PROFILES_NOTE}"
            )


async def _fetch(client: Client, future: Future[Any]) -> Any:
    return await client.gather(future, asynchronous=True)


@contextmanager
def existing_cluster(address: str, folders: Sequence[Path] = ()) -> Iterator[OnDask]:
    """Connect to a cluster that runs: to ``tcp://HOST:PORT``, or the one that a scheduler file describes.

    Raises UsageError if Dask is not installed, or no scheduler answers at the address, and HpcprofError if
    the cluster has no worker, or a worker has other versions than this process.
    """
    client_class = load_dask().Client
    is_file = Path(address).is_file()
    where: dict[str, Any] = {"scheduler_file": address} if is_file else {"address": address}
    with ExitStack() as stack:
        try:
            # `_check_versions` reports other versions.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                client = stack.enter_context(client_class(**where, timeout=_CONNECT_SECONDS))
        except (OSError, ValueError, TimeoutError, RuntimeError) as error:
            raise UsageError(
                f"--dask-address {address}: no Dask scheduler answers there. Give tcp://HOST:PORT, or a "
                "scheduler file."
            ) from error
        threads = client.nthreads()
        if not threads:
            raise HpcprofError(f"the Dask cluster at {address} has no worker: start one with dask worker.")
        _check_versions(client)
        yield OnDask(client, sum(threads.values()), tuple(folders), name=f"the Dask cluster at {address}")


@contextmanager
def local_cluster(workers: int) -> Iterator[OnDask]:
    """Start a cluster on this machine, each worker in a process with one thread, and end it afterwards.

    Raises UsageError if Dask is not installed, and HpcprofError if the workers do not start.
    """
    distributed = load_dask()
    from dask import config

    # Workers are forked from a process that has imported all of this, which takes seconds.
    set_forkserver_preload(["distributed", *PRELOAD])
    forked = config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    with ExitStack() as stack:
        stack.enter_context(forked)
        try:
            # Dask's default folder, /tmp/dask-scratch-space, would be shared with other users.
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="hpcprof-dask-"))
            with interrupts_held():
                cluster = stack.enter_context(
                    distributed.LocalCluster(
                        n_workers=workers,
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        security=certificates(),
                        memory_limit=0,
                        local_directory=scratch,
                        silence_logs=logging.CRITICAL,
                    )
                )
        except (OSError, RuntimeError, TimeoutError) as error:
            raise HpcprofError(
                f"a Dask cluster cannot start on this machine: {root_message(error)}."
            ) from error
        client = stack.enter_context(cluster.get_client())

        def replace_lost() -> bool:
            # A nanny does not restart a worker that ended during its start.
            cluster.scale(workers)
            return False

        yield OnDask(client, workers, look_after=replace_lost, name="the Dask cluster on this machine")


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block Ctrl-C in the block, and for ever in the processes and threads that the block starts.

    They inherit the signal mask. Ctrl-C reaches all processes of a terminal; the first process handles it and
    ends the cluster.
    """
    with without_working_folder():
        # The resource tracker lifts the mask, so it must have been started before.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def load_dask() -> Any:
    """Return the module ``distributed``, with hpcprof's settings for the clusters of this process.

    Raises UsageError if it is not installed.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise UsageError(f"--executor dask needs pip install 'hpcprof[dask]': {error}.") from None
    # A chunk whose worker dies comes back at once: `OnDask` decides how it is tried again. Workers do not
    # look at their threads every 10 ms: before Python 3.11.9 that can stop one (python/cpython#106883).
    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            "distributed.scheduler.allowed-failures": 0,
            "distributed.deploy.lost-worker-timeout": f"{_MAX_MISSED_SECONDS}s",
        }
    )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return distributed


def certificates() -> Any:
    """Return certificates for the cluster of this process.

    Raises UsageError if the package that makes them is not installed.
    """
    from distributed.security import Security

    try:
        return Security.temporary()
    except ImportError as error:
        raise UsageError(f"--executor dask needs pip install 'hpcprof[dask]': {error}.") from None


def _check_versions(client: Client) -> None:
    """Compare the versions of the workers with those of this process.

    Raises HpcprofError if they differ: tasks and results would not be understood.
    """
    versions: Any = client.get_versions(packages=["hpcprof"])
    ours = _versions(versions["client"])
    for address, worker in versions["workers"].items():
        theirs = _versions(worker)
        other = [name for name in _COMPARED_PACKAGES if theirs[name] != ours[name]]
        if other:
            has = ", ".join(f"{name} {theirs[name] or 'missing'} (here {ours[name]})" for name in other)
            raise HpcprofError(
                f"the Dask worker {address} has {has}: start the workers in the environment of this hpcprof."
            )


def _versions(reported: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the versions of `_COMPARED_PACKAGES`; Python's is cut to the part that pickles depend on."""
    python = ".".join(str(reported["host"]["python"]).split(".")[:2])
    return {**{name: reported["packages"].get(name) for name in _COMPARED_PACKAGES}, "python": python}


def _run(
    function: Callable[[TaskT], ResultT], chunk: Sequence[TaskT], folders: Sequence[Path]
) -> list[ResultT | Lost]:
    for folder in folders:
        if not os.access(folder, os.R_OK | os.X_OK):
            raise HpcprofError(
                f"the Dask worker on {socket.gethostname()} cannot read {folder}: all workers need the file "
                "system with the profiles."
            )
    return [_result(function, task) for task in chunk]


def _run_and_note(
    function: Callable[[TaskT], ResultT], chunk: Sequence[TaskT], folders: Sequence[Path]
) -> list[ResultT | Lost]:
    """Run tasks on a worker, with a Dask event that is set while they run and named after their chunk."""
    from distributed import Event, get_worker

    runs = Event(get_worker().get_current_task())
    runs.set()
    try:
        return _run(function, chunk, folders)
    finally:
        runs.clear()


def _result(function: Callable[[TaskT], ResultT], task: TaskT) -> ResultT | Lost:
    try:
        return function(task)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return Lost(f"{error.strerror or error} on {socket.gethostname()}{place}")


def root_message(error: BaseException) -> str:
    """Return the first line of the exception at the root of an error."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
