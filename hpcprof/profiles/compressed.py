"""Compressed profiles (``rank0.sqlite.xz``), unpacked into a private folder while they are read."""

import gzip
import lzma
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from hpcprof.common.errors import DamagedInput, first_line
from hpcprof.common.units import counted, format_bytes
from hpcprof.profiles.input_bounds import max_unpacked_bytes, unpacking_error
from hpcprof.profiles.readers.declaration import Reader
from hpcprof.profiles.readers.discovery import reader_of
from hpcprof.profiles.readers.kineto import TORCH

SUFFIXES = (".xz", ".gz", ".zst")

_CHUNK = 1 << 20


class Unpacked(msgspec.Struct):
    """Files to read instead of compressed profiles, by these, and a sentence for each that is damaged."""

    files: dict[Path, Path] = msgspec.field(default_factory=dict)
    skipped: list[str] = msgspec.field(default_factory=list)

    @property
    def sentence(self) -> str:
        """A sentence on the files that were unpacked, and their folder."""
        size = sum(path.stat().st_size for path in self.files.values())
        return (
            f"unpacked {counted(len(self.files), 'file')} ({format_bytes(size)}) into a private temporary "
            "folder, which is removed when they have been read"
        )

    def named(self, sentence: str) -> str:
        """Return a sentence with the names of the compressed files in place of those that were read."""
        for original, file in self.files.items():
            sentence = sentence.replace(str(file), str(original))
        return sentence


def reader_of_compressed(path: Path) -> Reader | None:
    """Return the reader of the profile in a compressed file, by its name; None for all other files.

    A file that a reader takes as it is, such as ``.trace.json.gz``, does not count as compressed.
    """
    if path.suffix.lower() not in SUFFIXES or path.name.startswith("."):
        return None
    packed_reader = reader_of(path)
    if packed_reader not in (None, TORCH):
        return None
    # The names of other traces may end like those of PyTorch: ``chrome_trace.json.gz``.
    inner_reader = reader_of(path.with_suffix(""))
    return None if inner_reader is packed_reader else inner_reader


@contextmanager
def unpacking(files: Sequence[Path]) -> Iterator[Unpacked]:
    """Unpack files into a private folder, and remove it after the block.

    A file that is damaged, or becomes larger than `max_unpacked_bytes` permits, is left out.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="hpcprof-", ignore_cleanup_errors=True)
    except OSError as error:
        place = tempfile.gettempdir()
        raise DamagedInput(f"cannot unpack into {place}: {error.strerror}; set TMPDIR.") from None
    with folder as place:
        unpacked = Unpacked()
        for number, file in enumerate(files):
            # Files of several folders may have the same name.
            target = Path(place) / str(number) / file.stem
            try:
                _unpack(file, target)
                unpacked.files[file] = target
            except DamagedInput as damage:
                target.unlink(missing_ok=True)
                unpacked.skipped.append(str(damage))
        yield unpacked


def _unpack(file: Path, target: Path) -> None:
    try:
        max_bytes = max_unpacked_bytes(file.stat().st_size)
        source = _open_file(file)
    except OSError as error:
        raise DamagedInput(f"{file} cannot be read: {error.strerror or error}.") from None
    with source:
        target.parent.mkdir()
        with target.open("xb") as output:
            while chunk := _read_block(file, source):
                if output.tell() + len(chunk) > max_bytes:
                    raise unpacking_error(file)
                try:
                    output.write(chunk)
                except OSError as error:
                    raise DamagedInput(
                        f"{file} cannot be unpacked into {target.parents[1]}: {error.strerror}; set TMPDIR "
                        "to another folder, or unpack it yourself."
                    ) from None


def _open_file(file: Path) -> IO[bytes] | Any:
    if file.suffix.lower() == ".xz":
        return lzma.open(file)
    if file.suffix.lower() == ".gz":
        return gzip.open(file)
    import pyarrow as pa  # slow to import

    return pa.CompressedInputStream(pa.OSFile(str(file)), "zstd")


def _read_block(file: Path, source: IO[bytes] | Any) -> bytes:
    try:
        return bytes(source.read(_CHUNK))
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DamagedInput(f"{file} is damaged or truncated: {first_line(error)}.") from None
