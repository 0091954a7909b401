"""The light parts of a request that are about a host: its name, and a folder to copy there."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcprof.common.errors import HpcprofError, UsageError

NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
"""A host or an account that ssh cannot take for an option or for several words."""

HOME = "/HOME"
"""The home folder on a host, until the host is asked for it."""

CODE = "code"
"""The folder of a run on a host that has the copy of the user's folder."""


class HostUnreachable(HpcprofError):
    """A host cannot be reached, or the connection broke: the result of a command there is unknown."""


@dataclass
class Sync:
    """A folder of the user's that is copied to the host of a run."""

    folder: Path
    """Absolute."""
    excludes: Sequence[str] = ()
    """Patterns of names, or of paths in the folder, that are left out."""
    below: str = "."
    """The place where the program starts, in the folder."""
    files: int = 0
    size: int = 0
    """The number of files that were copied, and their bytes; `submit` sets them."""


def check_host(host: str, user: str, runs_dir: str, where: str) -> tuple[str, str]:
    """Check the values by which a site is reached, and return the name of the host and the user."""
    name, user_of_host = parse_host(host, where)
    if user:
        parse_host(f"{user}@{name}", f"{where}, user")
    if runs_dir.startswith("-"):
        raise UsageError(f"{where}, runs_dir: {runs_dir!r} begins with -; write a path.")
    return name, user_of_host or user


def parse_host(text: str, where: str = "--host") -> tuple[str, str]:
    """Return the name and the user of ``[USER@]HOST``; the user is empty if none is given."""
    user, separator, name = text.rpartition("@")
    for word in (name, *([user] if separator else [])):
        if not NAME.fullmatch(word):
            valid = "HOST or USER@HOST, of letters, digits and _ . : % - (no - first)"
            raise UsageError(f"{where} {text!r}: write a host as ssh takes it, {valid}.")
    return name, user
