"""Reader of logs of Darshan (``*.darshan``), by the package ``darshan`` in a process of its own."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcprof.common.errors import DamagedInput
from hpcprof.common.paths import is_folder
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, run_command
from hpcprof.profiles.readers.darshan import dump_script

SUFFIX = ".darshan"
FOLDER = "darshan"
"""The folder in a run that has the logs of its job."""

_READ_SECONDS = 300.0
_UNREAD = re.compile(r"failed to read module (\S+) data")


class FileRecord(msgspec.Struct, frozen=True):
    """The counters of a file in a module, of one rank; rank -1 stands for all ranks together.

    ``file`` is its number in `DarshanLog.files`. Times are in seconds, those of all ranks are their sum.
    ``slowest_rank`` is -1 if that is unknown.
    """

    module: str
    file: int
    rank: int
    opens: int
    reads: int
    writes: int
    read_bytes: int
    written_bytes: int
    read_s: float
    write_s: float
    meta_s: float
    unaligned: int = 0
    independent: int = 0
    """Calls that begin within a block of the file system (POSIX), and calls of one rank alone (MPI-IO)."""
    slowest_rank: int = -1
    slowest_s: float = 0.0
    late_rank: int = -1
    late_s: float = 0.0
    """The rank with least time in collective calls of MPI-IO alone, and that time: it comes to them last."""


class Segment(NamedTuple):
    """A read or a write that DXT traced; its times are in seconds since the begin of the log."""

    module: str
    file: int
    rank: int
    is_write: bool
    bytes: int
    begin: float
    end: float


class DarshanLog(msgspec.Struct, frozen=True):
    """A log of Darshan."""

    job_id: int
    ranks: int
    """The processes that the log is about."""
    begin: float
    """The time at which the program began, in seconds since 1970; ``whole_seconds`` if its fraction is not
    recorded.
    """
    run_time_s: float
    files: list[str]
    mounts: list[tuple[str, str]]
    """Mount points and their types."""
    records: list[FileRecord]
    segments: list[Segment]
    whole_seconds: bool = False
    partial: list[str] = []
    """The modules for whose records Darshan had no memory."""
    unread: list[str] = []
    """The modules that cannot be read."""
    not_read: list[str] = []
    """The modules that hpcprof does not read."""
    targets: dict[int, list[int]] = {}
    """The storage targets (OSTs) of Lustre that hold a file."""
    impossible: list[str] = []
    """The counters that are impossibly low in a record and count as 0 there."""
    left_out: int = 0
    """Records and segments beyond the limit."""

    def file_system(self, file: int) -> str:
        """Return the type of the file system of a file, as in ``lustre``; empty if it is unknown."""
        path = self.files[file]
        inside = [
            (len(place), kind)
            for place, kind in self.mounts
            if path == place or path.startswith(place.rstrip("/") + "/")
        ]
        return max(inside, default=(0, ""))[1]


def is_darshan_log(path: Path) -> bool:
    """Return whether a file is a log, by its name."""
    return path.name.lower().endswith(SUFFIX) and not path.name.startswith(".") and path.is_file()


def find_darshan_logs(folder: Path) -> list[Path]:
    """Return the logs in a folder, sorted; none if it does not exist."""
    return sorted(filter(is_darshan_log, folder.iterdir())) if is_folder(folder) else []


def read_darshan_log(path: Path) -> DarshanLog:
    """Read a log.

    Raises DamagedInput if the package ``darshan`` is missing, or the file is no log that it can read.
    """
    if importlib.util.find_spec("darshan") is None:
        raise DamagedInput(f"{path} needs the package darshan: pip install 'hpcprof[darshan]'.")
    try:
        result = run_command([sys.executable, dump_script.__file__, str(path)], timeout=_READ_SECONDS)
    except (CommandNotStarted, CommandTimedOut) as error:
        raise DamagedInput(f"{path} cannot be read: {error}") from None
    if result.exit_code != 0:
        crashed = result.exit_code != dump_script.NO_LOG
        reason = f": its reader ended with exit code {result.exit_code}" if crashed else ""
        raise DamagedInput(f"{path} is not a log of Darshan that can be read{reason}.")
    try:
        log = msgspec.json.decode(result.stdout, type=DarshanLog)
    except msgspec.MsgspecError as error:
        raise DamagedInput(f"{path} is not a log of Darshan that can be read: {error}.") from None
    return msgspec.structs.replace(log, unread=sorted(set(_UNREAD.findall(result.stderr))))
