"""Private folders and files: they hold command lines and environments, for their owner or the group."""

import os
from pathlib import Path


def make_private(folder: Path, group: bool = False, exist_ok: bool = True) -> None:
    """Make a folder that its owner alone, or also its ``group``, can open; an existing one is not changed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not exist_ok or not folder.is_dir():
            raise
        return
    if group:
        folder.chmod(0o750 | (folder.stat().st_mode & 0o2000))


def private_mode(group: bool = False, script: bool = False) -> int:
    """Return the mode of a file for its owner alone, or also its ``group``; a ``script`` is executable."""
    mode = 0o640 if group else 0o600
    return mode | (mode & 0o444) >> 2 if script else mode


def make_private_file(path: Path, group: bool = False) -> None:
    """Make an empty file for its owner alone, unless there is one."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    os.close(descriptor)
    if group:
        path.chmod(private_mode(group))
