"""Follow, watch and cancel runs until they have ended, and describe why one failed."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpcprof.common.errors import SchedulerError
from hpcprof.common.units import format_duration
from hpcprof.runs.directory import Run
from hpcprof.submit.launchers import ROOT_REMEDY, refuses_root
from hpcprof.submit.runs import failures
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, cancel, poll

_FIRST_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 10.0
_CANCEL_SECONDS = 60.0
"""Maximum seconds that a scheduler may take to end cancelled jobs."""

_REPEAT_SECONDS = 5.0
"""Seconds after which the cancellation of jobs that still run is repeated."""

_LONGEST_LINE = 500
"""Maximum characters of a line of a log that is shown with a failure."""


def poll_seconds() -> Iterator[float]:
    """Yield pauses between two polls: short for short local jobs, then as long as sites demand."""
    seconds = _FIRST_PAUSE_SECONDS
    while True:
        yield seconds
        seconds = min(seconds * 1.3, _MAX_PAUSE_SECONDS)


def wait_until_ended(
    run: Run, on_status: Callable[[JobStatus, float], None], on_output: Callable[[str], None]
) -> JobStatus:
    """Poll the scheduler until a run has ended, and return its last status.

    ``on_status`` is called with each change of the state or its reason, and the seconds since the beginning
    of the wait; ``on_output`` with the lines that rank 0 has printed since the last call, also to standard
    error.
    """
    began = time.monotonic()
    last_line = ""
    log = _Log(run)
    for status in _statuses(run):
        if text := log.read_new(status.state.ended):
            on_output(text)
        if status.state.ended:
            break
        described = replace(status, reason=failures.describe_status(run, status))
        if str(described) != last_line:
            on_status(described, time.monotonic() - began)
            last_line = str(described)
    return status


def poll_until(run: Run, seconds: float) -> JobStatus:
    """Poll the scheduler until a run has ended, for at most ``seconds``, and return its last status."""
    began = time.monotonic()
    return next(
        status for status in _statuses(run) if status.state.ended or time.monotonic() - began > seconds
    )


def _statuses(run: Run) -> Iterator[JobStatus]:
    """Poll the scheduler until a run has ended, and yield each status."""
    for pause in poll_seconds():
        yield (status := poll([run])[run.id])
        if status.state.ended:
            return
        time.sleep(pause)


STALL_EXIT_CODE = 5
"""The exit code of a job that was ended because it had stalled, and of commands that wait for one."""


def ended_by_stall(run: Run) -> bool:
    """Return whether the job was ended because no rank made progress any more."""
    return run.state_file("stall_stop") is not None


def describe_change(status: JobStatus, seconds: float) -> str:
    """Return a line about a change of state, ``seconds`` after the beginning of the wait."""
    return f"{status} (after {format_duration(seconds)})" if seconds >= 1 else str(status)


def watch(runs: Sequence[Run]) -> Iterator[dict[str, JobStatus]]:
    """Poll runs until all have ended, and yield the status of each by run id when one of them changes."""
    last: dict[str, JobStatus] = {}
    for pause in poll_seconds():
        # The first answer comes soon; a slow scheduler has the time that it needs for the others.
        states = poll(runs, None if last else LISTING_SECONDS)
        if states != last:
            yield states
            last = states
        if all(status.state.ended for status in states.values()):
            return
        time.sleep(pause)


def cancel_and_wait(runs: Sequence[Run]) -> dict[str, JobStatus]:
    """End the jobs of submitted runs, and return the status of each by run id once all have ended.

    A deletion that the scheduler accepts may still not happen, so it is repeated: OpenPBS 23.06 leaves the
    last member of an array running if another member was deleted before. Raises SchedulerError if runs have
    not ended after a minute.
    """
    cancel(runs)
    began = requested = time.monotonic()
    for pause in poll_seconds():
        states = poll(runs, _CANCEL_SECONDS)
        remaining = [run for run in runs if not states[run.id].state.ended]
        if not remaining:
            return states
        now = time.monotonic()
        if now - began > _CANCEL_SECONDS:
            break
        if now - requested > _REPEAT_SECONDS:
            cancel(remaining)
            requested = time.monotonic()
        time.sleep(min(pause, _REPEAT_SECONDS))
    named = ", ".join(f"{run.id} is {states[run.id]}" for run in remaining)
    sentence = f"not cancelled after {_CANCEL_SECONDS:.0f} s: {named}. Cancel again, or ask the operators."
    raise SchedulerError(sentence)


class _Log:
    """The output of the program on rank 0, read as it grows: standard output, then standard error."""

    def __init__(self, run: Run) -> None:
        self._chatter = failures.chatter_of(run)
        self._offsets = {run.outputs() / "logs" / f"rank00000.{stream}": 0 for stream in ("out", "err")}

    def read_new(self, ended: bool) -> str:
        """Return the new lines; an incomplete last line is held back."""
        return "".join(self._read_new(path, ended) for path in self._offsets)

    def _read_new(self, path: Path, ended: bool) -> str:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                text = file.read()
        except OSError:
            return ""
        if not ended:
            text = text[: text.rfind(b"\n") + 1]
        self._offsets[path] += len(text)
        lines = text.decode("utf-8", "replace").splitlines(keepends=True)
        return "".join(line for line in lines if not self._chatter.match(line))


def _indented(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if len(line) <= _LONGEST_LINE else f"  {line[:_LONGEST_LINE]}…"


def describe_failure(run: Run, status: JobStatus, shown_rank: int | None = None) -> list[str]:
    """Return the lines that explain why a run did not succeed, a sentence first.

    The output of ``shown_rank`` is on the screen already.
    """
    lines = [f"{run.id} {status}", *failures.preparation_failures(run)]
    logs = [
        line
        for name, lines_of_log in failures.last_output(run)
        for line in (f"{name}:", *_indented(lines_of_log))
    ]
    if status.state is JobState.ENDED:
        return lines + logs
    unstarted = failures.launch_failure(run)
    failed = [] if unstarted else failures.failed_ranks(run)
    lines += [unstarted] if unstarted else []
    for failure in failed[:1]:
        lines += [str(failure), *(_indented(failure.last_lines) if failure.rank != shown_rank else ())]
    if full := failures.full_disk(run):
        lines.append(full)
    if complaint := failures.profiler_complaint(run):
        lines.append(f"the profiler failed{complaint}")
    if not failed or failed[0].exit_code is None:
        lines += logs
        if refuses_root("\n".join(logs)):
            lines.append(f"Open MPI refuses to start ranks as root. {ROOT_REMEDY}")
    return lines
