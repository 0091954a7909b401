"""The step times of a run, also while it runs, from the lines that its ranks write, at most one a second."""

import os
import re
import statistics
from bisect import bisect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hpcprof.common.decode import from_json, last_lines, open_regular
from hpcprof.common.units import capitalized, counted, format_bytes, format_ns, named_ranks
from hpcprof.runs.directory import Run
from hpcprof.runs.step_time import StepTime, step_time

_FILE = re.compile(r"rank(\d{5,9})\.jsonl")
_TAIL_BYTES = 4096
_MAX_NUMBER = 1 << 62
_MAX_ITEM_LENGTH = 40
_CLOCKS_APART_SECONDS = 60.0
"""Minimum age before the job's start for a line of an earlier start, rather than of another clock."""

_MAX_RANKS, _MAX_BYTES, _MAX_STEPS = 4, 4 << 20, 100_000
"""Maximum number of ranks whose lines are read whole, of bytes of a rank's file, and of steps of a line."""

_MIN_TREND_PCT, _MIN_TREND_LINES, _TRIMMED_PART = 5.0, 8, 8
"""Minimum relative change, and minimum number of lines, for the sentence that steps take longer than at the
start, and the part of the lines of either side (one in ...) that may be on the other's level."""

_SLOW_FACTOR = 3
"""A step is slow from this multiple of the median on."""

_SILENT_SECONDS = 10.0
_SILENT_STEPS, _SILENT_LINES = 5, 3
_HANGING_FACTOR = 3


Count = Annotated[int, msgspec.Meta(ge=0, lt=_MAX_NUMBER)]


class StepMark(msgspec.Struct, frozen=True):
    """The end of a step of a rank."""

    step: Count
    """The number of the step, counted from 0."""
    time: Annotated[float, msgspec.Meta(ge=0, lt=_MAX_NUMBER)]
    """The time at which it ended, in seconds since 1970."""


class StepLine(StepMark, frozen=True):
    """A line of a rank about the steps since its line before, written when the last of them ended."""

    steps: Count
    """The number of steps that ended."""
    wall_ns: Count
    max_ns: Count
    """The median and the longest of their times on the host."""
    total_ns: Count = 0
    """The sum of their times; 0 in lines of earlier versions."""
    allocated_bytes: Count = 0
    reserved_bytes: Count = 0
    inactive_split_bytes: Count = 0
    """The peaks of PyTorch's allocator so far, of the rank's fullest GPU; 0 if it uses none."""
    items: Count = 0
    """The number of tokens or samples, as ``item`` says, that the program has counted so far."""
    item: Any = ""
    long: Any = ()
    """The numbers and times, in ns, of the steps that take a quarter longer than the median, at most 16."""

    @property
    def times(self) -> list[tuple[int, int]]:
        """Times in ns and the number of steps of each: long steps singly, the others by their median."""
        short = self.steps - len(self.long)
        return [*([(self.wall_ns, short)] if short > 0 else []), *((wall, 1) for _, wall in self.long)]

    @property
    def walls(self) -> list[int]:
        """Times in ns of the steps in their order: long ones as noted, the others by their mean.

        Lines of earlier versions have no sum: there the others take the median of the line.
        """
        short_steps = self.steps - len(self.long)
        short_ns = self.total_ns - sum(wall for _, wall in self.long)
        walls = [short_ns // short_steps if short_steps and short_ns > 0 else self.wall_ns] * min(
            self.steps, _MAX_STEPS
        )
        for number, wall in self.long:
            if number > self.step - len(walls):
                walls[number - self.step - 1] = wall
        return walls


LiveSteps = tuple[StepLine, ...]
"""The last lines of a rank, the newest last; there is at least one."""


def read_live_steps(run: Run) -> dict[int, LiveSteps]:
    """Return the last lines of each rank by rank, without those from before the job was queued again."""
    return step_lines(run, max_bytes=_TAIL_BYTES)


def typical_step_ns(lines: Iterable[StepLine]) -> float:
    """Return the median time of one step or more in ns: each line counts as its number of steps."""
    times = sorted(pair for line in lines for pair in line.times)
    until = [*accumulate(steps for _, steps in times)]
    low, high = (times[bisect(until, place)][0] for place in ((until[-1] - 1) // 2, until[-1] // 2))
    return (low + high) / 2


def noted_step_time(run: Run) -> StepTime | None:
    """Return the time of the noted steps of a run on its slowest rank; None without."""
    return step_time(noted_steps(run))


def noted_steps(run: Run) -> list[int]:
    """Return the times in ns of the steps of the slowest of up to 4 evenly spaced ranks, in their order.

    Steps of ranks are not compared singly, because most have the mean of their line.
    """
    ranks = [*_step_files(run)]
    chosen = ranks[:: max(1, -(-len(ranks) // _MAX_RANKS))]
    times = [[wall for line in lines for wall in line.walls] for lines in step_lines(run, chosen).values()]
    return max(filter(None, times), key=statistics.fmean, default=[])


def step_lines(
    run: Run, ranks: Iterable[int] | None = None, max_bytes: int = _MAX_BYTES
) -> dict[int, LiveSteps]:
    """Return the lines of some ranks, or all, the oldest first, from the last ``max_bytes`` of each file."""
    files, since = _step_files(run), _start_time(run)
    chosen = files if ranks is None else [rank for rank in ranks if rank in files]
    lines_of_ranks = {rank: _last_lines(files[rank], since, max_bytes) for rank in chosen}
    return {rank: lines for rank, lines in lines_of_ranks.items() if lines}


def _step_files(run: Run) -> dict[int, Path]:
    files = {}
    with suppress(OSError), os.scandir(run.path / "state" / "steps") as entries:
        files = {int(name[1]): Path(entry.path) for entry in entries if (name := _FILE.fullmatch(entry.name))}
    return dict(sorted(files.items()))


def _start_time(run: Run) -> float:
    try:
        started = datetime.strptime(run.state_file("started") or "", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return 0.0
    return started.timestamp() - _CLOCKS_APART_SECONDS


def describe_live_steps(run: Run, now: float | None = None) -> str:
    """Return the progress of the ranks, and warnings; without ``now`` (s since 1970) the job has ended."""
    steps = read_live_steps(run)
    progress = live_progress(run, steps, now is not None)
    warnings = [] if now is None else step_warnings(steps, now)
    return f"{progress}. {' '.join(warnings)}" if warnings else progress


def live_progress(run: Run, steps: Mapping[int, LiveSteps], running: bool) -> str:
    """Return the progress of the ranks of a run, whose live steps are ``steps``; empty without any."""
    last = [lines[-1] for lines in steps.values()]
    if not last:
        return ""
    low, high = (limit(line.step for line in last) for limit in (min, max))
    where = f"step {high}" if low == high else f"steps {low} to {high}"
    # A running job is described by its last lines, an ended job by all lines.
    if not running and (whole := noted_step_time(run)):
        takes = (
            f"{format_ns(whole.elapsed_ns)} a step ({whole.words}; median about {format_ns(whole.p50_ns)})"
        )
    else:
        wall = typical_step_ns(line for lines in steps.values() for line in lines)
        most = max(sum(line.steps for line in lines) for lines in steps.values())
        takes = f"now {format_ns(wall)} a step (median of the last {counted(most, 'step')})"
    return f"{where} on {counted(len(last), 'rank')}, {takes}{_trend(run)}{_memory(steps)}"


def _memory(steps: Mapping[int, LiveSteps]) -> str:
    rank = max(steps, key=lambda rank: steps[rank][-1].reserved_bytes)
    most = steps[rank][-1]
    if not most.reserved_bytes:
        return ""
    which = f" on rank {rank}" if len(steps) > 1 else ""
    return (
        f", GPU memory up to {format_bytes(most.allocated_bytes)} allocated and "
        f"{format_bytes(most.reserved_bytes)} reserved{which}"
    )


def _trend(run: Run) -> str:
    """Return the slowdown of a rank's last steps against its first, if nearly all of them are slower.

    That they are faster tells of the warm-up, and not of the program.
    """
    path, since = next(iter(_step_files(run).items()))[1], _start_time(run)
    try:
        with open_regular(path) as file:
            noted = map(parsed_line, file.read(_TAIL_BYTES).split(b"\n"))
    except OSError:
        return ""
    first = [line for line in noted if line is not None and line.time >= since]
    last = [*_last_lines(path, since)]
    if first and last and last[0].step <= first[-1].step:
        unique_lines = sorted({*first, *last}, key=lambda line: line.step)
        first, last = unique_lines[: len(unique_lines) // 2], unique_lines[len(unique_lines) // 2 :]
    # The lines of an earlier attempt may come before those of this one.
    if len(first) < 2 or not last or len(first) + len(last) < _MIN_TREND_LINES:
        return ""
    before, after = (sorted(line.wall_ns for line in lines) for lines in (first[1:], last))
    lowest, highest = after[len(after) // _TRIMMED_PART], before[-1 - len(before) // _TRIMMED_PART]
    change = 100 * (typical_step_ns(last) / max(1, typical_step_ns(first[1:])) - 1)
    is_slower = lowest > highest and change >= _MIN_TREND_PCT
    return f", {change:.0f} % slower than at the start" if is_slower else ""


def step_warnings(steps: Mapping[int, LiveSteps], now: float) -> list[str]:
    """Return a sentence on ranks that have stopped while others go on, on all of them, and on slow steps.

    A rank has stopped if its last line is older than the newest one of all ranks by 10 s and by five steps of
    median length: it writes a line a second, or one after each longer step. Where lines are rarer, as after
    some hours, the limit is three lines. If the newest line is three times as old, the run as a whole has
    stopped. A step is slow if it took three times the median of all lines.
    """
    if not steps:
        return []
    median = typical_step_ns(line for lines in steps.values() for line in lines)
    lines_of_ranks = steps.values()
    pause = statistics.median(
        (lines[-1].time - lines[0].time) / max(1, len(lines) - 1) for lines in lines_of_ranks
    )
    patience = max(_SILENT_SECONDS, _SILENT_STEPS * median / 1e9, _SILENT_LINES * pause)
    newest = max(lines[-1].time for lines in steps.values())
    stopped = [rank for rank, lines in steps.items() if newest - lines[-1].time > patience]
    warnings = []
    if now - newest > _HANGING_FACTOR * patience:
        warnings.append(f"No rank has ended a step for {now - newest:.0f} s.")
    if stopped:
        behind = max(newest - steps[rank][-1].time for rank in stopped)
        verb = "has" if len(stopped) == 1 else "have"
        which = named_ranks(stopped, most=8)
        warnings.append(f"{capitalized(which)} {verb} ended no step for {behind:.0f} s, while others go on.")
    slow = {
        rank: lines[-1].max_ns
        for rank, lines in steps.items()
        if median and lines[-1].max_ns >= _SLOW_FACTOR * median
    }
    if slow:
        longest = max(slow.values())
        warnings.append(
            f"A step of {counted(len(slow), 'rank')} ({named_ranks(sorted(slow), most=4)}) took up to "
            f"{format_ns(longest)}, {longest / median:.1f} times the median of {format_ns(median)}."
        )
    return warnings


def _last_lines(path: Path, since: float, max_bytes: int = _TAIL_BYTES) -> tuple[StepLine, ...]:
    try:
        lines, _ = last_lines(path, max_bytes)
    except OSError:
        return ()
    # The last may be incomplete, as it is being written.
    return tuple(line for line in map(parsed_line, lines) if line is not None and line.time >= since)


def parsed_line(line: str | bytes) -> StepLine | None:
    """Return a line; None if it is incomplete or has another format."""
    try:
        step_line = from_json(line, StepLine)
    except msgspec.DecodeError:
        return None
    if (step_line.item, step_line.long) == ("", ()):
        return step_line
    item, long = str(step_line.item)[:_MAX_ITEM_LENGTH], _long_steps(step_line.long, step_line)
    return msgspec.structs.replace(step_line, item=item, long=long)


def _long_steps(value: Any, line: StepLine) -> tuple[tuple[int, int], ...]:
    try:
        long = msgspec.convert(value, tuple[tuple[Count, Count], ...])
    except msgspec.ValidationError:
        return ()
    numbers = [line.step - line.steps, *(step for step, _ in long), line.step + 1]
    return long if all(number < two for number, two in pairwise(numbers)) else ()
