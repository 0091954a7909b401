"""Find out why a run failed: the rank, its exit code, its last output, the profiler's complaint."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.submit.profilers import Profiler, find_profiler
from hpcprof.submit.runs.directory import Run

TAIL_LINES = 12
_SIGNALLED = 128  # a shell reports a program that signal n killed as 128 + n


@dataclass(frozen=True)
class RankFailure:
    """A rank that failed. ``exit_code`` is None if the rank was killed before it could leave one."""

    rank: int
    exit_code: int | None
    last_lines: list[str]

    def __str__(self) -> str:
        code = (
            "left no exit code (it was killed)" if self.exit_code is None else f"exit code {self.exit_code}"
        )
        return f"rank {self.rank}: {code}"


def failed_ranks(run: Run) -> list[RankFailure]:
    """Return the ranks that failed, the likely culprit first.

    When one rank fails, the launcher ends the others by a signal. A rank with an exit code of its own
    therefore comes before ranks that a signal ended, and those before ranks without an exit code.
    """
    if run.manifest is None or run.state_file("started") is None:
        return []
    codes = run.rank_exit_codes()
    failed = [rank for rank in range(run.manifest.job.ranks) if codes.get(rank) != 0]

    def blame(rank: int) -> tuple[bool, bool, int]:
        code = codes.get(rank)
        return code is None, (code or 0) > _SIGNALLED, rank

    return [RankFailure(r, codes.get(r), _last_words(run, r)) for r in sorted(failed, key=blame)]


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
