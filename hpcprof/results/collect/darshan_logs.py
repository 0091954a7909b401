"""The Darshan logs of a run: in its folder, and in the site's folder of logs."""

import glob
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.common.atomic import replacing
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.darshan.logs import FOLDER, find_darshan_logs, is_darshan_log, read_darshan_log
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import StepMark, step_lines

if TYPE_CHECKING:  # runs without logs do without
    from hpcprof.analysis.telemetry.darshan import RunLogs
    from hpcprof.profiles.timeline import Ints

_MAX_LOGS, _MAX_LOG_BYTES = 256, 64 << 20
"""Maximum number of logs of a run (without MPI, each process writes one), and maximum bytes of a log."""

_DAY = timedelta(days=1)


def logs_of(run: Run) -> list[Path]:
    """Return the logs of a run, or of a folder that hpcprof did not make."""
    named = {path.name: path for path in run.beside or () if is_darshan_log(path)}
    if run.beside is None or run.files is None:
        darshan_logs = find_darshan_logs(run.path / FOLDER if run.manifest is not None else run.path)
        named |= {path.name: path for path in darshan_logs}
    return [path for _, path in sorted(named.items())]


def copy_logs(run: Run) -> bool:
    """Copy the site's logs of a run's job into the run; return True if any was new.

    Sites delete them after some weeks. Logs that a user named are copied too.
    """
    if run.manifest is None:
        return False
    logs = [*filter(is_darshan_log, run.beside or ()), *_logs_at_site(run)][:_MAX_LOGS]
    folder, brought = run.path / FOLDER, False
    for path in logs:
        target = folder / path.name
        # Another user's run cannot be written.
        with suppress(OSError):
            if target.exists() or path.stat().st_size > _MAX_LOG_BYTES:
                continue
            folder.mkdir(exist_ok=True)
            with replacing(target) as temporary:
                shutil.copyfile(path, temporary)
            brought = True
    return brought


def _logs_at_site(run: Run) -> Iterator[Path]:
    pattern = run.manifest.site.darshan_logs if run.manifest is not None else ""
    job = re.match(r"\d+", run.job_id)
    if run.manifest is None or not pattern or not job:
        return
    with suppress(ValueError, KeyError, OSError):
        started = datetime.strptime(run.state_file("started") or "", "%Y-%m-%dT%H:%M:%S%z")
        # The date in the name is the job's first day in an unknown time zone.
        day, last = started - _DAY, started + timedelta(seconds=run.manifest.job.walltime) + _DAY
        fields = {"user": glob.escape(run.path.owner()), "job": job[0]}
        while day <= last:
            name = pattern.format(year=day.year, month=day.month, day=day.day, **fields)
            paths = map(Path, glob.glob(name))  # noqa: PTH207 (the pattern is that of a site)
            yield from sorted(filter(is_darshan_log, paths))
            day += _DAY


def run_logs(
    run: Run, captured: "Callable[[], Mapping[int, tuple[float, Ints, Ints]]]" = dict
) -> "RunLogs | None":
    """Return the logs of a run with the steps of its ranks; None without any.

    ``captured`` returns the steps in its profiles, as for `run_telemetry`.
    """
    paths = logs_of(run)[:_MAX_LOGS]
    if not paths:
        return None
    from hpcprof.analysis.telemetry.coincidences import captured_steps
    from hpcprof.analysis.telemetry.darshan import NamedLog, RunLogs

    logs, damaged = [], []
    for path in paths:
        try:
            logs.append(NamedLog(path.name, read_darshan_log(path)))
        except DamagedInput as error:
            damaged.append(str(error))
    steps: dict[int, Sequence[StepMark]] = {}
    if run.manifest is not None:
        steps |= step_lines(run)
    profiled = captured()
    common = captured_steps(profiled) if profiled and not steps else None
    if common is not None:
        first = StepMark(int(common.last[0] - common.steps[0]), float(common.edges[0]))
        ends = zip(common.last.tolist(), common.edges[1:].tolist(), strict=True)
        marks = [first, *(StepMark(*end) for end in ends)]
        steps = dict.fromkeys(profiled, marks)
    return RunLogs(logs, steps, damaged)
