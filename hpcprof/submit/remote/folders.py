"""Files to and from a host, as tar archives through its connection.

The answer is not trusted: only plain files that were asked for are written, below one folder and within
limits. Links, devices, absolute paths and files that nobody asked for end the transfer.
"""

import io
import os
import re
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from hpcprof.common.atomic import replacing
from hpcprof.common.errors import HpcprofError, writing
from hpcprof.common.units import format_bytes
from hpcprof.runs.config import group_may_read
from hpcprof.runs.directory import FOLDERS
from hpcprof.submit.remote.host import Host, complaint_of
from hpcprof.submit.remote.request import HostUnreachable, Sync

_ALWAYS_EXCLUDED = (".git", "__pycache__", ".venv")

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_LISTING_BYTES = 64 << 20
_MAX_FILES = 200_000
_NAMES_BYTES = 32 << 10
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512
TRANSFER_SECONDS = 6 * 3600.0
"""Maximum time of a transfer, in seconds."""


class RemoteFile(msgspec.Struct, frozen=True):
    """The size in bytes of a file on a host, and when it was changed, in nanoseconds since 1970."""

    size: int
    modified: int


class Fetched(msgspec.Struct):
    """The names of the files that were fetched, and a sentence for each one that was left on the host."""

    files: list[str] = msgspec.field(default_factory=list)
    skipped: list[str] = msgspec.field(default_factory=list)


def send_texts(
    host: Host, folder: PurePosixPath, texts: Mapping[str, bytes], folders: Sequence[str] = FOLDERS
) -> None:
    """Make a folder on a host, by default that of a run, with files and ``folders`` in it."""
    with _send_archive(host, folder) as archive:
        for name in folders:
            below = tarfile.TarInfo(name)
            below.type, below.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(below)
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o755 if text.startswith(b"#!") else 0o644
            member.size, member.mtime = len(text), int(time.time())
            archive.addfile(member, io.BytesIO(text))


def send_folder(host: Host, sync: Sync, folder: PurePosixPath) -> None:
    """Copy a folder of the user's to a host, and note the number of files and bytes; links stay links."""
    with _send_archive(host, folder) as archive:
        for path in _chosen_paths(sync.folder, "", [*_ALWAYS_EXCLUDED, *sync.excludes]):
            try:
                member = archive.gettarinfo(path, str(path.relative_to(sync.folder)))
                if not member.isreg():
                    archive.addfile(member)
                    continue
                with path.open("rb") as file:
                    archive.addfile(member, file)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise HpcprofError(f"--sync: {path} cannot be read: {error.strerror or error}.") from None
            sync.files, sync.size = sync.files + 1, sync.size + member.size


def _chosen_paths(folder: Path, below: str, excludes: Sequence[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        name = f"{below}{path.name}"
        excluded = any(
            fnmatch(text, pattern.rstrip("/")) for text in (path.name, name) for pattern in excludes
        )
        if not excluded and (path.is_symlink() or path.is_file() or path.is_dir()):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _chosen_paths(path, f"{name}/", excludes)


@contextmanager
def _send_archive(host: Host, folder: PurePosixPath) -> Iterator[tarfile.TarFile]:
    """Yield an archive that is unpacked in a folder of a host while it is written."""
    unpack = 'umask "$2" && mkdir -p -- "$1" && cd -- "$1" && exec tar -xf -'
    words = ["sh", "-c", unpack, "sh", str(folder), "027" if group_may_read() else "077"]
    with (
        host.reached(words, TRANSFER_SECONDS) as running,
        suppress(BrokenPipeError),
        tarfile.open(fileobj=running.stdin, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        yield archive
    host.check(running)
    if running.exit_code != 0:
        raise HpcprofError(f"cannot write {folder} on {host.name}: {complaint_of(running.stderr)}.")


def list_files(
    host: Host, folder: PurePosixPath, below: Sequence[str], seconds: float = TRANSFER_SECONDS
) -> dict[str, RemoteFile]:
    """Return the plain files below some folders of a run on a host; names that no run has are left out."""
    find = 'find "$@" -type f -printf "%s %T@ %p\\0" 2>/dev/null'
    script = f'cd -- "$1" 2>/dev/null || exit 0; shift; {find}; exit 0'
    with host.reached(["sh", "-c", script, "sh", str(folder), *below], seconds) as running:
        listing = running.stdout.read(_LISTING_BYTES + 1)
        if len(listing) > _LISTING_BYTES or listing.count(b"\0") > _MAX_FILES:
            raise HostUnreachable(f"{folder} on {host.name} has more than {_MAX_FILES:,} files.")
    host.check(running)
    files = {}
    for line in listing.split(b"\0")[:-1]:
        size, modified, name = [*line.decode("utf-8", "replace").split(" ", 2), "", ""][:3]
        when, _, fraction = modified.partition(".")
        if _is_plain(name, below) and all(map(_NUMBER.fullmatch, (size, when, fraction[:9]))):
            files[name] = RemoteFile(int(size), int(when + fraction[:9].ljust(9, "0")))
    return files


def _is_plain(name: str, below: Sequence[str]) -> bool:
    parts = name.split("/")
    return parts[0] in below and name.isprintable() and not {"", ".", ".."} & {*parts} and "\\" not in name


def fetch_files(
    host: Host,
    folder: PurePosixPath,
    files: Mapping[str, RemoteFile],
    target: Path,
    max_bytes: int,
    seconds: float = TRANSFER_SECONDS,
) -> Fetched:
    """Copy a host's files here, up to ``max_bytes`` each; what was not asked for ends the transfer."""
    wanted = {name: file for name, file in files.items() if file.size <= max_bytes}
    fetched = Fetched(
        skipped=[
            f"{folder / name} ({format_bytes(file.size)}) was left on {host.name}"
            for name, file in files.items()
            if name not in wanted
        ]
    )
    script = 'cd -- "$1" && exec tar --format=gnu -cf - --null -T -'
    for batch in _batches(wanted):
        names = b"".join(name.encode() + b"\0" for name in batch)
        with host.reached(["sh", "-c", script, "sh", str(folder)], seconds) as running:
            with suppress(BrokenPipeError):
                running.stdin.write(names)
                running.stdin.close()
            for member in _members(host, running.stdout):
                file = batch.pop(member.name, None)
                if file is None or member.size > max_bytes:
                    raise HpcprofError(f"{host.name} sent {member.name[:200]!r}, which was not asked for.")
                changed = file.modified if member.size == file.size else int(member.mtime) * 10**9
                _write(host, running.stdout, target, member, changed)
                fetched.files.append(member.name)
        host.check(running)
    return fetched


def _batches(files: Mapping[str, RemoteFile]) -> Iterator[dict[str, RemoteFile]]:
    """Yield the files in groups whose names fit into a pipe: tar sends files while it still reads names."""
    batch: dict[str, RemoteFile] = {}
    size = 0
    for name, file in files.items():
        size += len(name.encode()) + 1
        if size > _NAMES_BYTES and batch:
            yield batch
            batch, size = {}, len(name.encode()) + 1
        batch[name] = file
    if batch:
        yield batch


def _members(host: Host, stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of an archive, after each of which the file follows; other kinds are refused."""
    while True:
        block = _read_exactly(host, stream, _BLOCK_BYTES)
        if not block.strip(b"\0"):
            stream.read(_CHUNK_BYTES)  # the rest is padding
            return
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError:
            raise HpcprofError(f"{host.name} sent something other than an archive of files.") from None
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size < 0:
            raise HpcprofError(f"{host.name} sent {member.name[:200]!r}, which is not a plain file.")
        yield member


def _read_exactly(host: Host, stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise HostUnreachable(f"the connection to {host.name} was lost while files were sent.")
    return data


def _write(host: Host, stream: IO[bytes], target: Path, member: tarfile.TarInfo, modified: int) -> None:
    path = target / member.name
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            with temporary.open("xb") as file:
                remaining = member.size
                while remaining:
                    part = _read_exactly(host, stream, min(remaining, _CHUNK_BYTES))
                    file.write(part)
                    remaining -= len(part)
            _read_exactly(host, stream, -member.size % _BLOCK_BYTES)
            os.utime(temporary, ns=(modified, modified))
