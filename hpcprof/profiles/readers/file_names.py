"""What a profile's file name tells: its rank."""

from __future__ import annotations

import re
from pathlib import Path

# nsys writes local ranks too when asked to (%q{OMPI_COMM_WORLD_LOCAL_RANK}): they are no ranks.
_RANK = re.compile(r"(?<![A-Za-z])(?<!local[-_.])rank[-_.]?(\d+)", re.IGNORECASE)
# At most seven digits: PyTorch's own names hold a time stamp there (host_pid.1700000000000.pt.trace.json).
_NUMBER = re.compile(r"\.(\d{1,7})$")
_SUFFIX = re.compile(
    r"((\.pt)?\.trace\.json(\.gz)?|\.sqlite|\.nsys-rep|\.ncu-repz?|(\.details|\.raw)?\.csv(\.gz)?)$",
    re.IGNORECASE,
)


def rank_from_name(path: Path) -> int | None:
    """Return the rank in ``rank00003.sqlite``, ``rank3.sqlite``, ``name.3.sqlite`` or ``a_rank-3_b.sqlite``.

    None where the name tells none.
    """
    stem = _SUFFIX.sub("", path.name)
    found = _RANK.search(stem) or _NUMBER.search(stem)
    return int(found[1]) if found else None
