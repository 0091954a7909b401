"""Staying with a run until it has ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click

from hpcprof.submit.runs.directory import Run
from hpcprof.submit.runs.failures import failed_ranks, profiler_complaint, tail
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.registry import scheduler_for

_FIRST_SECONDS = 0.2
_LONGEST_SECONDS = 10.0


def poll_seconds() -> Iterator[float]:
    """Yield the pauses between questions to a scheduler: short at first, then longer.

    A local job of a second is not waited for longer than that, and a queue of hours is not asked every
    second, which sites forbid.
    """
    seconds = _FIRST_SECONDS
    while True:
        yield seconds
        seconds = min(seconds * 1.3, _LONGEST_SECONDS)


def wait_for(run: Run) -> None:
    """Poll until the run has ended, and say how; exit 1 unless it succeeded. Ctrl-C leaves it running."""
    try:
        status = follow(run)
    except KeyboardInterrupt:
        click.echo(f"\nleft {run.id} running: hpcprof status {run.id}, hpcprof cancel {run.id}", err=True)
        sys.exit(130)
    conclude(run, status)


def follow(run: Run) -> JobStatus:
    """Poll until the run has ended, and return how.

    Each change of state is said with the seconds since the start of waiting and the scheduler's reason,
    and what the first rank prints is shown as it comes.
    """
    assert run.manifest is not None
    scheduler = scheduler_for(run.manifest.site.scheduler)
    began = time.monotonic()
    shown = ""
    log = _Follower(run)
    for pause in poll_seconds():
        status = scheduler.poll([run])[run.id]
        log.show_new()
        if status.state.ended:
            break
        line = f"{status.state.value} {status.reason}".rstrip()
        if line != shown:
            elapsed = time.monotonic() - began
            click.echo(f"{line} (after {elapsed:.0f} s)" if elapsed >= 1 else line)
            shown = line
        time.sleep(pause)
    return status


class _Follower:
    """Shows what the first rank has printed since the last look."""

    def __init__(self, run: Run) -> None:
        self._path = run.path / "logs" / "rank00000.out"
        self._offset = 0

    def show_new(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return
        self._offset += len(text)
        click.echo(text.decode("utf-8", "replace"), nl=False)


def conclude(run: Run, status: JobStatus) -> None:
    """Say how a run has ended; exit 1 unless it succeeded."""
    if status.state is JobState.COMPLETED:
        click.echo("completed")
        return
    click.echo(f"hpcprof: {run.id} {status.state.value}: {status.reason}", err=True)
    failures = failed_ranks(run)
    for failure in failures[:1]:
        click.echo("\n  ".join((str(failure), *failure.last_lines)), err=True)
    if said := profiler_complaint(run):
        click.echo(f"the profiler failed{said}", err=True)
    if not failures or failures[0].exit_code is None:
        click.echo("\n  ".join(("job.err:", *tail(run.path / "logs" / "job.err"))), err=True)
    sys.exit(1)
