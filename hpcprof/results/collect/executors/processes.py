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

from hpcprof.common.processes import without_working_folder
from hpcprof.results.collect.executors.interface import Lost, ResultT, TaskT
from hpcprof.results.collect.executors.planning import chunks, one_start, worker_count

_PATIENCE_SECONDS = 5.0
_PAGES = Path("/proc/self/statm")
_PIPE_BYTES = 1 << 20
"""Bytes that a worker can send while this process is busy: as many as any Linux user may have in a pipe."""


@dataclass(frozen=True)
class Processes:
    """Runs tasks in ``jobs`` workers, which take chunks of tasks, those with most work first.

    A single task, or one job at a time, runs in this process. A worker that is killed loses only the task
    that it was working on, and another takes its place. The workers are forked from a server that has
    imported the modules ``preload``, never from this process, which may have threads. They end when this
    process ends, however that happens. As a context, it keeps its workers from call to call.
    """

    jobs: int
    preload: tuple[str, ...] = ()
    work: Callable[[Any], float] = one_start
    """Estimates the work of a task, in starts of a worker; see `planning`."""
    if_quicker: bool = False
    """True if tasks of little work run in this process too: where workers would save no time."""
    _team: "_Team" = field(default_factory=lambda: _Team(), init=False, repr=False, compare=False)

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
        team = self._team if self._team.lasts and not self._team.left else _Team()
        try:
            for task, result in team.run(function, tasks, chunks(work, count), count):
                yield tasks[task], result
        finally:
            if team.left or not team.lasts:
                team.dismiss()

    def __enter__(self) -> "Processes":
        """Keep the workers that calls start until the end of the context."""
        self._team.lasts = True
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers."""
        self._team.lasts = False
        self._team.dismiss()

    def expect(self, tasks: Sequence[Any]) -> bool:
        """Begin to import ``preload`` in another process if workers will run the tasks; return whether."""
        needed = self._workers([self.work(task) for task in tasks]) > 0
        if needed:
            self._team.expected = True
            self._serve()
        return needed

    def _workers(self, work: Sequence[float]) -> int:
        if self.if_quicker:
            started = self._team.expected or bool(self._team.workers)
            return worker_count(work, self.jobs, started)
        return min(self.jobs, len(work)) if min(self.jobs, len(work)) > 1 else 0

    def _serve(self) -> None:
        forkserver.set_forkserver_preload([*self.preload])
        with _defer_interrupts():
            forkserver.ensure_running()


class _Worker(msgspec.Struct):
    """A process, and the tasks that it was given and has not answered, in order."""

    process: BaseProcess
    sender: Connection
    receiver: Connection
    tasks: deque[int] = msgspec.field(default_factory=deque)


class _Team(msgspec.Struct):
    """Workers, the tasks of the call that they work for, and the chunks that none has taken yet."""

    lasts: bool = False
    """True if the workers wait for a next call."""
    expected: bool = False
    """True if the server that forks them was started early."""
    left: int = 0
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
        self.function, self.tasks, self.waiting, self.left = function, tasks, deque(chunked), len(tasks)
        for worker in [*self.workers.values()]:
            if worker.process.is_alive():
                self._give(worker)
            else:
                self._part_with(worker)
        while self.waiting and len(self.workers) < count:
            self._hire()
        while self.left:
            for receiver in cast("list[Connection]", wait([*self.workers])):
                worker = self.workers[receiver]
                try:
                    answer = receiver.recv()
                except EOFError:
                    yield from self._replace_worker(worker)
                    continue
                if answer is None:  # It has grown too much.
                    self._part_with(worker)
                    self._hire()
                    continue
                task = worker.tasks.popleft()
                self.left -= 1
                if not worker.tasks:
                    self._give(worker)
                succeeded, value = answer
                if not succeeded:
                    raise value
                yield task, value

    def dismiss(self) -> None:
        """End all workers, at once those that have tasks."""
        for worker in self.workers.values():
            worker.sender.close()
            if worker.tasks:
                worker.process.terminate()
        for worker in [*self.workers.values()]:
            self._part_with(worker)
        self.left = 0

    def _hire(self) -> None:
        """Start a worker if there is something to do, and give it a chunk."""
        if not self.waiting:
            return
        context = multiprocessing.get_context("forkserver")
        orders, sender = context.Pipe(duplex=False)
        receiver, answers = context.Pipe(duplex=False)
        # Elsewhere than on Linux, or where a user's pipes have reached their limit, the worker waits.
        with suppress(AttributeError, OSError):
            fcntl.fcntl(answers.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process = context.Process(target=_work, args=(orders, answers))
        with _defer_interrupts():
            process.start()
            self.workers[receiver] = _Worker(process, sender, receiver)
        # Without copies here, the pipes close when the process dies.
        orders.close()
        answers.close()
        self._give(self.workers[receiver])

    def _give(self, worker: _Worker) -> None:
        if self.waiting:
            worker.tasks.extend(self.waiting.popleft())
            with suppress(BrokenPipeError):  # The end of its answers will tell.
                worker.sender.send((self.function, [self.tasks[task] for task in worker.tasks]))

    def _part_with(self, worker: _Worker) -> None:
        """Let a worker end; what it has not done waits again."""
        del self.workers[worker.receiver]
        if worker.tasks:
            self.waiting.appendleft([*worker.tasks])
        worker.sender.close()
        worker.process.join(_PATIENCE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(_PATIENCE_SECONDS)
        worker.receiver.close()

    def _replace_worker(self, worker: _Worker) -> Iterator[tuple[int, Lost]]:
        """Name the task of a worker that died, and start another worker."""
        worker.process.join()
        lost = worker.tasks.popleft() if worker.tasks else None
        self._part_with(worker)
        self._hire()
        if lost is not None:
            self.left -= 1
            yield lost, Lost(_end_clause(worker.process.exitcode or 0))


@contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block: an incomplete message would make the fork server fail.

    A process that is started in the block never receives it, and imports nothing from the working folder.
    Ctrl-C reaches all processes of a terminal; the first one handles it, and ends the others by SIGTERM.
    """
    held: list[int] = []
    # Processes started here inherit the mask. It holds for this thread only; the handler holds for all.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number)) if in_main else None
    try:
        with without_working_folder():
            yield
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in held[:1]:
            signal.raise_signal(number)


def _end(number: int, frame: object) -> NoReturn:
    """End a worker by an exception, which removes temporary files; at once where a destructor swallows it."""
    sys.unraisablehook = lambda unraisable: os._exit(1)
    sys.exit(1)


def _work(orders: Connection, answers: Connection) -> None:
    """Run chunks of tasks in a worker, and send the result or the exception of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    first = _memory()
    last: Callable[[Any], Any] | None = None
    settled = 0
    # The first process may have been interrupted and no longer be there.
    with suppress(EOFError, OSError):
        while True:
            function, tasks = orders.recv()
            for task in tasks:
                answers.send(_answer(function, task))
            if function != last:  # Modules imported and kept for later are no growth.
                last, settled = function, _memory()
            needed = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - first
            if has_grown(_memory() - settled, needed):
                answers.send(None)
                return


def _answer(function: Callable[[Any], Any], task: Any) -> tuple[bool, Any]:
    """Return True and the result of a task, or False and the error that it raised."""
    try:
        return True, function(task)
    except Exception as error:
        return False, error


def has_grown(retained: int, needed: int) -> bool:
    """Return whether a worker shall be replaced by a fresh one.

    ``retained`` are the bytes that it kept since its first chunk, ``needed`` the most at a time since it
    started.
    """
    return retained > needed // 2 > 0


def _memory() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not tell."""
    try:
        return int(_PAGES.read_text().split()[1]) * resource.getpagesize()
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
