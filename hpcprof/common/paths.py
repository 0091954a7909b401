"""The folders of hpcprof's own files and of the user's."""

import os
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def packaged_folder(name: str) -> Path:
    """Return a folder that hpcprof ships, inside the package in a wheel and beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def script_beside(module: str) -> str:
    """Return the script of the shell beside a module, ``NAME.sh``, without the comments at its head."""
    return "\n" + Path(module).with_suffix(".sh").read_text(encoding="utf-8").partition("\n\n")[2]


def read_table(path: Path) -> list[list[str]]:
    """Return the rows of a table that hpcprof ships, with | between columns and comments after #."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines if line and line[0] != "#"]


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder that can be reached; `Path.is_dir` raises where access is denied."""
    try:
        return path.is_dir()
    except OSError:
        return False


def modification_time(path: Path) -> float:
    """Return the modification time of a file in s since 1970, by its file system's clock; 0 without file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_only_uri(database: Path) -> str:
    """Return the URI with which SQLite opens a file for reading only; spaces, '?', '#' and '%' are quoted."""
    return f"{database.absolute().as_uri()}?mode=ro"


def working_folder() -> Path:
    """Return the working folder by the shell's name for it: its links may lead elsewhere on other nodes."""
    named = Path(os.environ.get("PWD", ""))
    with suppress(OSError):
        if named.is_absolute() and ".." not in named.parts and named.samefile(os.curdir):
            return named
    return Path.cwd()


def absolute_path(path: Path) -> Path:
    """Return an absolute path without ``..``; links in it are not resolved unless ``..`` requires it."""
    whole = path if path.is_absolute() else working_folder() / path
    plain = Path(os.path.normpath(whole))
    return plain if plain == whole or plain.resolve() == whole.resolve() else whole.resolve()


def user_config() -> Path:
    """Return the user's folder of sites and templates (``~/.config/hpcprof``)."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "hpcprof"


def user_cache() -> Path:
    """Return the user's folder of files that can be removed at any time (``~/.cache/hpcprof``)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hpcprof"
