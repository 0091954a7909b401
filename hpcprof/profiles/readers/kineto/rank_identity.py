"""The kind and the rank of a trace, found without reading all of it."""

from __future__ import annotations

import re
from pathlib import Path

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.gzip_file import content_of
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
    found = _DISTRIBUTED.search(content_of(path, _HEAD_BYTES))
    return int(found[1]) if found else rank_from_name(path)


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace, by what it begins with."""
    try:
        return path.name != MERGED and _OF_KINETO.search(content_of(path, _HEAD_BYTES)) is not None
    except DamagedInput:
        return False
