"""Runs tasks in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from hpcprof.results.executors.interface import Lost, ResultT, TaskT, serially

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Processes:
    """Runs each task in a process of its own, ``jobs`` at a time.

    The memory of a task is freed with its process, and a process that is killed loses only one task. The
    processes are forked from a server that has imported the modules ``preload``, never from this process,
    which may have threads. They end when this process ends, however that happens.
    """

    jobs: int
    preload: tuple[str, ...] = ()

    def __call__(
        self, function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        """Yield each task with its result; a single task, or one job at a time, runs in this process."""
        if self.jobs == 1 or len(tasks) <= 1:
            yield from serially(function, tasks)
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*self.preload])
        waiting = list(reversed(tasks))
        running: dict[Connection, tuple[TaskT, BaseProcess]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    task = waiting.pop()
                    receiver, sender = context.Pipe(duplex=False)
                    process = context.Process(target=_answer, args=(sender, function, task))
                    with _interrupted_later():
                        process.start()
                        running[receiver] = task, process
                    # Without a copy here, the pipe closes when the process dies.
                    sender.close()
                for receiver in cast("list[Connection]", wait(list(running))):
                    task, answering = running[receiver]
                    result = _received(receiver, answering)
                    del running[receiver]
                    yield task, result
        finally:
            for _, left in running.values():
                left.terminate()
            for _, left in running.values():
                left.join(_PATIENCE_SECONDS)
                left.kill()


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block: an incomplete message would make the fork server fail.

    A process that is started in the block never receives it. Ctrl-C reaches all processes of a terminal; the
    first one handles it, and ends the others by SIGTERM.
    """
    held: list[int] = []
    # Processes started here inherit the mask. It holds for this thread only; the handler holds for all.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number)) if in_main else None
    try:
        yield
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in held[:1]:
            signal.raise_signal(number)


def _answer(sender: Connection, function: Callable[[Any], Any], task: Any) -> None:
    """Run one task in a process of its own, and send its result or its exception."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Exiting by an exception removes temporary files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = True, function(task)
    except Exception as error:
        answer = False, error
    # The first process may have been interrupted and no longer be listening.
    with suppress(OSError):
        sender.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _received(receiver: Connection, process: BaseProcess) -> Any:
    try:
        succeeded, value = receiver.recv()
    except EOFError:
        process.join()
        return Lost(_how(process.exitcode or 0))
    finally:
        receiver.close()
    process.join()
    if not succeeded:
        raise value
    return value


def _how(code: int) -> str:
    """Return a clause that says how a process ended without an answer."""
    if code == -signal.SIGKILL:
        return "its process was killed, as happens when memory runs out"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
