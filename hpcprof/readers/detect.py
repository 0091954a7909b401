"""Which files are profiles, and which reader reads them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from hpcprof.errors import DamagedInput
from hpcprof.readers.names import rank_from_name
from hpcprof.timeline import Timeline

__all__ = ["find_profiles", "profile_kind", "rank_from_name", "read_profile"]

# ``.pt.trace.json`` ends with ``.trace.json``.
_SUFFIXES = {".sqlite": "nsys", ".trace.json": "torch", ".trace.json.gz": "torch"}
_READERS = {"nsys": "hpcprof.readers.nsys", "torch": "hpcprof.readers.torch_trace"}
# What editors, downloads and atomic writers leave while a file is not complete.
_TEMPORARY = (".tmp", ".part", ".partial", "~")


def profile_kind(path: Path) -> str | None:
    """Return ``"nsys"`` or ``"torch"`` by the file's suffix, None for anything else."""
    name = path.name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def read_profile(path: Path, threads: int = 1) -> Timeline:
    """Read a profile with the reader of its kind; readers are imported when they are needed.

    So many threads serve the reader that can use them: that of nsys exports.

    Raises
    ------
    DamagedInput
        If no reader knows the suffix, or the file cannot be read.
    """
    kind = profile_kind(path)
    if kind is None:
        raise DamagedInput(f"{path} is no profile that hpcprof reads: valid are {', '.join(_SUFFIXES)}.")
    read = import_module(_READERS[kind]).read
    return cast("Timeline", read(path, threads) if kind == "nsys" else read(path))


def find_profiles(folder: Path) -> list[Path]:
    """Return the profiles in a run directory (its ``profiles`` folder) or in any other folder, sorted.

    Hidden and temporary files are left out, and folders inside are not searched.
    """
    inside = folder / "profiles"
    place = inside if inside.is_dir() else folder
    return sorted(path for path in place.iterdir() if _is_profile(path))


def _is_profile(path: Path) -> bool:
    name = path.name
    hidden = name.startswith((".", "~", "#")) or name.lower().startswith("tmp.") or name.endswith(_TEMPORARY)
    return not hidden and profile_kind(path) is not None and path.is_file()
