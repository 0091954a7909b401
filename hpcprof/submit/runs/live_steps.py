"""The step times of a run while it runs, from the lines that its ranks write.

The built-in workloads and programs that use `hpcprof.workloads.capture` write them, at most one a second.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from hpcprof.common.units import counted, format_ns, named_ranks
from hpcprof.submit.runs.directory import Run

_FILE = re.compile(r"rank(\d{5,9})\.jsonl")
_TAIL_BYTES = 4096
_MOST = 1 << 62
_CLOCKS_APART_SECONDS = 60.0
"""A line that is so much older than the start of the job is of an earlier start, not of another clock."""

_SLOW_FACTOR = 3
"""A step is slow from this multiple of the median on."""

_SILENT_SECONDS = 10.0
_SILENT_STEPS = 5
_HANGING_FACTOR = 3


@dataclass(frozen=True)
class StepLine:
    """A line of a rank about the steps since its line before.

    Attributes
    ----------
    time : float
        When it was written, in seconds since 1970.
    step : int
        The number of the last step, counted from 0.
    steps : int
        How many steps ended.
    wall_ns, max_ns : int
        The median and the longest of their times on the host.
    """

    time: float
    step: int
    steps: int
    wall_ns: int
    max_ns: int


@dataclass(frozen=True)
class LiveSteps:
    """The last lines of a rank, the newest last; there is at least one."""

    lines: tuple[StepLine, ...]

    @property
    def last(self) -> StepLine:
        """The newest line."""
        return self.lines[-1]


def read_live_steps(run: Run) -> dict[int, LiveSteps]:
    """Return the last lines of each rank that has written one, by rank; only the ends of files are read.

    Lines from before the job was queued again are left out.
    """
    started = run.state_file("started") or ""
    since = int(started) - _CLOCKS_APART_SECONDS if started.isdecimal() else 0.0
    found = {}
    with suppress(OSError), os.scandir(run.path / "state" / "steps") as entries:
        for entry in entries:
            if (name := _FILE.fullmatch(entry.name)) and (lines := _last_lines(Path(entry.path), since)):
                found[int(name[1])] = LiveSteps(lines)
    return dict(sorted(found.items()))


def describe_live_steps(run: Run) -> str:
    """Return how far the ranks of a running job are, how long their steps take, and what looks wrong.

    It is empty if nothing is known.
    """
    steps = read_live_steps(run)
    last = [of_rank.last for of_rank in steps.values()]
    if not last:
        return ""
    low, high = (limit(line.step for line in last) for limit in (min, max))
    where = f"step {high}" if low == high else f"steps {low} to {high}"
    wall = statistics.median(line.wall_ns for line in last)
    progress = f"{where} on {counted(len(last), 'rank')}, {format_ns(wall)} a step"
    warnings = step_warnings(steps, time.time())
    return f"{progress}. {' '.join(warnings)}" if warnings else progress


def step_warnings(steps: Mapping[int, LiveSteps], now: float) -> list[str]:
    """Return a sentence on ranks that have stopped while others go on, on all of them, and on slow steps.

    A rank has stopped if its last line is older than the newest one of all ranks by 10 s and by five steps of
    median length: it writes a line a second, or one after each longer step. If the newest line is three times
    as old, the run as a whole has stopped. A step is slow if it took three times the median of all lines.
    """
    if not steps:
        return []
    median = statistics.median(line.wall_ns for of_rank in steps.values() for line in of_rank.lines)
    patience = max(_SILENT_SECONDS, _SILENT_STEPS * median / 1e9)
    newest = max(of_rank.last.time for of_rank in steps.values())
    stopped = [rank for rank, of_rank in steps.items() if newest - of_rank.last.time > patience]
    found = []
    if now - newest > _HANGING_FACTOR * patience:
        found.append(f"No rank has ended a step for {now - newest:.0f} s.")
    if stopped:
        behind = max(newest - steps[rank].last.time for rank in stopped)
        verb = "has" if len(stopped) == 1 else "have"
        found.append(f"{_sentence(stopped)} {verb} ended no step for {behind:.0f} s, while others go on.")
    slow = {
        rank: of_rank.last.max_ns
        for rank, of_rank in steps.items()
        if median and of_rank.last.max_ns >= _SLOW_FACTOR * median
    }
    if slow:
        longest = max(slow.values())
        found.append(
            f"A step of {counted(len(slow), 'rank')} ({named_ranks(sorted(slow), shown=4)}) took up to "
            f"{format_ns(longest)}, {longest / median:.1f} times the median of {format_ns(median)}."
        )
    return found


def _sentence(ranks: list[int]) -> str:
    text = named_ranks(ranks, shown=8)
    return text[:1].upper() + text[1:]


def _last_lines(path: Path, since: float) -> tuple[StepLine, ...]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
    except OSError:
        return ()
    # The first may lack its begin, and the last is being written.
    return tuple(line for line in map(_parsed, lines[:-1]) if line is not None and line.time >= since)


def _parsed(line: bytes) -> StepLine | None:
    """Return a line; None if it is cut, or not one of ours."""
    try:
        values = json.loads(line)
        found = [values[field.name] for field in fields(StepLine)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    time, *numbers = found
    if type(time) not in (int, float) or not 0 <= time < _MOST:
        return None
    return StepLine(float(time), *numbers) if all(_is_count(number) for number in numbers) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST
