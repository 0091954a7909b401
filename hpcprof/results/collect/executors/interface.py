"""Interface of executors, which run one function over many tasks, and the simplest one: this process.

Each executor yields every task with its result as soon as it has one, in any order. The function and the
tasks must be picklable. An exception that the function raises is raised here.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


Progress = Callable[[int, int, Path], None]
"""Called after each rank with the number of ranks done, the number of all, and the rank's profile."""


class Lost(msgspec.Struct, frozen=True):
    """Replaces the result of a task whose process ended early; ``reason`` is a clause that says how."""

    reason: str


class Executor(Protocol):
    """Runs a function over tasks."""

    def __call__(
        self, function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
    ) -> Iterator[tuple[TaskT, ResultT | Lost]]:
        """Yield each task with its result."""


def serially(
    function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]
) -> Iterator[tuple[TaskT, ResultT | Lost]]:
    """Run in this process, one task after another."""
    for task in tasks:
        yield task, function(task)
