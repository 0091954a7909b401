"""The exceptions that hpcprof raises; the command line alone turns them into sentences and exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class HpcprofError(Exception):
    """Something went wrong that one sentence explains; ``exit_code`` is the status of the command."""

    exit_code = 1


class UsageError(HpcprofError):
    """A value that the user gave is wrong: the sentence names it, where it stands and what would be valid."""

    exit_code = 2


class DamagedInput(HpcprofError):
    """An input file cannot be read: it is named and skipped, and the rest is collected."""


class SchedulerError(HpcprofError):
    """A scheduler's command failed or could not be understood."""


class StoreError(HpcprofError):
    """The results database cannot be used."""


class InformationRequested(Exception):
    """The user asked for a text, such as ``--help`` of a workload: print `text` and exit with status 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say in a sentence that the system does not let an input file be read.

    Raises
    ------
    DamagedInput
        Instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror}.") from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a sentence that the system does not let a file be written.

    Raises
    ------
    HpcprofError
        Instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise HpcprofError(f"cannot write {path}: {error.strerror}.") from None


def unknown(
    kind: str, name: str, valid: Iterable[str], where: str = "", listed: int | None = None
) -> UsageError:
    """Build the error for a name that is not one of ``valid``, with the close matches first.

    Parameters
    ----------
    kind : str
        What the name stands for, for example ``"site"``.
    name : str
        What the user wrote.
    valid : iterable of str
        Every name that would have been accepted.
    where : str
        Where the name stands, for example ``" in /path/site.yaml"``.
    listed : int or None
        Of how many of the last names to remind the user, all of them without it.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    close += [n for n in names if name and n.startswith(name) and n not in close][:3]
    sentence = f"unknown {kind} {name!r}{where}"
    if close:
        sentence += f"; did you mean {' or '.join(repr(c) for c in close)}?"
    shown = names if listed is None else names[-listed:]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return UsageError(f"{sentence}{'' if close else '.'} Valid: {', '.join(shown) or 'none'}{more}.")
