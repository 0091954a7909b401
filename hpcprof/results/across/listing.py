"""The list of runs: submitted ones with their states and times, and runs that were collected elsewhere."""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.decode import from_json
from hpcprof.common.errors import StoreError, UsageError
from hpcprof.common.logs import left_out_if_damaged
from hpcprof.common.masking import masked, masked_command
from hpcprof.common.paths import is_folder, modification_time
from hpcprof.results.collect.stalls import describe_end
from hpcprof.results.store.overview import StoredRun, pushed_runs, stored_runs
from hpcprof.runs.directory import MANIFEST, Run, all_runs
from hpcprof.runs.live_steps import noted_step_time
from hpcprof.runs.tags import read_tags
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll

IMPORTED, MISSING = "imported", "missing"
STATES = (*(state.value for state in JobState), IMPORTED, MISSING)
"""States in a list: of jobs, of imported profiles, and of collected runs whose folder is gone."""


class Coverage(Enum):
    """The part of a run's profiles that has been collected."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    NOT_PROFILED = ""


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. Times are in UTC; None stands for an unknown value.

    ``duration_s`` is the time from the start of job.sh to its end, or until now. ``step_ns`` is the elapsed
    time per step and ``step_p50_ns`` the median step: of the profiles in the results database, else of the
    steps that the program noted, as ``step_source`` says (``profiles`` or ``program``).
    """

    run: str
    state: str
    reason: str = ""
    site: str | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    ranks: int | None = None
    profiler: str | None = None
    command: str | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    duration_s: float | None = None
    step_ns: float | None = None
    step_p50_ns: float | None = None
    step_source: str | None = None
    collected: Coverage = Coverage.NOT_PROFILED
    tags: list[str] = []
    path: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON has them, times in ISO 8601."""
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        for name in ("submitted", "started"):
            if (when := fields[name]) is not None:
                fields[name] = when.astimezone(timezone.utc).isoformat(timespec="seconds")
        return fields | {"collected": self.collected.value or None}


@dataclass(frozen=True)
class Selection:
    """The choice of runs to list; empty values choose all. A run has to have one of the tags."""

    states: Sequence[str] = ()
    sites: Sequence[str] = ()
    tags: Sequence[str] = ()
    since: datetime | None = None

    def includes(self, site: str | None, tags: Iterable[str], when: datetime | None) -> bool:
        """Return whether a run is listed if its state is one of `states`."""
        return (
            (not self.sites or site in self.sites)
            and (not self.tags or not set(self.tags).isdisjoint(tags))
            and (self.since is None or (when is not None and when >= self.since))
        )


def list_runs(
    runs_dir: Path,
    db: str | None = None,
    selection: Selection = Selection(),
    skipped: list[str] | None = None,
) -> list[ListedRun]:
    """Return the runs in a folder, oldest first, and then the runs that were collected elsewhere.

    ``skipped`` gets a sentence for each run that cannot be read, and for an unreadable database.
    """
    skipped = [] if skipped is None else skipped
    runs = all_runs(runs_dir, skipped)
    try:
        stored = {row.id: row for row in stored_runs(db, runs_dir)}
        pushed = pushed_runs(db, runs_dir) if stored else {}
    except StoreError as error:
        stored, pushed = {}, {}
        skipped.append(str(error))
    chosen: dict[str, tuple[Run, list[str]]] = {}
    for run in runs:
        with left_out_if_damaged(run.id, skipped):
            tags, made = read_tags(run, runs_dir), run.manifest
            if made and selection.includes(made.job.site, tags, datetime.fromisoformat(made.created)):
                chosen[run.id] = run, tags
    statuses = poll([run for run, _ in chosen.values()], LISTING_SECONDS)
    listed = []
    for run, tags in chosen.values():
        with left_out_if_damaged(run.id, skipped):
            listed.append(_submitted_row(run, statuses[run.id], stored.get(run.id), tags))
    present_ids = {run.id for run in runs}
    further_rows = [
        _pushed_row(row, *pushed[name]) if name in pushed else _collected_row(row, runs_dir)
        for name, row in stored.items()
        if name not in present_ids and not os.access(Path(row.path) / MANIFEST, os.F_OK)
    ]
    further_rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0)
    listed += [row for row in further_rows if selection.includes(row.site, row.tags, row.started)]
    return [row for row in listed if not selection.states or row.state in selection.states]


def parse_since(text: str, now: datetime) -> datetime:
    """Return the time that a user gives as a date, a date and time, or an age such as 7d or 12h.

    A time without a zone is local time.
    """
    age = parse_age(text)
    if age is not None:
        return now - age
    with suppress(ValueError):
        return datetime.fromisoformat(text).astimezone()
    raise UsageError(
        f"--since {text}: write a date (2026-11-21), a time (2026-11-21T14:30) or an age (7d, 12h)."
    )


def parse_age(text: str) -> timedelta | None:
    """Return an age of days, hours or minutes, such as 30d, 12h or 90m; None if it is not one."""
    units = {"d": "days", "h": "hours", "m": "minutes"}
    if text[:-1].isdigit() and text[-1:] in units and len(text) < 8:
        return timedelta(**{units[text[-1]]: int(text[:-1])})
    return None


def _submitted_row(run: Run, status: JobStatus, row: StoredRun | None, tags: list[str]) -> ListedRun:
    assert run.manifest is not None
    job = run.manifest.job
    noted = None if row and row.step_ns is not None else noted_step_time(run)
    until = time.time() if status.state is JobState.RUNNING else None
    step_ns = noted.elapsed_ns if noted else row.step_ns if row else None
    step_p50_ns = noted.p50_ns if noted else row.step_p50_ns if row else None
    return ListedRun(
        run=run.id,
        state=status.state.value,
        reason=describe_end(run, status),
        site=job.site,
        nodes=job.nodes,
        ranks_per_node=job.ranks_per_node,
        ranks=job.ranks,
        profiler=job.profiler,
        command=masked_command([*([job.workload] if job.workload else []), *job.arguments]),
        submitted=datetime.fromisoformat(run.manifest.created),
        started=_start_time(run),
        duration_s=None if status.state in (JobState.QUEUED, JobState.UNKNOWN) else job_seconds(run, until),
        step_ns=step_ns,
        step_p50_ns=step_p50_ns,
        step_source=None if step_ns is None else "program" if noted else "profiles",
        collected=_coverage(len(run.profiled_ranks), row.profiles if row else 0),
        tags=tags,
        path=str(run.path),
    )


def _collected_row(row: StoredRun, runs_dir: Path) -> ListedRun:
    start = row.start_utc_ns
    return ListedRun(
        run=row.id,
        state=IMPORTED if is_folder(Path(row.path)) else MISSING,
        site=row.site,
        ranks=row.ranks or row.profiles or None,
        profiler=row.kind,
        command=row.workload and masked(row.workload),
        started=datetime.fromtimestamp(start / 1e9, timezone.utc) if start else None,
        step_ns=row.step_ns,
        step_p50_ns=row.step_p50_ns,
        step_source=None if row.step_ns is None else "profiles",
        collected=Coverage.YES,
        tags=read_tags(Run(row.id, Path(row.path)), runs_dir),
        path=row.path,
    )


def _pushed_row(row: StoredRun, listed: str, tags: str) -> ListedRun:
    run = from_json(listed, ListedRun)
    times = {"step_ns": row.step_ns or run.step_ns, "step_p50_ns": row.step_p50_ns or run.step_p50_ns}
    return msgspec.structs.replace(run, **times, tags=tags.split(), path=row.path)


def _coverage(profiled: int, collected: int) -> Coverage:
    if collected:
        return Coverage.YES if collected >= profiled else Coverage.PARTLY
    return Coverage.NO if profiled else Coverage.NOT_PROFILED


def _start_time(run: Run) -> datetime | None:
    with suppress(ValueError):
        text = run.state_file("started") or ""
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return None


def job_seconds(run: Run, now: float | None = None) -> float | None:
    """Return the time from the start of job.sh to its end, or to ``now``; None if one is unknown."""
    # The supervisor of a local job writes `ended`, also for a job that was killed.
    start, finished, ended = (
        modification_time(run.path / "state" / name) for name in ("started", "finished", "ended")
    )
    end = now or finished or ended
    return round(end - start, 3) if 0 < start <= end else None
