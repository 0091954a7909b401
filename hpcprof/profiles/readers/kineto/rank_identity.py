"""The kind and the rank of a trace, found without reading all of it."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.kineto import MERGED

# Kineto writes distributedInfo before the events, after the properties of up to 16 devices.
_HEAD_BYTES = 1 << 18
# Other programs write Chrome's events too, without what Kineto says of itself and with other categories.
_OF_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo)"\s*:'
    rb'|"cat"\s*:\s*"(?:user_annotation|cuda_runtime|cuda_driver|hip_runtime|xpu_runtime|python_function|ac2g)"'
)
_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,9})\b')


def identify_rank(path: Path) -> int | None:
    """Return the rank in a trace, else in its name; None if neither has one."""
    found = _DISTRIBUTED.search(_head(path))
    return int(found[1]) if found else rank_from_name(path)


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace, by what it begins with."""
    try:
        return path.name != MERGED and _OF_KINETO.search(_head(path)) is not None
    except DamagedInput:
        return False


def _head(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{path} is damaged or truncated: {error}.") from None
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror}.") from None
