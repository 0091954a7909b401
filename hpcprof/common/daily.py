"""Notes that a user is to see once a day."""

import time
from contextlib import suppress
from hashlib import sha256

from hpcprof.common.paths import time_written, user_cache

_DAY_SECONDS = 24 * 3600


def is_due(note: str) -> bool:
    """Return whether a note was not due in the last day, and remember that it is, where that is possible."""
    path = user_cache() / "notes" / sha256(note.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    if 0 <= time.time() - time_written(path) < _DAY_SECONDS:
        return False
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return True
