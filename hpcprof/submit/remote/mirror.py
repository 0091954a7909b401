"""The copy of a host's run on this machine: the files with its state, and on request its profiles."""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hpcprof.common.errors import HpcprofError
from hpcprof.runs.directory import Run
from hpcprof.submit.remote.folders import TRANSFER_SECONDS, Fetched, RemoteFile, fetch_files, list_files
from hpcprof.submit.remote.host import Host
from hpcprof.submit.sites.model import recorded_site

_FOLDERS = ("state", "logs", "results", "stall", "telemetry", "attempts")
"""Folders in a copy of a run that has not been collected."""

_LOCAL_STATE_FILES = {"verdict", "cancelled", "submitting", "submission", "unfinished", "seen"}
"""State files that are written here, whatever the host has under their names."""

_MAX_FILE_BYTES = 64 << 20
"""Maximum bytes of a file that is fetched of a watched run."""

_MIN_FREE_BYTES = 1 << 30
"""Minimum bytes that a transfer of profiles leaves free on the disk."""


def host_of(run: Run) -> Host | None:
    """Return the host of a run; None for this machine, and for profiles of another tool."""
    return Host.of(recorded_site(run.manifest)) if run.manifest is not None else None


def connect(runs: Sequence[Run]) -> list[str]:
    """Connect to the hosts of runs, and return a sentence for each that cannot be reached."""
    errors = []
    for host in dict.fromkeys(map(host_of, runs)):
        try:
            if host is not None:
                host.connect()
        except HpcprofError as error:
            errors.append(str(error))
    return errors


def refresh(run: Run) -> list[str]:
    """Update the copy of a run on a host; return a sentence for each file left there, or on the failure."""
    host = host_of(run)
    if host is None:
        return []
    try:
        host.connect()
        return update(run, host).skipped
    except HpcprofError as error:
        return [f"{str(error).rstrip('.')}: this is the copy of the last look."]


def update(run: Run, host: Host, seconds: float = TRANSFER_SECONDS) -> Fetched:
    """Fetch the new files of a run, without profiles, in ``seconds``; remove state and samples gone there."""
    files = list_files(host, host.folder(run.id), _FOLDERS, seconds)
    local = {f"state/{name}" for name in _LOCAL_STATE_FILES}
    files = {name: file for name, file in files.items() if name not in local}
    fetched = fetch_files(
        host, host.folder(run.id), _new_files(run, files), run.path, _MAX_FILE_BYTES, seconds
    )
    # A further start of a job has moved the samples of nodes to attempts/N/telemetry.
    attempts = (re.fullmatch(r"attempts/\d+/(telemetry/.+)", name) for name in files)
    gone = {sample[1] for sample in attempts if sample} | {
        f"state/{path.name}" for path in (run.path / "state").glob("*") if path.is_file()
    }
    for name in gone - local - files.keys():
        with suppress(OSError):
            (run.path / name).unlink()
    return fetched


def fetch_profiles(run: Run) -> list[str]:
    """Fetch all new files of a run on a host, with its profiles; return sentences as `refresh` does."""
    sentences = refresh(run)
    host = host_of(run)
    if host is not None and not sentences:
        fetch_all(run, host, ["profiles", "attempts"])
    return sentences


def fetch_all(run: Run, host: Host, below: Sequence[str], always: str = "") -> list[str]:
    """Fetch what is new in folders of a run, and the file ``always`` if it is there; return the names."""
    files = list_files(host, host.folder(run.id), below)
    new = _new_files(run, files) | {name: file for name, file in files.items() if name == always}
    size = sum(file.size for file in new.values())
    free = shutil.disk_usage(run.path).free - _MIN_FREE_BYTES
    if size > free:
        needed = f"{' and '.join(below)} of {run.id} on {host.name} have {size / 1e9:.1f} GB"
        raise HpcprofError(f"{needed}, and {run.path} has room for {max(free, 0) / 1e9:.1f} GB.")
    largest = max((file.size for file in new.values()), default=0)
    return fetch_files(host, host.folder(run.id), new, run.path, largest).files


def _new_files(run: Run, files: Mapping[str, RemoteFile]) -> dict[str, RemoteFile]:
    new = {**files}
    for name, file in files.items():
        with suppress(OSError):
            status = (run.path / name).stat()
            if (status.st_size, status.st_mtime_ns) == (file.size, file.modified):
                del new[name]
    return new
