"""The runs of a study: submitted, waited for and collected, one after another."""

from __future__ import annotations

import csv
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import counted, format_duration

if TYPE_CHECKING:  # the command's help needs none of these
    from hpcprof.runs.directory import Run
    from hpcprof.runs.job import Job
    from hpcprof.submit.jobs.job import JobSpec
    from hpcprof.submit.schedulers.base import JobStatus
    from hpcprof.submit.sites.model import Site

_RowT = TypeVar("_RowT")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class MessageKind(Enum):
    """The kind of a study's message: a step taken, the state of a run, a program's output, or a warning."""

    STEP = "step"
    STATE = "state"
    OUTPUT = "output"
    WARNING = "warning"


@dataclass(frozen=True)
class Message:
    """A message of a running study: a line without its newline, or output of a program as it came."""

    text: str
    """The text that ``print`` shows."""
    kind: MessageKind = MessageKind.STEP
    """The kind of message."""
    run: int = 0
    runs: int = 0
    """The number of the run that begins, from 1, and how many the study has; 0 in all other messages."""
    seconds_left: float | None = None
    """The time that the study will still take, by the runs that it has made; None if it has made none."""

    def __str__(self) -> str:
        return self.text


Progress = Callable[[Message], object]
"""Called with each message of a study; ``print`` will do."""


class RunFailed(HpcprofError):
    """A run of a study has ended without success."""


class NoProfile(HpcprofError):
    """A run of a study has succeeded, but has not left a profile that can be read."""


class StudyInterrupted(HpcprofError):
    """Ctrl-C or SIGTERM has interrupted a study.

    ``exit_code`` is what a shell reports for a process that the signal has ended.
    """

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.exit_code = 128 + number


def without_profiler(request: JobSpec) -> JobSpec:
    """Return a request with its job file merged in; a study sets the profiler of each run itself.

    Raises UsageError if the request names a profiler.
    """
    from hpcprof.submit.jobs.merge import merged

    request = merged(request)
    if request.profiler not in (None, "none"):
        raise UsageError(f"--profiler {request.profiler}: the study chooses the profilers itself.")
    return replace(request, profiler=None)


def for_workload(request: JobSpec, workload: str) -> JobSpec:
    """Return a request, as `without_profiler` does, for a study that runs a ``workload`` of its own.

    Raises UsageError if the request names a profiler, or another workload.
    """
    request = without_profiler(request)
    if request.workload not in (None, workload):
        raise UsageError(f"--workload {request.workload}: the study runs its own workload, {workload}.")
    return replace(request, workload=workload)


def read_table(path: Path, row_of: Callable[[Mapping[str, str]], _RowT]) -> list[_RowT]:
    """Return the rows of a table in CSV that a run of a study wrote, each as ``row_of`` makes it.

    Raises HpcprofError if it is missing or damaged.
    """
    try:
        with path.open(newline="") as file:
            return [*map(row_of, csv.DictReader(file))]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise HpcprofError(f"{path} cannot be read: {error}.") from None


def resume_command(study: str, folder: Path) -> str:
    """Return the command that resumes a study."""
    return shlex.join(["hpcprof", "study", study, "--resume", str(folder)])


class StudyRuns:
    """Submits the runs of a study, waits for each and collects it.

    The study will have ``count`` runs in ``runs_dir``; ``template`` is the user's template of job.sh, and
    ``db`` the results database. run.json records ``command_line``, by default that of this process.
    """

    def __init__(
        self,
        count: int,
        runs_dir: Path,
        template: str | Path | None,
        db: str | None,
        progress: Progress | None,
        command_line: Sequence[str] | None,
    ) -> None:
        from hpcprof.results.store.store import open_store

        self.store = open_store(db, runs_dir)
        self.store.prepare()
        self.runs_dir = runs_dir
        self._count, self._template = count, Path(template) if template else None
        self._folder: Path | None = None
        self._resume_command = ""
        self._progress = progress
        self._command_line = list(sys.argv if command_line is None else command_line)
        self._began = self._run_began = time.monotonic()
        self._durations: list[float] = []
        self._waited = False
        self._complete: list[Run] = []
        self._current: Run | None = None
        self._submitting = self._waiting = False
        self._signal_number = 0

    def set_resume_command(self, folder: Path, command: str) -> None:
        """Note the folder of a study that can be resumed, and the command that resumes it."""
        self._folder, self._resume_command = folder, command

    def tell(self, text: str, kind: MessageKind = MessageKind.STEP) -> None:
        """Pass a message on to ``progress``."""
        if self._progress is not None:
            self._progress(Message(text, kind))

    def begin(self, number: int, label: str) -> None:
        """Tell that run ``number`` of the study begins, from 1, with the time spent and left."""
        self._run_began, self._waited = time.monotonic(), False
        text, remaining = f"run {number} of {self._count}: {label}".rstrip(), None
        if self._durations:
            remaining = (self._count - number + 1) * sum(self._durations) / len(self._durations)
            elapsed = format_duration(self._run_began - self._began)
            text += f" ({elapsed} elapsed, about {format_duration(remaining)} left)"
        if self._progress is not None:
            self._progress(Message(text, run=number, runs=self._count, seconds_left=remaining))

    def submit(self, site: Site, job: Job) -> Run:
        """Submit a job. An interruption is held back until it is known which run to cancel."""
        from hpcprof.submit.submission import submit

        self._submitting = True
        try:
            run = submit(site, job, self.runs_dir, self._command_line, self._template)
            self._current, self._waiting = run, True
        finally:
            self._submitting = False
            if self._signal_number:
                raise KeyboardInterrupt
        self.tell(f"submitted {run.id}")
        return run

    def wait(self, run: Run) -> None:
        """Wait for a run that has not ended.

        Raises RunFailed if the run does not succeed.
        """
        from hpcprof.submit.schedulers.base import JobState
        from hpcprof.submit.waiting import describe_change, describe_failure, wait_until_ended

        def on_status(status: JobStatus, seconds: float) -> None:
            self.tell(describe_change(status, seconds), MessageKind.STATE)

        self._current, self._waiting = run, True
        status = wait_until_ended(run, on_status, lambda text: self.tell(text, MessageKind.OUTPUT))
        self._waiting, self._waited = False, True
        if status.state is not JobState.COMPLETED:
            raise RunFailed("\n".join(describe_failure(run, status)))
        self.tell(str(status), MessageKind.STATE)

    def collect(self, run: Run, *, profiled: bool = True) -> None:
        """Collect a run that has succeeded; one that is not ``profiled`` has nothing to collect.

        Raises NoProfile if the run has left no profile, or one that cannot be read.
        """
        self._current = run
        if profiled:
            self._collect_profiles(run)
        self._complete.append(run)
        self._current = None
        if self._waited:  # a run that had ended before shows no duration
            self._durations.append(time.monotonic() - self._run_began)

    def _collect_profiles(self, run: Run) -> None:
        from hpcprof.profiles.readers.discovery import find_profiles
        from hpcprof.results.collect.collection import collect
        from hpcprof.submit.runs.failures import profiler_complaint

        if not find_profiles(run.path):
            raise NoProfile(
                f"{run.id} left no profile{profiler_complaint(run)}. Its logs show the steps that it ran and "
                f"those to capture: {run.path / 'logs'}."
            )
        summary = collect(run, self.store)
        for sentence in (*summary.warnings, *summary.skipped):
            self.tell(sentence, MessageKind.WARNING)
        if summary.skipped:
            raise NoProfile(f"{run.id}: {counted(len(summary.skipped), 'profile')} cannot be read.")

    def make(self, number: int, site: Site, job: Job, label: str = "") -> Run:
        """Submit the job of run ``number``, wait and collect it; ``label`` is by default its profiler."""
        self.begin(number, label or job.profiler)
        run = self.submit(site, job)
        self.wait(run)
        self.collect(run, profiled=job.profiler != "none")
        return run

    @contextmanager
    def cancelled_on_interrupt(self) -> Iterator[None]:
        """Cancel the run that is waited for when Ctrl-C or SIGTERM interrupts the block.

        Only the main thread can be interrupted. Raises StudyInterrupted if the block was interrupted; the
        message says what is left.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self._interrupt) for number in _SIGNALS}
        try:
            yield
        except KeyboardInterrupt:
            # A second Ctrl-C must not leave the job running.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            raise StudyInterrupted(
                self._interruption_message(), self._signal_number or signal.SIGINT
            ) from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._signal_number = number
        if not self._submitting:
            raise KeyboardInterrupt

    def _interruption_message(self) -> str:
        text = f"interrupted: {self._cancel()}{len(self._complete)} of {self._count} runs are complete"
        if self._complete:
            from hpcprof.results.collect.run_names import command_line

            showing = command_line(self.store, "report", str(self._complete[-1].path))
            text += (
                f" and collected ({self._folder or ', '.join(run.id for run in self._complete)}): "
                f"{showing} shows the last one"
            )
        if self._folder is None:
            return f"{text}. The same command starts the study again."
        return f"{text}. Resume with: {self._resume_command}"

    def _cancel(self) -> str:
        """Cancel the run that is waited for, and return a clause on its end."""
        from hpcprof.submit.schedulers.polling import cancel

        if self._current is None or self._current.manifest is None:
            return ""
        if not self._waiting:
            return f"{self._current.id} has ended, but is not collected; "
        try:
            cancel([self._current])
        except HpcprofError as error:
            return f"{self._current.id} could not be cancelled ({str(error).rstrip('.')}); "
        return f"{self._current.id} is cancelled; "
