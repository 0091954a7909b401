"""The exceptions that hpcprof raises; only the command line turns them into messages and exit codes."""

import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CONTROLS = (*range(9), *range(11, 32), *range(127, 160), 0x200E, 0x200F, *range(0x2028, 0x202F))
ESCAPED_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*_CONTROLS, *range(0x2066, 0x206A))}
"""Escapes of the control and bidirectional characters that would steer a terminal; not tab and newline."""


class HpcprofError(Exception):
    """An error that one sentence explains; ``exit_code`` is the exit code of the command.

    Its text has no controls but line breaks: a name in it may not steer a terminal.
    """

    exit_code = 1

    def __str__(self) -> str:
        return super().__str__().translate(ESCAPED_CONTROLS)


class UsageError(HpcprofError):
    """The user gave an invalid value; the message names it, where it is and what would be valid.

    ``fields`` are the names of the job's fields that the message is about; ``options.mpi`` for a key.
    """

    exit_code = 2

    def __init__(self, message: str, *fields: str) -> None:
        super().__init__(message)
        self.fields = fields


class DamagedInput(HpcprofError):
    """An input file cannot be read; it is named and skipped, and the others are collected.

    ``traceback`` is the text of an unexpected exception's traceback, else empty.
    """

    traceback = ""


class SchedulerError(HpcprofError):
    """A scheduler's command failed or could not be understood."""


class StoreError(HpcprofError):
    """The results database cannot be used."""


class RepeatedRow(StoreError):
    """Rows that are to be stored have the same key."""


class InformationRequested(Exception):
    """The user asked for a text, such as ``--help`` of a workload: print `text` and exit with status 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message without its full stop."""
    return (str(error).splitlines() or ["no message"])[0].rstrip(".")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a `DamagedInput` that names the file."""
    try:
        yield
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror or error}.") from None


@contextmanager
def errors_as_damage(path: Path) -> Iterator[None]:
    """Turn an unexpected exception in the block into a `DamagedInput`, with its traceback.

    An error in one profile must not end the work on the others. An `HpcprofError` passes unchanged, since it
    may be about something else than the profile. `hpcprof.profiles.input_bounds.bounded` handles a lack of
    memory.
    """
    try:
        yield
    except (HpcprofError, MemoryError):
        raise
    except Exception as error:
        damage = DamagedInput(f"{path} cannot be read: {type(error).__name__}: {first_line(error)}.")
        # Unlike the cause, this survives pickling between processes.
        damage.traceback = traceback.format_exc()
        raise damage from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into an `HpcprofError` that names the file."""
    try:
        yield
    except OSError as error:
        raise HpcprofError(f"cannot write {path}: {error.strerror or error}.") from None


@contextmanager
def about(*fields: str) -> Iterator[None]:
    """Give a `UsageError` from the block these fields of the job, unless it names its own."""
    try:
        yield
    except UsageError as error:
        error.fields = error.fields or fields
        raise


_SYNONYMS = {"command": "program", "args": "program"}
"""Names of other tools for names of hpcprof."""


def unknown(
    kind: str,
    name: str,
    valid: Iterable[str],
    where: str = "",
    listed: int | None = None,
    fields: Iterable[str] = (),
) -> UsageError:
    """Return the error for a name that is not one of ``valid``; it suggests close matches.

    ``kind`` is what the name is, such as ``"site"``. ``where`` follows the name in the sentence, with a space
    before it. The error lists the last ``listed`` valid names, by default all, and has the fields
    ``fields``.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    close += [n for n in names if name and n.startswith(name) and n not in close][:3]
    close += [n for n in names if n == _SYNONYMS.get(name)]
    sentence = f"unknown {kind} {name!r}{where}"
    if close:
        sentence += f"; did you mean {' or '.join(repr(c) for c in close)}?"
    listed_names = names if listed is None else names[-listed:]
    more = f" and {len(names) - len(listed_names)} more" if len(names) > len(listed_names) else ""
    return UsageError(
        f"{sentence}{'' if close else '.'} Valid: {', '.join(listed_names) or 'none'}{more}.", *fields
    )
