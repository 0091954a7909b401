"""Running jobs: the ends of their logs, the steps of their ranks, and what looks wrong."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked
from hpcprof.common.units import visible
from hpcprof.submit.runs.directory import Run, log_files
from hpcprof.submit.runs.live_steps import read_live_steps, step_warnings

LOG_BYTES = 64 * 1024
"""The bytes shown of the end of each log."""

_TAB = 4


def live_state(
    run: Run, rank: int | None = None, running: bool = True, now: float | None = None
) -> dict[str, Any]:
    """Return the log of the job and of a rank, by default 0, and the steps of all ranks.

    Parameters
    ----------
    run : Run
    rank : int or None
    running : bool
        That no rank ends a step any more is nothing to warn of when the job has ended.
    now : float or None
        Seconds since 1970, by default those of this moment.
    """
    steps = read_live_steps(run)
    return {
        "steps": {str(number): [asdict(line) for line in of_rank.lines] for number, of_rank in steps.items()},
        "warnings": step_warnings(steps, (now or time.time()) if running else 0.0),
        "logs": logs(run, rank),
    }


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
