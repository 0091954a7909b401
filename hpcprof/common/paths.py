"""The folders of hpcprof's own files and of the user's."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def packaged(name: str) -> Path:
    """Return a folder that hpcprof ships, inside the package in a wheel and beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder that can be reached; `Path.is_dir` raises where access is denied."""
    try:
        return path.is_dir()
    except OSError:
        return False


def from_root(path: Path) -> Path:
    """Return a path from the root, without ``..``; names of links stay where there is none of these."""
    return path.resolve() if ".." in path.parts else path.absolute()


def user_config() -> Path:
    """Return the user's folder of sites and templates (``~/.config/hpcprof``)."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "hpcprof"


def user_cache() -> Path:
    """Return the user's folder of files that can be removed at any time (``~/.cache/hpcprof``)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hpcprof"
