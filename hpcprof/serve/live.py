"""Running jobs: the ends of their logs, the steps of their ranks, and what looks wrong."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked
from hpcprof.common.units import counted, format_ns, named_ranks, visible
from hpcprof.submit.runs.directory import Run, log_files
from hpcprof.submit.runs.live_steps import LiveSteps, read_live_steps

LOG_BYTES = 64 * 1024
"""How much of the end of each log is shown."""

SLOW_FACTOR = 3
"""A step is slow from this multiple of the median on."""

_SILENT_SECONDS = 10.0
_SILENT_STEPS = 5
_HANGING_FACTOR = 3
_TAB = 4


def live_state(run: Run, rank: int | None = None, now: float | None = None) -> dict[str, Any]:
    """Return the log of the job and of a rank, by default 0, and the steps of all ranks.

    Parameters
    ----------
    run : Run
    rank : int or None
    now : float or None
        Seconds since 1970, by default those of this moment.
    """
    steps = read_live_steps(run)
    return {
        "steps": {str(number): [asdict(line) for line in of_rank.lines] for number, of_rank in steps.items()},
        "warnings": warnings(steps, time.time() if now is None else now),
        "logs": logs(run, rank),
    }


def warnings(steps: Mapping[int, LiveSteps], now: float) -> list[str]:
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
        if median and of_rank.last.max_ns >= SLOW_FACTOR * median
    }
    if slow:
        longest = max(slow.values())
        found.append(
            f"A step of {counted(len(slow), 'rank')} ({named_ranks(sorted(slow), shown=4)}) took up to "
            f"{format_ns(longest)}, {longest / median:.1f} times the median of {format_ns(median)}."
        )
    return found


def logs(run: Run, rank: int | None) -> list[dict[str, Any]]:
    """Return the ends of the logs that ``hpcprof logs`` shows, with secrets masked and as plain text."""
    try:
        files = log_files(run, rank)
    except UsageError:
        return []
    return [{"name": path.name, **_tail(path)} for path in files]


def _tail(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return {"text": "", "cut": False}
    cut = size > LOG_BYTES
    # The first line may lack its begin, and with it the name of a secret.
    lines = text.splitlines()[1 if cut else 0 :]
    return {"text": "\n".join(visible(masked(line.expandtabs(_TAB))) for line in lines), "cut": cut}


def _sentence(ranks: list[int]) -> str:
    text = named_ranks(ranks, shown=8)
    return text[:1].upper() + text[1:]
