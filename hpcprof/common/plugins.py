"""Find the analyses, causes, schedulers, profilers and readers that other packages add by entry points.

Reading the metadata of all installed packages takes 30 ms, so only names that are not built in are looked up.
"""

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcprof.common.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ANALYSES = "hpcprof.analyses"
SCHEDULERS = "hpcprof.schedulers"
PROFILERS = "hpcprof.profilers"
READERS = "hpcprof.readers"
CAUSES = "hpcprof.causes"
KERNEL_FAMILIES = "hpcprof.kernel_families"


@cache
def has_plugins(group: str) -> bool:
    """Return whether an installed package has entry points of a group, without reading all metadata."""
    header = f"[{group}]".encode()
    folders = [Path(folder) for folder in sys.path if folder and Path(folder).is_dir()]
    files = (file for folder in folders for file in folder.glob("*.dist-info/entry_points.txt"))
    return any(header in file.read_bytes() for file in files)


@cache
def _entry_points(group: str) -> "dict[str, EntryPoint]":
    # The import alone takes 15 ms.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=group)}


def plugin_names(group: str) -> list[str]:
    """Return the names that other packages add to a group, in alphabetical order."""
    return sorted(_entry_points(group))


def load_plugin(group: str, name: str) -> Any | None:
    """Return the object that another package adds under ``name``, or None if no package does."""
    entry = _entry_points(group).get(name)
    if entry is None:
        return None
    try:
        return entry.load()
    except Exception as error:
        package = f"package {entry.dist.name}" if entry.dist else "a package"
        raise UsageError(
            f"{name!r} comes from {package}, which cannot be loaded ({entry.value}): {error}."
        ) from error
