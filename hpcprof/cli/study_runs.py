"""The runs that a study makes, one after the other."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from hpcprof.cli.options import site_and_job
from hpcprof.errors import HpcprofError

if TYPE_CHECKING:
    from hpcprof.run import Run
    from hpcprof.store import Store


class StudyRuns:
    """Submits runs, waits for each and collects it.

    Parameters
    ----------
    count : int
        How many runs the study is to have.
    store : Store
    listed : Path, optional
        The file in which the study lists its runs.
    """

    def __init__(self, count: int, store: Store, listed: Path | None = None) -> None:
        self._count, self._store, self._listed = count, store, listed
        self._complete: list[Run] = []
        self._current: Run | None = None
        self._submitting = self._waiting = False
        self._signal = 0

    def make(self, values: dict[str, Any]) -> Run:
        """Submit a job, wait for it and collect it; a failed job ends the command.

        Raises
        ------
        HpcprofError
            If it left no profile, with what the profiler said.
        """
        from hpcprof.cli.waiting import conclude, follow
        from hpcprof.collect import collect
        from hpcprof.diagnosis import profiler_complaint
        from hpcprof.readers.detect import find_profiles

        run = self._submit(values)
        click.echo(f"submitted {run.id}")
        status = follow(run)
        self._waiting = False
        conclude(run, status)
        if not find_profiles(run.path):
            raise HpcprofError(
                f"{run.id} left no profile{profiler_complaint(run)}. The steps that it ran, and what it was "
                f"to capture, stand in {run.path / 'logs'}."
            )
        summary = collect(run, self._store)
        for sentence in (*summary.warnings, *summary.skipped):
            click.echo(f"hpcprof: {sentence}", err=True)
        if summary.skipped:
            raise HpcprofError(f"{run.id}: {len(summary.skipped)} profiles cannot be read.")
        self._complete.append(run)
        self._current = None
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

    def _submit(self, values: dict[str, Any]) -> Run:
        """Submit a job; an interruption waits until it is known what there is to cancel."""
        from hpcprof.submission import submit

        site, job = site_and_job(values)
        self._submitting = True
        try:
            run = submit(site, job, values["runs_dir"], ["hpcprof", *sys.argv[1:]], values.get("template"))
            self._current, self._waiting = run, True
        finally:
            self._submitting = False
            if self._signal:
                raise KeyboardInterrupt
        return run

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        if not self._submitting:
            raise KeyboardInterrupt

    def _what_is_left(self) -> str:
        said = f"interrupted: {self._cancel()}{len(self._complete)} of {self._count} runs are complete"
        if self._complete:
            said += (
                f" and collected ({self._listed or ', '.join(run.id for run in self._complete)}): "
                "hpcprof report RUN shows one, with --analysis NAME --against RUN two together"
            )
        return f"{said}. The same command begins the study anew."

    def _cancel(self) -> str:
        """Cancel the run that is waited for, and return what became of it."""
        from hpcprof.schedulers.registry import scheduler_for

        if self._current is None or self._current.manifest is None:
            return ""
        if not self._waiting:
            return f"{self._current.id} has ended and is not collected; "
        try:
            scheduler_for(self._current.manifest.site.scheduler).cancel(self._current)
        except HpcprofError as error:
            return f"{self._current.id} could not be cancelled ({str(error).rstrip('.')}); "
        return f"{self._current.id} is cancelled; "


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
