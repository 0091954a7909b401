"""Reports of Nsight Systems (``.nsys-rep``): only nsys reads them, so it exports them."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcprof.common.atomic import replacing
from hpcprof.common.errors import DamagedInput, reading
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, run_command
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.readers.nsys.export import open_export

# An export takes about as long as nsys took to write the report: minutes for several GB.
_EXPORT_SECONDS = 2 * 3600.0


def export_of_report(report: Path) -> Path:
    """Return the export beside a report; it is made if there is none, or it is older or incomplete.

    A folder of Parquet files is used if it is complete. If two processes need an export at once, it is made
    once, provided that the file system has locks. It gets its name when it is complete.
    """
    export, folder = NSYS.made_from(report)
    with _lock_export(report):
        if folder.is_dir() and not _why_unusable(report, folder):
            return folder
        outdated = _why_unusable(report, export)
        if outdated:
            _make(report, export, outdated)
    return export


def _why_unusable(report: Path, export: Path) -> str:
    """Return the reason against an export's use; empty if it can be used."""
    if not export.exists():
        return f"it has no export {export.name} beside it"
    if export.stat().st_mtime_ns < report.stat().st_mtime_ns:
        return f"{export.name} beside it is older"
    # nsys writes in one go and META_DATA_EXPORT last; a journal is left where it was stopped.
    unfinished = f"{export.name} beside it is not complete"
    if export.with_name(f"{export.name}-journal").exists():
        return unfinished
    try:
        with open_export(export) as tables:
            whole = tables.table("ANALYSIS_DETAILS") and tables.table("META_DATA_EXPORT")
    except DamagedInput:
        return unfinished
    return "" if whole else unfinished


def _make(report: Path, export: Path, reason: str) -> None:
    nsys = shutil.which("nsys")
    if nsys is None:
        raise DamagedInput(
            f"{report} cannot be read: {reason}, and nsys, which makes it, is not on the PATH; where nsys "
            f"is, run nsys export --type sqlite --include-blobs=true --force-overwrite=true {report.name}."
        )
    try:
        with replacing(export) as temporary:
            output = f"--output={temporary}"
            # 2023 exports blobs without being asked, and does not know the option.
            stdout = run_command([nsys, "export", "--help"], timeout=_EXPORT_SECONDS).stdout
            blobs = ["--include-blobs=true"] if "--include-blobs" in stdout else []
            result = run_command(
                [nsys, "export", "--type=sqlite", *blobs, output, str(report)], timeout=_EXPORT_SECONDS
            )
            if result.exit_code != 0 or not temporary.is_file():
                raise DamagedInput(
                    f"nsys cannot export {report}: {_error_line(result.stdout + result.stderr)}."
                )
            # A journal left by an export that was stopped would be rolled back into the new one.
            export.with_name(f"{export.name}-journal").unlink(missing_ok=True)
    except (CommandNotStarted, CommandTimedOut) as error:
        raise DamagedInput(f"nsys cannot export {report}: {error}") from None
    except OSError as error:
        raise DamagedInput(f"{report} cannot be exported into {report.parent}: {error.strerror}.") from None


def _error_line(output: str) -> str:
    """Return the line of nsys's output that names the error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["it says nothing"]
    return telling[0].rstrip(".")


@contextmanager
def _lock_export(report: Path) -> Iterator[None]:
    with reading(report):
        file = report.open("rb")
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
