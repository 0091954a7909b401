"""The terminal of the server: errors are printed there, at most one line a second for one cause."""

import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Hashable
from threading import Lock

from hpcprof.common.masking import masked

_MIN_PERIOD_S = 1.0
_FORGET_CAUSE_S = 600.0
"""Seconds after which a cause is told in full again."""

_MAX_KNOWN_CAUSES = 1000
_NUMBER = re.compile(r"\d\w*")
"""Numbers of sockets and tasks and addresses of objects, by which asyncio's messages of one cause differ."""


class CauseLimit(logging.Filter):
    """Passes the first record of a cause, and then one line a second with the number of further records."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, Lock()
        self._told: dict[Hashable, tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written; a repeated record loses its traceback."""
        error = record.exc_info[1] if record.exc_info else None
        trace = error.__traceback__ if error else None
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace else None
        kind = _NUMBER.sub("", str(record.msg).partition("\n")[0])
        again = self.repeats((record.name, record.levelno, kind, type(error), place))
        if again:
            text = masked(" ".join(record.getMessage().split()))
            error_name = f": {type(error).__name__}" if error else ""
            record.msg, record.args = f"{text}{error_name} ({again} times more)", ()
            record.exc_info = record.exc_text = record.stack_info = None
        elif error is not None:
            # An error may quote the request, with its token.
            record.exc_text = masked("".join(traceback.format_exception(error)).rstrip())
        return again is not None

    def repeats(self, cause: Hashable) -> int | None:
        """Return the number of records of a cause left out since the last one; None to leave this out too."""
        now = self._clock()
        with self._lock:
            first, last, left_out = self._told.get(cause, (now, -_MIN_PERIOD_S, 0))
            if now - last < _MIN_PERIOD_S:
                self._told[cause] = first, last, left_out + 1
                return None
            if len(self._told) >= _MAX_KNOWN_CAUSES:
                self._told.clear()
            new = cause not in self._told or now - first > _FORGET_CAUSE_S
            self._told[cause] = (now if new else first), now, 0
            return 0 if new else left_out + 1


LIMIT = CauseLimit()


def limit_logs() -> None:
    """Limit what uvicorn and asyncio write; a cause may come with each connection."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(LIMIT)


def say(sentence: str) -> None:
    """Print a sentence on the server's terminal."""
    again = LIMIT.repeats(sentence)
    if again is not None:
        more = f" ({again} times more)" if again else ""
        print(f"hpcprof: {sentence}{more}", file=sys.stderr, flush=True)
