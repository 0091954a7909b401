"""The run that was collected last from elsewhere than the folder of runs.

Each collect of such a run touches an empty folder ``timeline/collected/run=ID`` among the runs: the database
has no times, so that to collect again writes the same rows.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpcprof.common.paths import time_written
from hpcprof.profiles.event_folders import EVENTS, ORIGINS, run_key
from hpcprof.runs.directory import Run

_COLLECTED_FILE = "collected"


class LastCollected(NamedTuple):
    """A run, and when it was collected, in seconds since 1970; 0 if that is unknown."""

    time: float
    run_id: str


def note_collected(run: Run, runs_dir: Path) -> None:
    """Note that a run was collected now, if it is elsewhere; without the right to write, it is not noted."""
    if run.path.parent.absolute() == runs_dir.absolute() and run.manifest is not None:
        return
    folder = runs_dir / EVENTS / _COLLECTED_FILE / run_key(run.id)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()  # a file server may have another clock than the manifests of runs
        os.utime(folder, (now, now))


def last_collected(runs_dir: Path, run_ids: Iterable[str]) -> LastCollected | None:
    """Return which of some runs was collected last; None if there are none."""
    return max((LastCollected(_collect_time(runs_dir, run_id), run_id) for run_id in run_ids), default=None)


def _collect_time(runs_dir: Path, run_id: str) -> float:
    # Earlier versions of hpcprof left only the second one, and only for timelines.
    folders = (runs_dir / EVENTS / kind / run_key(run_id) for kind in (_COLLECTED_FILE, ORIGINS))
    return next(filter(None, map(time_written, folders)), 0.0)
