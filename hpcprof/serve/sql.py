"""SQL of readers: few queries at a time, each in a process of its own with limits."""

import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from hpcprof.common.decode import from_json
from hpcprof.common.errors import UsageError
from hpcprof.common.processes import CommandTimedOut, run_command
from hpcprof.common.units import format_bytes
from hpcprof.runs.directory import Run
from hpcprof.serve.query_process import MEMORY_BYTES, AskedRun, Question, Reply
from hpcprof.serve.tiles import AskAgain, Tiles
from hpcprof.serve.turns import Turns

MAX_SQL_CHARACTERS = 20_000
MAX_ROWS = 10_000
MAX_BYTES = 8 << 20
SECONDS = 30
"""Maximum seconds of a query."""
_TIMED_OUT_SENTENCE = f"the query took {SECONDS} s, the limit, and was ended."

_MAX_RUNNING_QUERIES = 3
_MAX_QUERIES_A_MINUTE = 60
_MAX_WAITING_QUERIES = 20


class SqlDesk:
    """Executes queries on the results database, or on the events of runs.

    ``tiles`` keep the events of runs whose collect kept none. ``clock`` returns seconds that only grow.
    Desks of several folders may share their ``turns``.
    """

    def __init__(
        self,
        runs_dir: Path,
        db: str | None,
        tiles: Tiles,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
    ) -> None:
        self._runs_dir, self._db, self._tiles, self._clock = runs_dir, db, tiles, clock
        self._turns = turns or query_turns()
        self._asked: dict[str, deque[float]] = {}

    async def ask(self, sql: str, runs: Sequence[Run] | None, reader: str = "") -> Reply:
        """Execute a query on results, or events of ``runs``, once those that its reader asked before end.

        Raises UsageError if the SQL is wrong, too long or takes too long, and AskAgain if too many are asked
        or profiles take longer to read.
        """
        if not sql.strip():
            raise UsageError("write a SELECT.")
        if len(sql) > MAX_SQL_CHARACTERS:
            raise UsageError(f"the SQL has {len(sql):,} characters; the limit is {MAX_SQL_CHARACTERS:,}.")
        self._admit(reader)
        async with self._turns.turn(reader):
            # A thread of its own, so that queries hold up no page.
            return await run_sync(self._execute, sql, runs, limiter=CapacityLimiter(1))

    def _admit(self, reader: str) -> None:
        now = self._clock()
        for name, times in [*self._asked.items()]:
            while times and times[0] <= now - 60:
                times.popleft()
            if not times:
                del self._asked[name]
        moments = self._asked.setdefault(reader, deque())
        if len(moments) >= _MAX_QUERIES_A_MINUTE:
            raise AskAgain(f"too many queries: at most {_MAX_QUERIES_A_MINUTE} a minute; ask again.")
        moments.append(now)

    def _execute(self, sql: str, runs: Sequence[Run] | None) -> Reply:
        named = None if runs is None else [self._with_events(run) for run in runs]
        question = Question(sql, self._db, str(self._runs_dir), named, SECONDS, MAX_ROWS, MAX_BYTES)
        try:
            text = msgspec.json.encode(question).decode()
        except UnicodeEncodeError:
            raise UsageError("the SQL is not valid UTF-8.") from None
        # A process that is ended cannot remove its files.
        with tempfile.TemporaryDirectory(prefix="hpcprof-sql-") as folder:
            environment = {**os.environ, "TMPDIR": folder}
            try:
                result = run_command(_command(), timeout=SECONDS, text_input=text, environment=environment)
            except CommandTimedOut:
                raise UsageError(_TIMED_OUT_SENTENCE) from None
        try:
            reply = from_json(result.stdout, Reply)
        except msgspec.MsgspecError:
            raise UsageError(_end_sentence(result.exit_code)) from None
        if reply.error:
            raise UsageError(reply.error)
        return reply

    def _with_events(self, run: Run) -> AskedRun:
        spare, missing = self._tiles.of(run).keep_events(self._clock() + SECONDS)
        return AskedRun(run.id, str(run.path), str(spare), missing)


def query_turns() -> Turns:
    """Return the turns of readers whose queries share this machine."""
    return Turns(_MAX_RUNNING_QUERIES, _MAX_WAITING_QUERIES)


def _end_sentence(exit_code: int) -> str:
    if exit_code == -signal.SIGALRM:
        return _TIMED_OUT_SENTENCE
    end = f"by signal {-exit_code}" if exit_code < 0 else f"with exit code {exit_code}"
    limit = f"it may use {format_bytes(MEMORY_BYTES)} of memory"
    return f"the process of the query ended {end}, without an answer; {limit}."


def _command() -> list[str]:
    """Return the command of a query's process, which imports from where this one does."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from hpcprof.serve.query_process import main; main()"
    return [sys.executable, "-c", program]
