"""Runs tasks on a Dask cluster: one that already runs, one on this machine, or one in batch jobs of a site.

The client submits a bounded number of chunks, and drops each result once it has been taken, so its memory
does not grow with the number of tasks. Connections to clusters that hpcprof starts are encrypted and need a
certificate: whoever can reach a Dask scheduler can otherwise run any code as its owner.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.results.executors.interface import Lost, ResultT, TaskT

if TYPE_CHECKING:
    from distributed import Client, Future

_LOST = "three Dask workers ended while they worked on it, as happens when memory runs out"

_CHUNKS_PER_WORKER = 4
_LARGEST_CHUNK = 64
_AHEAD = 2
"""How many chunks each worker thread is given: with one in reserve, it never waits for the client."""
_LOOK_SECONDS = 2.0
"""How often the client looks for new and for lost workers while no chunk ends."""
_MISSED_SECONDS = 5
"""After how long without its worker a nanny is taken for lost."""
_CONNECT_SECONDS = 20

_SAME = ("python", "distributed", "hpcprof")
"""The packages whose versions must be the same here and on the workers."""


@dataclass(frozen=True)
class OnDask:
    """Runs tasks on the workers of a Dask cluster.

    Attributes
    ----------
    client : Client
        Connected to the cluster's scheduler.
    workers : int
        The number of workers that the cluster is meant to have.
    folders : tuple of Path
        Folders that each worker must see.
    look_after : callable
        Called while no chunk ends: replaces lost workers, or raises an `HpcprofError` if none can come.
    """

    client: Client
    workers: int
    folders: tuple[Path, ...] = ()
    look_after: Callable[[], None] = lambda: None

    @property
    def dashboard(self) -> str:
        """The address of the cluster's dashboard."""
        return str(self.client.dashboard_link)

    def __call__(
        self, function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        """Yield each task with its result; a task is tried three times if its worker dies.

        The second time it is a chunk of its own. The third time nothing else runs, so that no task is lost
        because another one ended the worker that both were on.

        Raises
        ------
        HpcprofError
            If the cluster is lost, or a worker does not see a folder.
        """
        left = list(tasks)
        for chunk_size, alone in ((self._chunk_size(len(left)), False), (1, False), (1, True)):
            killed: list[TaskT] = []
            chunks = [left[i : i + chunk_size] for i in range(0, len(left), chunk_size)]
            for chunk, results in self._stream(function, chunks, alone):
                if results is None:
                    killed += chunk
                else:
                    yield from zip(chunk, results, strict=True)
            left = killed
        for task in left:
            yield task, Lost(_LOST)

    def _chunk_size(self, tasks: int) -> int:
        return max(1, min(_LARGEST_CHUNK, math.ceil(tasks / (self.workers * _CHUNKS_PER_WORKER))))

    def _stream(
        self, function: Callable[[TaskT], ResultT], chunks: Sequence[list[TaskT]], alone: bool
    ) -> Iterator[tuple[list[TaskT], list[ResultT | Lost] | None]]:
        """Yield each chunk with its results, None if its workers died."""
        waiting, ended = deque(chunks), SimpleQueue[Any]()
        # Dask drops a task whose future is dropped: the one in the queue is not enough.
        running: dict[Any, tuple[Future[Any], list[TaskT]]] = {}
        while waiting or running:
            for _ in range(min(len(waiting), self._at_once(alone) - len(running))):
                chunk = waiting.popleft()
                future = self.client.submit(_run, function, chunk, self.folders, pure=False)
                running[future.key] = future, chunk
                future.add_done_callback(ended.put)
            try:
                key = ended.get(timeout=_LOOK_SECONDS).key
            except Empty:
                self.look_after()
                continue
            future, chunk = running.pop(key)
            yield chunk, self._results(future)

    def _at_once(self, alone: bool) -> int:
        if alone:
            return 1
        with self._connected():
            threads: int = sum(self.client.nthreads().values())
        return max(1, _AHEAD * threads)

    def _results(self, future: Future[Any]) -> Any:
        from distributed import KilledWorker

        try:
            with self._connected():
                return future.result()
        except KilledWorker:
            return None

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Turn what a lost scheduler raises into a sentence."""
        address = self.client.scheduler.address if self.client.scheduler else "of the cluster"
        try:
            yield
        except (CancelledError, OSError, TimeoutError) as error:
            raise HpcprofError(f"the connection to the Dask scheduler {address} was lost.") from error


@contextmanager
def existing_cluster(address: str, folders: Sequence[Path] = ()) -> Iterator[OnDask]:
    """Connect to a cluster that runs: to ``tcp://HOST:PORT``, or the one that a scheduler file describes.

    Raises
    ------
    UsageError
        If Dask is not installed, or no scheduler answers at the address.
    HpcprofError
        If the cluster has no worker, or a worker has other versions than this process.
    """
    client_class = load_dask().Client
    is_file = Path(address).is_file()
    where: dict[str, Any] = {"scheduler_file": address} if is_file else {"address": address}
    with ExitStack() as stack:
        try:
            # Other versions are named below.
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
        yield OnDask(client, sum(threads.values()), tuple(folders))


@contextmanager
def local_cluster(workers: int) -> Iterator[OnDask]:
    """Start a cluster on this machine, each worker in a process with one thread, and end it afterwards.

    Raises
    ------
    UsageError
        If Dask is not installed.
    HpcprofError
        If the workers do not start.
    """
    distributed = load_dask()
    with ExitStack() as stack:
        try:
            # Where a worker keeps its files; /tmp/dask-scratch-space would be shared with other users.
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
            raise HpcprofError(f"no Dask cluster starts on this machine: {_cause(error)}.") from error
        client = stack.enter_context(cluster.get_client())
        # A nanny starts its worker again, but not one that ended while it started: the cluster replaces both.
        yield OnDask(client, workers, look_after=lambda: cluster.scale(workers))


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block, and for ever from what the block starts.

    Ctrl-C reaches all processes of a terminal. The threads and the processes of a cluster that is started in
    the block inherit the mask; the first process handles Ctrl-C, and ends them.
    """
    # The first process that multiprocessing starts starts this one too, which lifts the mask.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def load_dask() -> Any:
    """Return the module ``distributed``, with hpcprof's settings for the clusters of this process.

    Raises
    ------
    UsageError
        If it is not installed.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise UsageError(f"--executor dask needs pip install 'hpcprof[dask]': {error}.") from None
    # A chunk whose worker dies comes back at once: `OnDask` decides how it is tried again.
    dask.config.set(
        {
            "distributed.scheduler.allowed-failures": 0,
            "distributed.deploy.lost-worker-timeout": f"{_MISSED_SECONDS}s",
        }
    )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return distributed


def certificates() -> Any:
    """Return certificates for the cluster of this process.

    Raises
    ------
    UsageError
        If the package that makes them is not installed.
    """
    from distributed.security import Security

    try:
        return Security.temporary()
    except ImportError as error:
        raise UsageError(f"--executor dask needs pip install 'hpcprof[dask]': {error}.") from None


def _check_versions(client: Client) -> None:
    """Compare the versions of the workers with those of this process.

    Raises
    ------
    HpcprofError
        If they differ: tasks and results would not be understood.
    """
    found: Any = client.get_versions(packages=["hpcprof"])
    ours = _versions(found["client"])
    for address, worker in found["workers"].items():
        theirs = _versions(worker)
        other = [name for name in _SAME if theirs[name] != ours[name]]
        if other:
            has = ", ".join(f"{name} {theirs[name] or 'missing'} (here {ours[name]})" for name in other)
            raise HpcprofError(
                f"the Dask worker {address} has {has}: start the workers in the environment of this hpcprof."
            )


def _versions(found: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the versions of `_SAME`; of Python only what its pickles depend on."""
    python = ".".join(str(found["host"]["python"]).split(".")[:2])
    return {**{name: found["packages"].get(name) for name in _SAME}, "python": python}


def _run(
    function: Callable[[TaskT], ResultT], chunk: Sequence[TaskT], folders: Sequence[Path]
) -> list[ResultT | Lost]:
    """Run tasks on a worker."""
    for folder in folders:
        if not os.access(folder, os.R_OK | os.X_OK):
            raise HpcprofError(
                f"the Dask worker on {socket.gethostname()} cannot read {folder}: all workers need the file "
                "system with the profiles."
            )
    return [_result(function, task) for task in chunk]


def _result(function: Callable[[TaskT], ResultT], task: TaskT) -> ResultT | Lost:
    try:
        return function(task)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return Lost(f"{error.strerror or error} on {socket.gethostname()}{place}")


def _cause(error: BaseException) -> str:
    """Return the first line of the exception at the root of an error."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
