"""Reader of what rocprofv3 writes as text: JSON results, and sets of CSV tables."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.rocprof import COUNTER_TABLE, KERNEL_TABLE
from hpcprof.profiles.readers.rocprof.csv_tables import read_tables
from hpcprof.profiles.readers.rocprof.json_results import KEY, read_results
from hpcprof.profiles.timeline import Timeline

_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 4096


def read(path: Path) -> Timeline:
    """Read the JSON results of rocprofv3, or the tables that stand beside one of kernels or counters.

    Raises
    ------
    DamagedInput
        In one sentence that names the file and what is wrong with it.
    UsageError
        If the user's table of kernel classes is wrong.
    """
    if path.name.lower().endswith(".csv"):
        return read_tables(path)
    return read_results(path, content_of(path))


def is_profile(path: Path) -> bool:
    """Return whether a file is one of rocprofv3, or a table of counters without one of kernels beside it."""
    name = path.name
    if name.lower().endswith(COUNTER_TABLE):
        return not path.with_name(name[: -len(COUNTER_TABLE)] + KERNEL_TABLE).exists()
    try:
        with gzip.open(path) if name.lower().endswith(".gz") else path.open("rb") as file:
            return KEY.encode() in file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False


def content_of(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is packed.

    Raises
    ------
    DamagedInput
        If it cannot be read.
    """
    try:
        written = path.read_bytes()
        return gzip.decompress(written) if written.startswith(_GZIP) else written
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{path} is damaged or truncated: {error}.") from None
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror}.") from None
