"""Find out why a run failed: the rank, its exit code, its last output, the profiler's complaint."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import msgspec

from hpcprof.common.decode import from_json, last_lines, open_regular, parse_count, read_text
from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked
from hpcprof.common.paths import modification_time
from hpcprof.common.units import named_ranks
from hpcprof.runs.directory import Run
from hpcprof.runs.rank_selection import place_conditions
from hpcprof.submit.mpi_types import ranks_apart
from hpcprof.submit.profilers import find_profiler
from hpcprof.submit.profilers.base import Profiler
from hpcprof.submit.runs.failure_causes import (
    ExceptionNote,
    FailureCause,
    find_cause,
    find_process_cause,
    memory_cause,
    patterns,
    read_exception,
    read_exceptions,
    signal_name,
)
from hpcprof.submit.schedulers.base import NODE_LOST, JobState, JobStatus
from hpcprof.submit.schedulers.scheduler import WRAPPER

TAIL_LINES = 20
_TAIL_BYTES = 1 << 20
_NO_CHATTER = re.compile("(?!)")
_SIGNAL_BASE = 128  # a shell reports a program that signal n killed as 128 + n
_TIMED_OUT = 124
"""The exit code of ``timeout`` of GNU, which ended its program."""
_FAULT_CODES = {
    _SIGNAL_BASE + number
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS)
}
"""Exit codes of programs that a fault of their own ended, and no launcher."""

_NO_SPACE = ("full_disk", "full_disk_error")
_ABORTS = ("mpich_abort", "open_mpi_abort")
_TIMEOUTS = ("gloo_timeout", "nccl_watchdog")
_LOST_NODE_PATTERNS = ("slurm_node", "open_mpi_node")
_KILLED_LAUNCHER = "launcher_killed"
"""The names of patterns, see ``failure_patterns.yaml``."""

_ESCAPES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?)")
"""Sequences by which programs colour their output and name windows."""

_ERROR = re.compile(
    "^(?!.*warning:).*(?:error|fatal|fail|not found|unable|cannot|denied|refused|no such)", re.I
)
"""A line of a launcher that tells of a failure."""

_JOB_ERRORS = 200
"""The lines of the errors of job.sh that are looked at."""

_TERMINATED = _SIGNAL_BASE + signal.SIGTERM
_KILLED_CODES = {_TERMINATED, _SIGNAL_BASE + signal.SIGKILL}
_KILLED_NOTE = "left no exit code (it was killed)"
_MISSED_NOTE = "left no exit code, though its job ended with 0"
_ENDING_SECONDS = 60.0
"""Maximum time that a job takes to end, in seconds: exceptions in it may be due to that."""
_LOADER = "data_loader"
_MAX_SILENT_RANKS = 1000
"""Maximum number of ranks without any file that are listed: ``run.json`` may claim millions."""
_ABORT_HINT = re.compile("MPI_Abort|MPI_ABORT")


class _Stall(msgspec.Struct):
    ranks: list[int] = []


@dataclass(frozen=True)
class RankFailure:
    """A rank that failed."""

    rank: int
    exit_code: int | None
    """None if the rank did not leave one."""
    last_lines: list[str]
    """The end of its output."""
    first: bool = False
    """True if the rank noted that it failed before all others."""
    exception: ExceptionNote | None = None
    """The uncaught Python exception that ended it, if it noted one."""
    how: str = ""
    """The way in which it ended without an exit code, or that it aborted the program; empty if unknown."""
    cause: FailureCause | None = None
    """The reason that the exception, the kernel or its last lines tell."""
    before: str = ""
    """The ranks that it missed: they had ended before as if all were well, or did not wait as most did."""

    def __str__(self) -> str:
        code = self.how or f"exit code {self.exit_code}"
        who = f"rank {self.rank} failed first" if self.first else f"rank {self.rank}"
        return f"{who}: {code}{self._reason()}{f'; {self.before}' if self.before else ''}"

    @property
    def noticed_another(self) -> bool:
        """True if the rank has only noticed that another one failed."""
        return self.cause is not None and self.cause.blames_other

    @property
    def has_own_fault(self) -> bool:
        """True if the rank is known to have failed for a reason of its own."""
        has_cause = self.exception is not None or self.cause is not None or self.exit_code in _FAULT_CODES
        return has_cause and not self.noticed_another

    def without_message(self) -> "RankFailure":
        """Return the failure without the text of its program: its output and the message of its exception."""
        note = self.exception and msgspec.structs.replace(self.exception, message="")
        return replace(self, last_lines=[], exception=note)

    def as_json(self) -> dict[str, Any]:
        """Return the failure as JSON can hold it."""
        error = self.exception
        return {
            "rank": self.rank,
            "first": self.first,
            "exit_code": self.exit_code,
            "signal": signal_name(self.exit_code) or None,
            "exception": {"type": error.type, "message": error.message} if error else None,
            "where": msgspec.structs.asdict(error.where) if error and error.where else None,
            "cause": self.cause.name if self.cause else None,
            "summary": str(self),
            "last_lines": self.last_lines,
        }

    def _reason(self) -> str:
        """Return why, in brackets, if the rank has noted it or the exit code or the last lines tell."""
        if self.exception is not None:
            message = self.exception.type if self.cause else str(self.exception)
            place = f", at {self.exception.where}" if self.exception.where else ""
            return f" ({message}{place}{f': {self.cause.meaning}' if self.cause else ''})"
        name = signal_name(self.exit_code)
        if self.cause is not None and self.cause.name not in _ABORTS:
            return f" ({name}: {self.cause.meaning})" if name else f" ({self.cause.meaning})"
        if name:
            return f" ({name}, {(signal.strsignal(signal.Signals[name]) or name).lower()})"
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
    ranks = run.manifest.job.ranks
    started = _started_ranks(run)
    noted = started | _ranks_of_files(run.path / "state")
    silent = islice((rank for rank in range(ranks) if rank not in noted), _MAX_SILENT_RANKS)
    failed = sorted(rank for rank in (*noted, *silent) if rank < ranks and codes.get(rank) != 0)
    job_cause = find_cause("job_errors", "\n".join(job_output(run, "job.err", _JOB_ERRORS)))
    logged = [rank for rank in failed if rank in started]
    first, aborts = first_failed_rank(run), _aborting_rank(run, logged, job_cause)

    verdict = run.state_file("verdict") or ""
    lost = "left no exit code, as a node was lost" if NODE_LOST in verdict else ""
    # Nothing could be written then, as on a full disk that has space again.
    ended_well = '"exit_code": 0' in verdict
    lost = job_cause.meaning if job_cause is not None and job_cause.name in _LOST_NODE_PATTERNS else lost
    # A job that is cancelled ends its launcher itself.
    is_killed = job_cause is not None and job_cause.name == _KILLED_LAUNCHER and not _was_terminated(run)
    killed = job_cause.meaning if job_cause is not None and is_killed else _KILLED_NOTE

    def blame(rank: int) -> tuple[bool, bool, bool, int]:
        code = codes.get(rank)
        # Without a node, nothing was left of its ranks.
        unknown = code is None and not (lost and rank in started)
        return rank not in aborts, unknown, (code or 0) > _SIGNAL_BASE, rank

    other_ranks = [r for r in sorted(failed, key=blame) if first is None or r != first.rank]
    culprit = first.rank if first is not None else next(iter(aborts), None)
    full = disk_was_full(run)

    def how(rank: int) -> str:
        if rank in aborts or codes.get(rank) is not None:
            return aborts.get(rank, "")
        if rank not in started:
            return "was not started"
        if lost or full:
            return lost or "left no exit code, as no space was left for it"
        if culprit is not None:
            return f"was ended with rank {culprit}"
        return _MISSED_NOTE if ended_well else killed

    explained = [
        *([first if first.exception else replace(first, how=aborts.get(first.rank, ""))] if first else []),
        *(
            _failure(run, rank, codes.get(rank), how=how(rank))
            if rank in noted
            else RankFailure(rank, None, [], how=how(rank))
            for rank in other_ranks
        ),
    ]
    if job_cause is not None and job_cause.name not in _LOST_NODE_PATTERNS:
        # An exception of the rank tells more than an abort.
        explained = [
            failure
            if failure.rank != job_cause.rank or (failure.exception and job_cause.name in _ABORTS)
            else replace(failure, cause=job_cause)
            for failure in explained
        ]
    failures = [*explained, *_failed_workers(run, explained)]
    if _was_terminated(run):
        # The job was cancelled, or ended at its limit, and its ranks with it, maybe by an exception.
        end = modification_time(run.path / "state/terminated") - _ENDING_SECONDS
        failures = [failure for failure in failures if failure.first or _failed_before(failure, end)]
    return _culprit_first(run, failures, lost)


def _was_terminated(run: Run) -> bool:
    return run.state_file("terminated") is not None


def _failed_before(failure: RankFailure, end: float) -> bool:
    """Return whether a rank failed before the end of its job began, at ``end`` (s since 1970)."""
    if failure.exception is not None:
        return failure.exception.time < end
    return failure.exit_code != _TERMINATED and failure.how != _KILLED_NOTE


def _failed_workers(run: Run, failures: Sequence[RankFailure]) -> Iterator[RankFailure]:
    """Yield the workers with an exception of programs that start ranks of their own, as torchrun does."""
    starters = {failure.rank: failure for failure in failures}
    for rank, note in read_exceptions(run).items():
        starter = starters.get(rank if note.started_as is None else note.started_as)
        if starter is not None and starter.exception != note:
            cause = find_cause("exception", f"{note.type}: {note.message}")
            yield replace(starter, rank=rank, first=False, exception=note, cause=cause)


def _culprit_first(run: Run, failures: list[RankFailure], lost: str = "") -> list[RankFailure]:
    """Put a rank that failed by itself, or is ``lost`` with its node, before one that noticed it."""
    if not failures or failures[0].has_own_fault or (failures[0].first and not failures[0].noticed_another):
        return failures
    culprits = [failure for failure in failures if failure.has_own_fault or (lost and failure.how == lost)]
    if not culprits:
        return [_with_absent_ranks(run, failures), *failures[1:]]
    culprit = min(culprits, key=lambda failure: failure.exception.time if failure.exception else 0.0)
    consequences = [replace(failure, first=False) for failure in failures if failure is not culprit]
    return [replace(culprit, first=failures[0].noticed_another), *consequences]


def _with_absent_ranks(run: Run, failures: Sequence[RankFailure]) -> RankFailure:
    """Add to the first failure the ranks that it missed, if that is all that it noticed, or it was killed.

    Those that had ended before with exit code 0: launchers of MPI then kill the others. Where most ranks
    waited in vain, those that did not.
    """
    failure, state, codes = failures[0], run.path / "state", run.rank_exit_codes().items()
    names = (f"rank{failure.rank:05d}.{kind}" for kind in ("exception", "exit"))
    moment = next(filter(None, (modification_time(state / name) for name in names)), float("inf"))
    ended = [
        rank
        for rank, code in codes
        if code == 0 and modification_time(state / f"rank{rank:05d}.exit") < moment
    ]
    waited = {other.rank for other in failures if other.cause and other.cause.name in _TIMEOUTS}
    absent = [other.rank for other in failures if other.rank not in waited]
    sentence = f"{named_ranks(ended)} had ended before, with exit code 0" if ended else ""
    if failure.rank in waited and not ended and 0 < len(absent) <= len(waited):
        sentence = f"{named_ranks(absent)} reported no such wait"
    killed = failure.how in (_KILLED_NOTE, _MISSED_NOTE) or failure.exit_code in _KILLED_CODES
    return replace(failure, before=sentence) if failure.noticed_another or killed else failure


def _starts_ranks(run: Run) -> bool:
    """Return whether job.sh has begun and starts ranks by the wrapper, whose files tell how they ended."""
    # If the script is gone, hpcprof made it.
    return WRAPPER in (run.script or WRAPPER) and run.state_file("started") is not None


def unended_ranks(run: Run) -> list[int]:
    """Return the ranks that began and left no exit code."""
    return sorted(
        _started_ranks(run) - _ranks_of_files(run.path / "state", "exit") if _starts_ranks(run) else ()
    )


def _started_ranks(run: Run) -> set[int]:
    return _ranks_of_files(run.outputs() / "logs", "err|out|profiler")


def _ranks_of_files(folder: Path, kinds: str = ".+") -> set[int]:
    """Return the ranks of the files in a folder; ``kinds`` is an expression for the ends of their names."""
    with suppress(OSError):
        names = (re.fullmatch(rf"rank(\d{{5,9}})\.(?:{kinds})", path.name) for path in folder.iterdir())
        return {int(name[1]) for name in names if name}
    return set()


def _aborting_rank(run: Run, ranks: Sequence[int], job_cause: FailureCause | None) -> dict[int, str]:
    """Return the rank that called MPI_Abort with MPI's message about it; empty if none did."""
    if job_cause is not None and job_cause.name in _ABORTS and job_cause.rank is not None:
        return {job_cause.rank: job_cause.meaning}
    for rank in ranks:
        text = "\n".join(tail(run.outputs() / "logs" / f"rank{rank:05d}.err"))
        if not _ABORT_HINT.search(text):
            continue
        for where in ("errors", "job_errors"):
            cause = find_cause(where, text)
            if cause is not None and cause.name in _ABORTS:
                return {rank: cause.meaning}
    return {}


def disk_was_full(run: Run) -> bool:
    """Return whether job.sh said that no space was left, or none is left now."""
    cause = find_cause("errors", "\n".join(job_output(run, "job.err", _JOB_ERRORS)))
    return (cause is not None and cause.name in _NO_SPACE) or bool(full_disk(run))


def launch_failure(run: Run, *, running: bool = False) -> str:
    """Return why no rank of a job was started, as a sentence; empty if some were, or job.sh did not start.

    The launcher of a ``running`` job may wait for ranks for ever: a known error tells why some are missing.
    """
    if run.manifest is None or not _starts_ranks(run) or run.rank_exit_codes():
        return ""
    started, ranks = len(_started_ranks(run)), run.manifest.job.ranks
    if started >= (ranks if running else 1):
        return ""
    launcher = run.state_file("launcher") or ""
    which = f"{ranks - started} of {ranks} ranks were not started" if started else "no rank was started"
    which += f" by {launcher}" * Path(launcher).name.startswith("mpi")
    lines = [line.strip() for line in job_output(run, "job.err", lines=0) if line.strip(" \n-=*")]
    causes = {line: find_cause("launch", line) for line in lines}
    for name in (pattern.name for pattern in patterns() if pattern.where == "launch"):
        for line, cause in causes.items():
            if cause is not None and cause.name == name:
                return f"{which}: {cause.meaning} ({line.rstrip('.')})"
    if running:
        return ""
    # Launchers may warn first; then the first line has the cause, before how each of their parts ended.
    telling = next(filter(_ERROR.search, lines), lines[0] if lines else "")
    return f"{which}{': ' * bool(telling)}{telling.rstrip('.')}"


def preparation_failures(run: Run) -> list[str]:
    """Return the modules and lines of the site that failed before the launch, each with its error."""
    return masked(run.state_file("setup_failed") or "").splitlines()


def first_failed_rank(run: Run) -> RankFailure | None:
    """Return the rank that noted in this start of the job, which may still run, that it failed first."""
    note = (run.state_file(f"failed.{run.state_file('started')}") or "").split()
    if len(note) != 2 or not all(map(str.isdigit, note)):
        return None
    rank, exit_code = map(int, note)
    return _failure(run, rank, exit_code, first=True)


def _failure(run: Run, rank: int, exit_code: int | None, first: bool = False, how: str = "") -> RankFailure:
    note, lines = read_exception(run, rank), _last_output_of_rank(run, rank)
    if note is not None and note.started_as not in (None, rank):
        note = None
    killed = memory_cause(run, rank)
    cause = find_cause("exception", f"{note.type}: {note.message}") if note is not None else None
    if killed is not None and (signal_name(exit_code) == "SIGKILL" or (cause and cause.name == _LOADER)):
        cause = killed
    elif cause is None and exit_code != 0:
        # A rank may say that another one failed long before its last lines.
        errors = "\n".join(tail(run.outputs() / "logs" / f"rank{rank:05d}.err", _JOB_ERRORS))
        if note is not None:
            cause = find_process_cause(note, errors)
        elif (cause := find_cause("errors", "\n".join(lines))) is None:
            noticed = find_cause("errors", errors)
            cause = noticed if noticed and noticed.blames_other else None
            words = run.manifest.job.arguments if run.manifest and exit_code == _TIMED_OUT else []
            if "timeout" in (PurePath(word).name for word in words):
                cause = FailureCause("timeout", "timeout, in the command, ended the program")
    return RankFailure(rank, exit_code, lines, first, note, how, cause)


def first_failure(run: Run) -> RankFailure | None:
    """Return the rank to blame for the end of a run, without asking its scheduler; None if none is."""
    if run.state_file("finished") in (None, "0") and first_failed_rank(run) is None:
        return None
    return next(iter(failed_ranks(run)), None)


def describe_status(run: Run, status: JobStatus) -> str:
    """Return the reason for a run's state, with the rank that failed if one did."""
    if status.state is JobState.COMPLETED:
        return "; ".join(filter(None, (status.reason, *completion_warnings(run))))
    failure: RankFailure | None = None
    stalled, has_failed = "", status.state is JobState.FAILED
    running = status.state is JobState.RUNNING
    if running:
        failure = first_failed_rank(run)
        if failure is not None and failure.noticed_another:
            noted = [RankFailure(rank, 1, _last_output_of_rank(run, rank)) for rank in read_exceptions(run)]
            failure = _culprit_first(run, [failure, *_failed_workers(run, noted)])[0]
        stalled = _waits_for_leftovers(run)
    unstarted = launch_failure(run, running=running) if has_failed or running else ""
    if has_failed and not unstarted:
        failure = next(iter(failed_ranks(run)), None)
        if failure is not None and failure.noticed_another:
            stalled = _stall_sentence(run)
    elif status.state in (JobState.TIMEOUT, JobState.CANCELLED) and read_exceptions(run):
        # If the job has not noted its end, they may be due to that.
        failures = failed_ranks(run) if _was_terminated(run) else []
        failure = next((failure for failure in failures if failure.exception), None)
    parts = [status.reason, *preparation_failures(run), unstarted or str(failure or ""), stalled]
    parts.append(full_disk(run) if has_failed else "")
    if status.state is JobState.ENDED:
        printed = [line.strip() for _, lines in last_output(run) for line in lines if line.strip()]
        parts.append(f"it last printed {printed[-1]!r}" if printed else "it left no output")
    parts.append(ranks_apart(run))
    return "; ".join(part for part in parts if part)


def _waits_for_leftovers(run: Run) -> str:
    """Return the processes that a program has left and its profiler still waits for."""
    codes = run.rank_exit_codes()
    for rank, leftovers in run.rank_notes("left").items():
        if rank not in codes:
            end = f"has ended (exit code {run.state_file(f'rank{rank:05d}.code')})"
            return f"rank {rank} {end}; its profiler waits for what it left: {leftovers}"
    return ""


def _stall_sentence(run: Run) -> str:
    """Return a sentence on the ranks that held up the others, if the run had stalled before."""
    with suppress(msgspec.MsgspecError):
        stall = from_json(run.state_file("stall.json") or "", _Stall)
        if stall.ranks:
            return f"the run had stalled: {named_ranks(stall.ranks)} held the others up"
    return ""


def last_output(run: Run) -> list[tuple[str, list[str]]]:
    """Return the logs of job.sh that have any output, by name, each with its last lines."""
    logs = [(name, job_output(run, name)) for name in ("job.err", "job.out")]
    return [(name, lines) for name, lines in logs if lines]


def job_output(run: Run, name: str, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines, or with 0 all, that a job wrote into its log of a name since it last started."""
    before = run.state_file("errors_before" if name == "job.err" else "output_before")
    folders = ("logs", "state")  # job.sh may copy there what PBS brings only at the job's end
    path = next(filter(Path.exists, (run.path / folder / name for folder in folders)), run.path)
    return tail(path, lines, parse_count(before or "") or 0)


def profiler_of(run: Run) -> Profiler | None:
    """Return the profiler of a run; None if the package that added it is not installed here."""
    try:
        return find_profiler(run.manifest.job.profiler) if run.manifest is not None else None
    except UsageError:
        return None


def chatter_of(run: Run) -> re.Pattern[str]:
    """Return the beginning of lines that the profiler of a run writes into the program's output."""
    profiler = profiler_of(run)
    return re.compile(profiler.chatter) if profiler is not None and profiler.chatter else _NO_CHATTER


def profiler_complaint(run: Run) -> str:
    """Return the profiler's complaint on a rank, as the end of a sentence; empty without one."""
    profiler = profiler_of(run)
    if profiler is None:
        return ""
    # Older runs have the profiler's lines among those of the program.
    for path in sorted((run.outputs() / "logs").glob("rank*.[oep]*")):
        with suppress(OSError), open_regular(path) as file:
            while line := file.readline(_TAIL_BYTES):
                if complaint := profiler.complaint(line.decode("utf-8", "replace")):
                    return masked(complaint)
    return ""


def _notes_places(run: Run) -> bool:
    """Return whether the wrapper notes the ranks that it profiles; edited ones of version 0.3 do not."""
    with suppress(OSError):
        return "record profiled" in read_text(run.path / WRAPPER)
    return False


def completion_warnings(run: Run) -> list[str]:
    """Return the losses and hidden failures of a completed run, as sentences without a full stop."""
    causes = ((rank, memory_cause(run, rank)) for rank in run.rank_notes("oom"))
    killed = [f"{cause.meaning}; rank {rank} ended with exit code 0" for rank, cause in causes if cause]
    sentences = (*killed[:1], hidden_failure(run), nothing_recorded(run), ranks_apart(run))
    return [*preparation_failures(run), *filter(None, sentences)]


def hidden_failure(run: Run) -> str:
    """Return that a Python program failed within a rank whose exit code is 0; empty if none did.

    Shells forget the exit code before a pipe. Programs of ``python -c`` are left out: scripts test for
    packages by them.
    """
    codes = run.rank_exit_codes()
    for rank, note in read_exceptions(run).items():
        started = rank if note.started_as is None else note.started_as
        if codes.get(started) == 0 and note.where is not None and not note.where.file.startswith("<"):
            return (
                f"a Python program in rank {rank} failed ({note}, at {note.where}), but the rank ended with "
                "exit code 0 (set -o pipefail keeps the code before a pipe)"
            )
    return ""


def nothing_recorded(run: Run) -> str:
    """Return the profiler's complaint if it has written no profile of a run; empty otherwise."""
    profiles = run.outputs() / "profiles"
    if run.manifest is None or not run.manifest.job.profiled_ranks or any(profiles.glob("[!.]*")):
        return ""
    selection = run.manifest.job.profile_ranks
    ended = run.state_file("finished") is not None and run.rank_exit_codes()
    unchosen = ended and _notes_places(run) and not run.rank_notes("profiled")
    if place_conditions(selection) and unchosen:
        return f"--profile-ranks {selection} selects none of the ranks where they ran"
    return profiler_complaint(run).removeprefix(": ")


def full_disk(run: Run) -> str:
    """Return a sentence if no space is left where the run is, so that it may have no record of its end."""
    with suppress(OSError):
        if os.statvfs(run.path).f_bavail == 0:
            return f"no space is left on {run.path}"
    return ""


def tail(
    path: Path, lines: int = TAIL_LINES, since: int = 0, chatter: re.Pattern[str] = _NO_CHATTER
) -> list[str]:
    """Return the last lines of a text file after ``since`` bytes, of its last MiB, with secrets masked.

    Lines that begin as ``chatter`` are left out.
    """
    try:
        ends = (_ESCAPES.sub("", text) for text in last_lines(path, _TAIL_BYTES, since)[0])
        texts = [text for text in ends if not chatter.match(text)]
    except OSError:
        return []
    return masked("\n".join(texts[-lines:])).splitlines()


def _last_output_of_rank(run: Run, rank: int) -> list[str]:
    stem = run.outputs() / "logs" / f"rank{rank:05d}"
    # A profiler that fails before it starts the program leaves only its own log.
    logs = (stem.with_suffix(f".{log}") for log in ("err", "out", "profiler"))
    chatter = chatter_of(run)
    return next(filter(None, (tail(log, chatter=chatter) for log in logs)), [])
