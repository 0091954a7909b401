"""Notes that a user is to see once a day."""

import time
from contextlib import suppress
from hashlib import sha256

from hpcprof.common.paths import modification_time, user_cache

_DAY_SECONDS = 24 * 3600


def is_due(note: str) -> bool:
    """Return True at most once a day for the same note; always where the user's cache cannot be written."""
    path = user_cache() / "notes" / sha256(note.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    if 0 <= time.time() - modification_time(path) < _DAY_SECONDS:
        return False
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return True
