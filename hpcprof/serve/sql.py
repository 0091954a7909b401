"""SQL of readers: few queries at a time, each in a process of its own with limits."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import msgspec

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.processes import CommandTimedOut, run_command
from hpcprof.serve.query_process import Question, Reply
from hpcprof.submit.runs.directory import Run

MOST_CHARACTERS = 20_000
MOST_ROWS = 10_000
MOST_BYTES = 8 << 20
SECONDS = 30
"""How long a query may take."""

_AT_A_TIME = 2
_A_MINUTE = 60
_START_SECONDS = 30
"""How much longer the process may take to start, on a busy machine."""

_COMMAND = (sys.executable, "-m", "hpcprof.serve.query_process")


class TooManyQueries(HpcprofError):
    """More queries are asked than the server executes."""

    def __init__(self) -> None:
        super().__init__(
            f"too many queries: at most {_AT_A_TIME} run at a time and {_A_MINUTE} a minute; ask again."
        )


class SqlDesk:
    """Executes queries on the results database, or on the events of runs.

    Parameters
    ----------
    runs_dir : Path
    db : str or None
        As for `hpcprof.results.store.store.open_store`.
    clock : callable
        Returns seconds that only grow.
    """

    def __init__(self, runs_dir: Path, db: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs_dir, self._db, self._clock = runs_dir, db, clock
        self._lock = Lock()
        self._running = 0
        self._begun: deque[float] = deque()

    def ask(self, sql: str, runs: Sequence[Run] | None) -> Reply:
        """Execute a query; ``runs`` are those whose events are asked, None asks the results database.

        Raises
        ------
        UsageError
            If the SQL is wrong, too long, or takes too long.
        TooManyQueries
            If too many are asked.
        """
        if not sql.strip():
            raise UsageError("write a SELECT.")
        if len(sql) > MOST_CHARACTERS:
            raise UsageError(f"the SQL has {len(sql):,} characters; the limit is {MOST_CHARACTERS:,}.")
        self._admit()
        try:
            return self._execute(sql, runs)
        finally:
            with self._lock:
                self._running -= 1

    def _admit(self) -> None:
        with self._lock:
            now = self._clock()
            while self._begun and self._begun[0] <= now - 60:
                self._begun.popleft()
            if self._running >= _AT_A_TIME or len(self._begun) >= _A_MINUTE:
                raise TooManyQueries
            self._begun.append(now)
            self._running += 1

    def _execute(self, sql: str, runs: Sequence[Run] | None) -> Reply:
        named = None if runs is None else [(run.id, str(run.path)) for run in runs]
        question = Question(sql, self._db, str(self._runs_dir), named, SECONDS, MOST_ROWS, MOST_BYTES)
        try:
            text = msgspec.json.encode(question).decode()
        except UnicodeEncodeError:
            raise UsageError("the SQL is not valid UTF-8.") from None
        try:
            done = run_command(_COMMAND, timeout=SECONDS + _START_SECONDS, text_input=text)
        except CommandTimedOut:
            raise UsageError(f"the query takes longer than {SECONDS} s.") from None
        try:
            reply = msgspec.json.decode(done.stdout, type=Reply)
        except msgspec.MsgspecError:
            raise UsageError("the query needs more memory or time than the server gives it.") from None
        if reply.error:
            raise UsageError(reply.error)
        return reply
