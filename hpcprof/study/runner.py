"""The runs that a study makes, one after the other."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from hpcprof.common.errors import HpcprofError, UsageError

if TYPE_CHECKING:
    from hpcprof.results.store.store import Store
    from hpcprof.submit.jobs.job import Job
    from hpcprof.submit.jobs.request import JobRequest
    from hpcprof.submit.runs.directory import Run
    from hpcprof.submit.sites.model import Site

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def without_profiler(request: JobRequest) -> JobRequest:
    """Return the merged request of a study, which chooses the profilers itself.

    Raises
    ------
    UsageError
        If the user chose one.
    """
    request = request.merged()
    if request.profiler not in (None, "none"):
        raise UsageError(f"--profiler {request.profiler}: the study chooses the profilers itself.")
    return request


def resumed(folder: Path) -> str:
    """Return the command that goes on with a study."""
    return shlex.join(["hpcprof", "study", "slowdown", "--resume", str(folder)])


def study_store(db: str | None, runs_dir: Path) -> Store:
    """Return the results database of a study, ready for use."""
    from hpcprof.results.store.store import open_store

    store = open_store(db, runs_dir)
    store.prepare()
    return store


class RunFailed(HpcprofError):
    """A run has ended without success."""


class Unusable(HpcprofError):
    """A run has ended well, and left nothing that can be read."""


class StudyRuns:
    """Submits runs, waits for each and collects it.

    Parameters
    ----------
    count : int
        How many runs the study is to have.
    store : Store
    runs_dir : Path
    template : Path or None
        The template of job.sh.
    folder : Path, optional
        The folder of a study that can be resumed.
    """

    def __init__(
        self,
        count: int,
        store: Store,
        runs_dir: Path,
        template: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        self._count, self._store = count, store
        self._runs_dir, self._template, self._folder = runs_dir, template, folder
        self._complete: list[Run] = []
        self._current: Run | None = None
        self._submitting = self._waiting = False
        self._signal = 0

    def submit(self, site: Site, job: Job) -> Run:
        """Submit a job; an interruption waits until it is known what there is to cancel."""
        from hpcprof.submit.submission import submit

        self._submitting = True
        try:
            run = submit(site, job, self._runs_dir, ["hpcprof", *sys.argv[1:]], self._template)
            self._current, self._waiting = run, True
        finally:
            self._submitting = False
            if self._signal:
                raise KeyboardInterrupt
        click.echo(f"submitted {run.id}")
        return run

    def wait(self, run: Run) -> None:
        """Wait for a run that has not ended; a failed one ends the command."""
        from hpcprof.submit.schedulers.base import JobState
        from hpcprof.submit.waiting import describe_failure, wait_until_ended

        self._current, self._waiting = run, True
        status = wait_until_ended(run, click.echo, lambda text: click.echo(text, nl=False))
        self._waiting = False
        if status.state is not JobState.COMPLETED:
            raise RunFailed("\n".join(describe_failure(run, status)))
        click.echo("completed")

    def collect(self, run: Run) -> None:
        """Collect a run that has ended well.

        Raises
        ------
        Unusable
            If it left no profile, with what the profiler said, or one that cannot be read.
        """
        from hpcprof.profiles.readers.discovery import find_profiles
        from hpcprof.results.collect import collect
        from hpcprof.submit.runs.failures import profiler_complaint

        self._current = run
        if not find_profiles(run.path):
            raise Unusable(
                f"{run.id} left no profile{profiler_complaint(run)}. The steps that it ran, and what it was "
                f"to capture, stand in {run.path / 'logs'}."
            )
        summary = collect(run, self._store)
        for sentence in (*summary.warnings, *summary.skipped):
            click.echo(f"hpcprof: {sentence}", err=True)
        if summary.skipped:
            raise Unusable(f"{run.id}: {len(summary.skipped)} profiles cannot be read.")
        self._complete.append(run)
        self._current = None

    def make(self, site: Site, job: Job) -> Run:
        """Submit a job, wait for it and collect it."""
        run = self.submit(site, job)
        self.wait(run)
        self.collect(run)
        return run

    @contextmanager
    def cancelled_on_interrupt(self) -> Iterator[None]:
        """On Ctrl-C or SIGTERM cancel the run that is waited for, say what is left, and exit."""
        handlers = {number: signal.signal(number, self._interrupt) for number in _SIGNALS}
        try:
            yield
        except KeyboardInterrupt:
            # Once is enough: a second Ctrl-C must not leave the job running.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            click.echo(f"\n{self._what_is_left()}", err=True)
            sys.exit(128 + (self._signal or signal.SIGINT))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        if not self._submitting:
            raise KeyboardInterrupt

    def _what_is_left(self) -> str:
        said = f"interrupted: {self._cancel()}{len(self._complete)} of {self._count} runs are complete"
        if self._complete:
            said += (
                f" and collected ({self._folder or ', '.join(run.id for run in self._complete)}): "
                "hpcprof report RUN shows one, with --analysis NAME --against RUN two together"
            )
        if self._folder is None:
            return f"{said}. The same command begins the study anew."
        return f"{said}. To go on: {resumed(self._folder)}"

    def _cancel(self) -> str:
        """Cancel the run that is waited for, and return what became of it."""
        from hpcprof.submit.schedulers.polling import cancel

        if self._current is None or self._current.manifest is None:
            return ""
        if not self._waiting:
            return f"{self._current.id} has ended and is not collected; "
        try:
            cancel([self._current])
        except HpcprofError as error:
            return f"{self._current.id} could not be cancelled ({str(error).rstrip('.')}); "
        return f"{self._current.id} is cancelled; "
