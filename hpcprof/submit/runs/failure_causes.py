"""Causes of failures: the exception that a rank noted, and messages of programs and launchers that fail."""

import re
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpcprof.common.decode import from_json, parse_count
from hpcprof.common.masking import masked
from hpcprof.common.units import format_bytes
from hpcprof.common.yaml_file import read_mapping
from hpcprof.runs.directory import Run

Where = Literal["exception", "errors", "job_errors", "job_end", "job_success", "launch"]
"""The texts that patterns are about, see ``failure_patterns.yaml``."""

_PATTERNS = Path(__file__).with_name("failure_patterns.yaml")
_INNER_ERRORS = re.compile(r"""^ *File "[^"\n]+", line \d+.*\n(?:[ \t].*\n)*(\S.*)""", re.MULTILINE)
"""The errors at the ends of tracebacks."""
_LOST_PROCESS_ERRORS = ("EOFError", "ConnectionResetError", "BrokenPipeError", "ConnectionRefusedError")
"""Exceptions of a program that loses another process, such as one that it has started."""
_MAX_MESSAGE_LENGTH = 300
_UNLIMITED_BYTES = 1 << 60
"""From this number of bytes on, a control group has no limit of its memory."""


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pattern of ``failure_patterns.yaml``, which explains its keys."""

    name: str
    where: Where
    pattern: str
    meaning: str
    others: tuple[str, ...] = ()
    blames: Literal["self", "other"] = "self"
    state: Literal["failed", "timeout", "cancelled"] = "failed"


class FailureCause(msgspec.Struct, frozen=True):
    """The meaning of a text about a failure."""

    name: str
    """The name of its pattern."""
    meaning: str
    blames_other: bool = False
    """True if the rank has only noticed that another one failed."""
    rank: int | None = None
    """The rank that the text is about, if it names one."""
    state: str = "failed"
    """The state of a job that ended for this cause, as `JobState` has it."""
    limit: int | None = None
    """The walltime limit in seconds that held when the job ended, if the text names it."""


class TracebackLine(msgspec.Struct, frozen=True):
    """The innermost line of the user's code in a traceback."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        inside = f" in {self.function}" if self.function.isidentifier() else ""
        return f"{self.file.rpartition('/')[2]}:{self.line}{inside}"


class ExceptionNote(msgspec.Struct, frozen=True):
    """The uncaught exception that ended a rank, as the rank noted it."""

    type: str
    message: str = ""
    where: TracebackLine | None = None
    time: float = 0.0
    """The time at which it was raised, in seconds since 1970 by the clock of its node; 0 if unknown."""
    started_as: int | None = None
    """The number of the rank that hpcprof started: workers of torchrun have numbers of their own."""

    def __str__(self) -> str:
        # The traceback of another process, such as a worker of a data loader, ends with the error itself.
        inner = _INNER_ERRORS.findall(self.message)
        line = _printable(inner[-1] if inner else self.message.partition("\n")[0])
        return line if line.startswith(f"{self.type}:") else f"{self.type}: {line}" if line else self.type


def read_exceptions(run: Run) -> dict[int, ExceptionNote]:
    """Return the exceptions that ranks noted, by rank."""
    notes = {rank: read_exception(run, rank) for rank in run.rank_notes("exception")}
    return {rank: note for rank, note in notes.items() if note is not None}


def read_exception(run: Run, rank: int) -> ExceptionNote | None:
    """Return the exception that a rank noted, with secrets masked; None if there is none that can be read."""
    text = run.state_file(f"rank{rank:05d}.exception")
    if not text:
        return None
    with suppress(msgspec.MsgspecError):
        note = from_json(text, ExceptionNote)
        return msgspec.structs.replace(note, message=masked(note.message))
    return None


def find_cause(where: Where, text: str) -> FailureCause | None:
    """Return the first cause that a text names; None if it names none."""
    for pattern in patterns():
        texts = (pattern.pattern, *pattern.others) if pattern.where == where else ()
        if match := next(filter(None, (re.search(each, text, re.MULTILINE) for each in texts)), None):
            groups = {name: _printable(value or "") for name, value in match.groupdict().items()}
            meaning = pattern.meaning.format_map(groups)
            rank = parse_count(groups.get("rank", ""))
            if not meaning[:2].isupper():  # no name, as in PBS; messages of the system begin with a capital
                meaning = meaning[:1].lower() + meaning[1:]
            limit = int(groups["limit"]) if groups.get("limit", "").isdigit() else None
            return FailureCause(pattern.name, meaning, pattern.blames == "other", rank, pattern.state, limit)
    return None


def find_process_cause(note: ExceptionNote, errors: str) -> FailureCause | None:
    """Return the last other error in the errors of a rank whose exception tells that a process had ended."""
    inner = [line for line in _INNER_ERRORS.findall(errors) if not line.startswith(_LOST_PROCESS_ERRORS)]
    if note.type not in _LOST_PROCESS_ERRORS or not inner:
        return None
    cause = find_cause("exception", inner[-1])
    meaning = cause.meaning if cause else _printable(inner[-1])
    return FailureCause("other_process", f"a process of the program had failed: {meaning}")


@cache
def patterns() -> tuple[Pattern, ...]:
    """Return the patterns of ``failure_patterns.yaml``."""
    values: dict[str, Any] = read_mapping(_PATTERNS, "file of patterns")
    return msgspec.convert(values["patterns"], tuple[Pattern, ...])


def memory_cause(run: Run, rank: int) -> FailureCause | None:
    """Return that the kernel killed processes of a rank for lack of memory, if its wrapper noted that."""
    text, _, most = (run.state_file(f"rank{rank:05d}.oom") or "").partition(" ")
    count, limit = parse_count(text), parse_count(most)
    if count is None:
        return None
    limit_text = (
        f", whose limit is {format_bytes(limit)}" if limit is not None and limit < _UNLIMITED_BYTES else ""
    )
    processes = "a process" if count == 1 else f"{count} processes"
    where = "on its node" if most == "node" else f"of its control group{limit_text}"
    return FailureCause("node_memory", f"out of memory: the kernel killed {processes} {where}")


def signal_name(exit_code: int | None) -> str:
    """Return the name of the signal behind an exit code of a shell; empty if there is none."""
    with suppress(ValueError):
        return signal.Signals((exit_code or 0) - 128).name
    return ""


def _printable(text: str) -> str:
    text = "".join(char if char.isprintable() else " " for char in text).strip()
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[: _MAX_MESSAGE_LENGTH - 1]}…"
