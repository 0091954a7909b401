"""Find out why a run failed: the rank, its exit code, its last output, the profiler's complaint."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.submit.profilers import Profiler, find_profiler
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT, WRAPPER

TAIL_LINES = 12
_SIGNALLED = 128  # a shell reports a program that signal n killed as 128 + n
_NO_SPACE = re.compile(
    r"^hpcprof: (no space left on .*)\.$"
    r"|No space left on device|Disk quota exceeded|(?:disk|database) is full",
    re.MULTILINE,
)
_MPICH_ABORT = re.compile(
    r"^Abort\((?P<code>-?\d+)\) on node \d+ .*application called MPI_Abort", re.MULTILINE
)
_OPEN_MPI_ABORT = re.compile(
    r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator MPI_COMM_WORLD"
    r".{0,200}?errorcode:? (?P<code>-?\d+)",
    re.DOTALL | re.IGNORECASE,
)
_LAUNCH_FAILURES = {
    re.compile(
        r"(?:unrecogni[sz]ed|unknown|invalid|illegal|ambiguous|bad) (?:\w+ )?(?:option|argument)"
        r"|option requires",
        re.IGNORECASE,
    ): "the launcher refused an option",
    re.compile(
        r"\bssh(?:d|pass)?: |Host key verification failed|Permission denied \(|execvp error on file \S*ssh\b"
        r"|\bssh\S* .*(?:not found|No such file)",
    ): "ssh to another node failed",
    _NO_SPACE: "a disk is full",
}
"""Output of launchers that fail, and its meaning."""
_JOB_ERRORS = 200
"""The lines of the errors of job.sh that are looked at."""


@dataclass(frozen=True)
class RankFailure:
    """A rank that failed.

    Attributes
    ----------
    exit_code : int or None
        None if the rank did not leave one.
    last_lines : list of str
        The end of its output.
    first : bool
        Whether the rank noted that it failed before all others.
    exception : str
        The uncaught Python exception that ended it, if it noted one.
    how : str
        How it ended without an exit code, or else that it aborted the program; empty if neither is known.
    """

    rank: int
    exit_code: int | None
    last_lines: list[str]
    first: bool = False
    exception: str = ""
    how: str = ""

    def __str__(self) -> str:
        code = self.how or f"exit code {self.exit_code}"
        who = f"rank {self.rank} failed first" if self.first else f"rank {self.rank}"
        return f"{who}: {code}{self._cause()}"

    def _cause(self) -> str:
        """Return why, in brackets, if the rank has noted it or the exit code or the last lines tell."""
        if self.exception:
            return f" ({self.exception})"
        if found := _NO_SPACE.search("\n".join(self.last_lines)):
            return f" ({found[1] or found[0].lower()})"
        with suppress(ValueError):
            number = signal.Signals((self.exit_code or 0) - _SIGNALLED)
            return f" ({(signal.strsignal(number) or number.name).lower()})"
        return ""


def failed_ranks(run: Run) -> list[RankFailure]:
    """Return the ranks that failed, the likely culprit first.

    The rank that failed first leaves a note, or MPI says which one has aborted the program. Without either,
    a rank with an exit code of its own comes before ranks that a signal ended, since launchers end the others
    by a signal, and those before ranks without an exit code.
    """
    if run.manifest is None or not _starts_ranks(run):
        return []
    codes = run.rank_exit_codes()
    failed = [rank for rank in range(run.manifest.job.ranks) if codes.get(rank) != 0]
    first, aborted = first_failed_rank(run), _aborting_rank(run, failed)

    def blame(rank: int) -> tuple[bool, bool, bool, int]:
        code = codes.get(rank)
        return rank != (aborted or (None,))[0], code is None, (code or 0) > _SIGNALLED, rank

    others = [r for r in sorted(failed, key=blame) if first is None or r != first.rank]
    culprit = first.rank if first is not None else aborted[0] if aborted is not None else None
    full = _NO_SPACE.search("\n".join(_job_errors(run))) is not None or bool(full_disk(run))

    def how(rank: int) -> str:
        if aborted is not None and aborted[0] == rank:
            return f"called MPI_Abort with code {aborted[1]}"
        if codes.get(rank) is not None:
            return ""
        if not _has_started(run, rank):
            return "was not started"
        if full:
            return "left no exit code, as no space was left for it"
        if culprit is not None:
            return f"was ended with rank {culprit}"
        return "left no exit code (it was killed)"

    return [
        *([first] if first else []),
        *(_failure(run, rank, codes.get(rank), how=how(rank)) for rank in others),
    ]


def _starts_ranks(run: Run) -> bool:
    """Return whether job.sh has begun and starts ranks by the wrapper, whose files tell how they ended."""
    try:
        script = (run.path / JOB_SCRIPT).read_text(encoding="utf-8", errors="replace")
    except OSError:
        script = WRAPPER  # the script is gone: hpcprof made it
    return WRAPPER in script and run.state_file("started") is not None


def _has_started(run: Run, rank: int) -> bool:
    """Return whether the wrapper of a rank has begun to start its program."""
    stem = f"rank{rank:05d}"
    return any((run.path / "logs" / f"{stem}.{log}").exists() for log in ("err", "out", "profiler"))


def _aborting_rank(run: Run, ranks: Sequence[int]) -> tuple[int, int] | None:
    """Return which rank has called MPI_Abort, and with which code, as the MPI library says; None if none."""
    if found := _OPEN_MPI_ABORT.search("\n".join(_job_errors(run))):
        return int(found["rank"]), int(found["code"])
    for rank in ranks:
        text = "\n".join(tail(run.path / "logs" / f"rank{rank:05d}.err"))
        if found := _MPICH_ABORT.search(text) or _OPEN_MPI_ABORT.search(text):
            return rank, int(found["code"])
    return None


def _job_errors(run: Run) -> list[str]:
    return tail(run.path / "logs" / "job.err", _JOB_ERRORS)


def launch_failure(run: Run) -> str:
    """Return why no rank of a job was started, as a sentence; empty if some were, or job.sh did not start."""
    if run.manifest is None or not _starts_ranks(run) or run.rank_exit_codes():
        return ""
    if any(_has_started(run, rank) for rank in range(run.manifest.job.ranks)):
        return ""
    lines = [line.strip() for line in _job_errors(run) if line.strip()]
    for pattern, kind in _LAUNCH_FAILURES.items():
        if said := next(filter(pattern.search, lines), ""):
            return f"no rank was started: {kind} ({said.rstrip('.')})"
    return f"no rank was started: {lines[-1].rstrip('.')}" if lines else "no rank was started"


def first_failed_rank(run: Run) -> RankFailure | None:
    """Return the rank that noted that it failed before all others, also while the job still runs.

    The name of the note has the time when the job started: an older note is of an earlier start.
    """
    note = (run.state_file(f"failed.{run.state_file('started')}") or "").split()
    if len(note) != 2 or not all(map(str.isdigit, note)):
        return None
    rank, exit_code = map(int, note)
    return _failure(run, rank, exit_code, first=True)


def _failure(run: Run, rank: int, exit_code: int | None, first: bool = False, how: str = "") -> RankFailure:
    exception = run.state_file(f"rank{rank:05d}.exception") or ""
    return RankFailure(rank, exit_code, _last_words(run, rank), first, exception, how)


def describe_status(run: Run, status: JobStatus) -> str:
    """Return the reason for a run's state, with the rank that failed if one did."""
    failure: RankFailure | None = None
    if status.state is JobState.RUNNING:
        failure = first_failed_rank(run)
    unstarted = launch_failure(run) if status.state is JobState.FAILED else ""
    if status.state is JobState.FAILED and not unstarted:
        failure = next(iter(failed_ranks(run)), None)
    parts = [status.reason, unstarted or (str(failure) if failure else "")]
    if status.state is JobState.FAILED:
        parts.append(full_disk(run))
    if status.state is JobState.ENDED:
        said = [line.strip() for _, lines in last_output(run) for line in lines if line.strip()]
        parts.append(f"it last printed {said[-1]!r}" if said else "it left no output")
    return "; ".join(part for part in parts if part)


def last_output(run: Run) -> list[tuple[str, list[str]]]:
    """Return the logs of job.sh that have any output, by name, each with its last lines."""
    logs = [(name, tail(run.path / "logs" / name)) for name in ("job.err", "job.out")]
    return [(name, lines) for name, lines in logs if lines]


def profiler_of(run: Run) -> Profiler | None:
    """Return the profiler of a run; None if the package that added it is not installed here."""
    try:
        return find_profiler(run.manifest.job.profiler) if run.manifest is not None else None
    except UsageError:
        return None


def profiler_complaint(run: Run) -> str:
    """Return what the profiler complained about on a rank, as the end of a sentence; empty if nothing."""
    profiler = profiler_of(run)
    if profiler is None:
        return ""
    # Older runs have the profiler's lines among those of the program.
    for path in sorted((run.path / "logs").glob("rank*.[oep]*")):
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if found := profiler.complaint(line):
                    return found
    return ""


def full_disk(run: Run) -> str:
    """Return a sentence if no space is left where the run is, so that it may have no record of its end."""
    with suppress(OSError):
        if os.statvfs(run.path).f_bavail == 0:
            return f"no space is left on {run.path}"
    return ""


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a text file; no lines if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except OSError:
        return []


def _last_words(run: Run, rank: int) -> list[str]:
    stem = run.path / "logs" / f"rank{rank:05d}"
    # A profiler that fails before it starts the program leaves only its own log.
    logs = (stem.with_suffix(f".{log}") for log in ("err", "out", "profiler"))
    return next(filter(None, map(tail, logs)), [])
