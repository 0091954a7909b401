"""Which files are profiles, and which reader reads them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.file_names import rank_from_name

if TYPE_CHECKING:  # numpy is not needed to find profiles
    from hpcprof.profiles.kernel_report import KernelReport
    from hpcprof.profiles.timeline import Timeline

__all__ = ["PROFILES", "find_profiles", "profile_kind", "rank_from_name", "read_profile", "readable"]

# ``.pt.trace.json`` ends with ``.trace.json``.
_SUFFIXES = {
    ".sqlite": "nsys",
    ".nsys-rep": "nsys",
    ".trace.json": "torch",
    ".trace.json.gz": "torch",
    ".ncu-rep": "ncu",
    ".ncu-repz": "ncu",
    ".csv": "ncu",
    ".csv.gz": "ncu",
}
PROFILES = "*.sqlite or *.nsys-rep, *.trace.json[.gz], *.ncu-rep[z] or ncu's *.csv[.gz]"
"""What `find_profiles` looks for, for people."""

_READERS = {
    "nsys": "hpcprof.profiles.readers.nsys.reader",
    "torch": "hpcprof.profiles.readers.kineto.reader",
    "ncu": "hpcprof.profiles.readers.ncu.reader",
}
_NCU_REPORTS = (".ncu-rep", ".ncu-repz")
NCU_TABLES = (".csv", ".csv.gz")
"""The suffixes of ncu's tables: one beside the report of the same name is of that report."""

# What editors, downloads and atomic writers leave while a file is not complete.
_TEMPORARY = (".tmp", ".part", ".partial", "~")


def profile_kind(path: Path) -> str | None:
    """Return ``"nsys"``, ``"torch"`` or ``"ncu"`` by the file's suffix, None for anything else."""
    name = path.name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def read_profile(path: Path) -> Timeline | KernelReport:
    """Read a profile with the reader of its kind; readers are imported when they are needed.

    Raises
    ------
    DamagedInput
        If no reader knows the suffix, or the file cannot be read.
    """
    kind = profile_kind(path)
    if kind is None:
        raise DamagedInput(f"{path} is no profile that hpcprof reads: valid are {', '.join(_SUFFIXES)}.")
    read = import_module(_READERS[kind]).read
    return cast("Timeline | KernelReport", read(path))


def readable(path: Path) -> Path:
    """Return the file to read for a profile: its own, or what stands for a report that only a tool reads.

    That is the export of a report of Nsight Systems, and without ncu the table of one of Nsight Compute.

    Raises
    ------
    DamagedInput
        If the export has to be made, and cannot be, or the table is older than its report.
    """
    suffix = path.suffix.lower()
    if suffix == ".nsys-rep":
        from hpcprof.profiles.readers.nsys.report_export import exported

        return exported(path)
    if suffix in _NCU_REPORTS:
        from hpcprof.profiles.readers.ncu.report import report_or_table

        return report_or_table(path)
    return path


def find_profiles(folder: Path) -> list[Path]:
    """Return the profiles in a run directory (its ``profiles`` folder) or in any other folder, sorted.

    Hidden and temporary files are left out, and folders inside are not searched. An export that stands
    beside its ``.nsys-rep``, or a table beside its ``.ncu-rep``, is not listed: the report stands for both.
    """
    inside = folder / "profiles"
    place = inside if inside.is_dir() else folder
    found = {path for path in place.iterdir() if _is_profile(path)}
    exports = {path.with_suffix(".sqlite") for path in found if path.suffix.lower() == ".nsys-rep"}
    reports = [path for path in found if path.suffix.lower() in _NCU_REPORTS]
    tables = {path.with_suffix(suffix) for path in reports for suffix in NCU_TABLES}
    return sorted(found - exports - tables)


def _is_profile(path: Path) -> bool:
    name = path.name
    hidden = name.startswith((".", "~", "#")) or name.lower().startswith("tmp.") or name.endswith(_TEMPORARY)
    if hidden or profile_kind(path) is None or not path.is_file():
        return False
    if not name.lower().endswith((".csv", ".csv.gz")):
        return True
    from hpcprof.profiles.readers.ncu.csv_table import is_table

    return is_table(path)
