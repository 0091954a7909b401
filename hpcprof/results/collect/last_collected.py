"""The last collected run whose profiles lie outside the folder of runs.

Each collect of such a run touches an empty folder ``timeline/collected/run=ID`` in the folder of runs. The
database has no times, so that collecting again writes the same rows.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpcprof.common.atomic import write_atomically
from hpcprof.common.paths import modification_time
from hpcprof.profiles.event_folders import EVENTS, ORIGINS, run_key
from hpcprof.runs.directory import Run

_COLLECTED_FILE, _REFUSED_FILE = "collected", "refused"


class LastCollected(NamedTuple):
    """A run and the time of its collect in seconds since 1970, 0 if unknown."""

    time: float
    run_id: str


def note_collected(run: Run, runs_dir: Path) -> None:
    """Note the time of the collect of a run outside the folder of runs, if that folder can be written."""
    if run.path.parent.absolute() == runs_dir.absolute() and run.manifest is not None:
        return
    folder = runs_dir / EVENTS / _COLLECTED_FILE / run_key(run.id)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()  # the clock of the manifests, not that of a file server
        os.utime(folder, (now, now))


def note_refused(run: Run, runs_dir: Path) -> None:
    """Note that no file of a run outside the folder of runs could be read, if that folder can be written."""
    with suppress(OSError):
        (runs_dir / EVENTS).mkdir(parents=True, exist_ok=True)
        write_atomically(runs_dir / EVENTS / _REFUSED_FILE, str(run.files[0] if run.files else run.path))


def refused_since(runs_dir: Path, moment: float) -> str:
    """Return the file or folder that was refused after a moment (s since 1970), the last one; or nothing."""
    path = runs_dir / EVENTS / _REFUSED_FILE
    with suppress(OSError):
        return path.read_text(encoding="utf-8") if modification_time(path) > moment else ""
    return ""


def last_collected(runs_dir: Path, run_ids: Iterable[str]) -> LastCollected | None:
    """Return the one of some runs that was collected last; None if there are no runs."""
    return max((LastCollected(_collect_time(runs_dir, run_id), run_id) for run_id in run_ids), default=None)


def _collect_time(runs_dir: Path, run_id: str) -> float:
    # Earlier versions of hpcprof made only the folder of origins, and only for timelines.
    folders = (runs_dir / EVENTS / kind / run_key(run_id) for kind in (_COLLECTED_FILE, ORIGINS))
    return next(filter(None, map(modification_time, folders)), 0.0)
