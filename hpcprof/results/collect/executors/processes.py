"""Runs tasks in processes of this machine."""

import fcntl
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec

from hpcprof.common.processes import hold_interrupts, without_working_folder
from hpcprof.results.collect.executors.interface import Lost, ResultT, TaskT
from hpcprof.results.collect.executors.planning import chunks, one_start, worker_count

_JOIN_SECONDS = 5.0
_MEMORY_FILE = Path("/proc/self/statm")
_PIPE_BYTES = 1 << 20
"""Bytes that a worker can send while this process is busy: as many as any Linux user may have in a pipe."""


@dataclass(frozen=True)
class Processes:
    """Runs tasks in ``jobs`` workers, which take chunks of tasks, those with most work first.

    A single task, or a single job, runs in this process. A worker that is killed loses only its current task,
    and another takes its place. The workers are forked from a server that has imported the modules
    ``preload``, never from this process, which may have threads. They end with this process, even if it is
    killed. As a context, it keeps its workers from call to call.
    """

    jobs: int
    preload: tuple[str, ...] = ()
    work: Callable[[Any], float] = one_start
    """Estimates the work of a task, in starts of a worker; see `planning`."""
    if_quicker: bool = False
    """True if tasks also run in this process where workers would save no time."""
    _pool: "_WorkerPool" = field(default_factory=lambda: _WorkerPool(), init=False, repr=False, compare=False)

    def __call__(
        self, function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        """Yield each task with its result."""
        work = [self.work(task) for task in tasks]
        count = self._workers(work)
        if not count:
            yield from ((task, function(task)) for task in tasks)
            return
        self._serve()
        pool = self._pool if self._pool.persistent and not self._pool.remaining else _WorkerPool()
        try:
            for task, result in pool.run(function, tasks, chunks(work, count), count):
                yield tasks[task], result
        finally:
            if pool.remaining or not pool.persistent:
                pool.dismiss()

    def __enter__(self) -> "Processes":
        """Keep the workers that calls start until the end of the context."""
        self._pool.persistent = True
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        self._pool.persistent = False
        self._pool.dismiss()

    def expect(self, tasks: Sequence[Any]) -> bool:
        """Begin to import ``preload`` in the server if workers will run the tasks; True if they will."""
        needed = self._workers([self.work(task) for task in tasks]) > 0
        if needed:
            self._pool.expected = True
            self._serve()
        return needed

    def _workers(self, work: Sequence[float]) -> int:
        if self.if_quicker:
            started = self._pool.expected or bool(self._pool.workers)
            return worker_count(work, self.jobs, started)
        workers = min(self.jobs, len(work))
        return workers if workers > 1 else 0

    def _serve(self) -> None:
        forkserver.set_forkserver_preload([*self.preload])
        with _defer_interrupts():
            forkserver.ensure_running()


class _Worker(msgspec.Struct):
    """A process, and its unanswered tasks in order."""

    process: BaseProcess
    sender: Connection
    receiver: Connection
    tasks: deque[int] = msgspec.field(default_factory=deque)


class _WorkerPool(msgspec.Struct):
    """Workers, the tasks of the current call, and the chunks that no worker has taken yet."""

    persistent: bool = False
    """True if the workers stay for the next call."""
    expected: bool = False
    """True if the server that forks them was started early."""
    remaining: int = 0
    """The number of tasks without a result."""
    function: Callable[[Any], Any] | None = None
    tasks: Sequence[Any] = ()
    waiting: deque[list[int]] = msgspec.field(default_factory=deque)
    workers: dict[Connection, _Worker] = msgspec.field(default_factory=dict)

    def run(
        self,
        function: Callable[[TaskT], ResultT],
        tasks: Sequence[TaskT],
        chunked: Sequence[list[int]],
        count: int,
    ) -> Iterator[tuple[int, ResultT | Lost]]:
        """Yield the number of each task with its result, by at least ``count`` workers."""
        self.function, self.tasks, self.waiting, self.remaining = function, tasks, deque(chunked), len(tasks)
        for worker in [*self.workers.values()]:
            if worker.process.is_alive():
                self._send_chunk(worker)
            else:
                self._stop_worker(worker)
        while self.waiting and len(self.workers) < count:
            self._start_worker()
        while self.remaining:
            for receiver in cast("list[Connection]", wait([*self.workers])):
                worker = self.workers[receiver]
                try:
                    answer = receiver.recv()
                except EOFError:
                    yield from self._replace_dead_worker(worker)
                    continue
                if answer is None:  # The worker keeps too much memory.
                    self._stop_worker(worker)
                    self._start_worker()
                    continue
                task = worker.tasks.popleft()
                self.remaining -= 1
                if not worker.tasks:
                    self._send_chunk(worker)
                succeeded, value = answer
                if not succeeded:
                    raise value
                yield task, value

    def dismiss(self) -> None:
        """Stop all workers; those with tasks are terminated."""
        for worker in self.workers.values():
            worker.sender.close()
            if worker.tasks:
                worker.process.terminate()
        for worker in [*self.workers.values()]:
            self._stop_worker(worker)
        self.remaining = 0

    def _start_worker(self) -> None:
        """Start a worker if a chunk waits, and send it the chunk."""
        if not self.waiting:
            return
        context = multiprocessing.get_context("forkserver")
        orders, sender = context.Pipe(duplex=False)
        receiver, answers = context.Pipe(duplex=False)
        # Elsewhere than on Linux, or where a user's pipes have reached their limit, the worker waits.
        with suppress(AttributeError, OSError):
            fcntl.fcntl(answers.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process = context.Process(target=_work_loop, args=(orders, answers))
        with _defer_interrupts():
            process.start()
            self.workers[receiver] = _Worker(process, sender, receiver)
        # Without copies here, the pipes close when the process dies.
        orders.close()
        answers.close()
        self._send_chunk(self.workers[receiver])

    def _send_chunk(self, worker: _Worker) -> None:
        if self.waiting:
            worker.tasks.extend(self.waiting.popleft())
            with suppress(BrokenPipeError):  # `run` sees the end of its answers.
                worker.sender.send((self.function, [self.tasks[task] for task in worker.tasks]))

    def _stop_worker(self, worker: _Worker) -> None:
        """Stop a worker and requeue its tasks."""
        del self.workers[worker.receiver]
        if worker.tasks:
            self.waiting.appendleft([*worker.tasks])
        worker.sender.close()
        worker.process.join(_JOIN_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(_JOIN_SECONDS)
        worker.receiver.close()

    def _replace_dead_worker(self, worker: _Worker) -> Iterator[tuple[int, Lost]]:
        """Yield the lost task of a worker that died, and start another worker."""
        worker.process.join()
        lost = worker.tasks.popleft() if worker.tasks else None
        self._stop_worker(worker)
        self._start_worker()
        if lost is not None:
            self.remaining -= 1
            yield lost, Lost(_end_clause(worker.process.exitcode or 0))


@contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the end of the block: an incomplete message would make the fork server fail.

    Processes that are started in the block never receive it, and import nothing from the working folder.
    Ctrl-C reaches all processes of a terminal; the first one handles it and ends the others by SIGTERM.
    """
    # Processes started here inherit the mask, which is of this thread alone; the handler is of all threads.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    deliver = hold_interrupts()
    try:
        with without_working_folder():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        deliver()


def _end_worker(number: int, frame: object) -> NoReturn:
    """End a worker by an exception, so that temporary files are removed, or at once in a destructor."""
    sys.unraisablehook = lambda unraisable: os._exit(1)
    sys.exit(1)


def _work_loop(orders: Connection, answers: Connection) -> None:
    """Run chunks of tasks in a worker, and send the result or the exception of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_worker)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    first = _memory()
    last: Callable[[Any], Any] | None = None
    memory_after_first_chunk = 0
    # The first process may have ended.
    with suppress(EOFError, OSError):
        while True:
            function, tasks = orders.recv()
            for task in tasks:
                answers.send(_answer(function, task))
            if function != last:  # Modules imported for a function do not count as growth.
                last, memory_after_first_chunk = function, _memory()
            needed = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - first
            if has_grown(_memory() - memory_after_first_chunk, needed):
                answers.send(None)
                return


def _answer(function: Callable[[Any], Any], task: Any) -> tuple[bool, Any]:
    """Return True and the result of a task, or False and the error that it raised."""
    try:
        return True, function(task)
    except Exception as error:
        return False, error


def has_grown(retained: int, needed: int) -> bool:
    """Return whether a fresh worker replaces one, because of the memory that it keeps.

    ``retained`` are the bytes that it has kept since its first chunk, ``needed`` is its peak since its start.
    """
    return retained > needed // 2 > 0


def _memory() -> int:
    """Return the resident memory of this process in bytes; 0 if it is unknown."""
    try:
        return int(_MEMORY_FILE.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _end_clause(code: int) -> str:
    """Return a clause that says how a process ended without an answer."""
    if code == -signal.SIGKILL:
        return "its process was killed, as happens when memory runs out"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
