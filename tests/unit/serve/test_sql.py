"""Queries that are executed, that wait, and that are refused at once."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Lock

import anyio
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.common.processes import CommandTimedOut, Completed
from hpcprof.results.store.store import open_store
from hpcprof.serve import sql as sql_module
from hpcprof.serve.query_process import Question, Reply, answer
from hpcprof.serve.sql import MAX_SQL_CHARACTERS, SECONDS, SqlDesk
from hpcprof.serve.tile_cache import TileCache
from hpcprof.serve.tiles import AskAgain, Tiles


def tiles(folder: Path) -> Tiles:
    """Tiles without any run."""
    return Tiles(open_store(None, folder, read_only=True), TileCache(folder / "tiles"))


class Desk(SqlDesk):
    """A desk whose queries wait until one of them goes on, and count how many run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, None, tiles(folder), lambda: self.now)
        self.now = 0.0
        self.running = self.most = 0
        self.two, self.go_on, self._lock = Event(), Event(), Lock()

    def _execute(self, sql: str, runs: object) -> Reply:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running == 2:
                self.two.set()
        assert self.go_on.wait(60)
        with self._lock:
            self.running -= 1
        if sql == "fail":
            raise UsageError("wrong")
        return Reply([sql])


def test_two_readers_are_answered_at_a_time_and_others_wait_for_their_turn(tmp_path: Path) -> None:
    desk, answered = Desk(tmp_path), list[str]()

    async def ask(sql: str) -> None:
        answered.extend((await desk.ask(sql, None, "ann" if sql < "SELECT 3" else "ben")).columns)

    async def ask_all() -> None:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(ask, f"SELECT {number}")
            # Queries that wait take no thread from the pages.
            assert await anyio.to_thread.run_sync(desk.two.wait, 60)
            assert answered == []
            desk.go_on.set()

    anyio.run(ask_all)
    assert sorted(answered) == [f"SELECT {number}" for number in range(5)]
    assert desk.most == 2


def test_sixty_queries_run_a_minute(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.go_on.set()
    for _ in range(60):
        with pytest.raises(UsageError):
            anyio.run(desk.ask, "fail", None)
    with pytest.raises(AskAgain):
        anyio.run(desk.ask, "SELECT", None)
    desk.now = 60.0
    assert anyio.run(desk.ask, "SELECT", None).columns == ["SELECT"]


@pytest.mark.parametrize("sql", ["", " \n", "x" * (MAX_SQL_CHARACTERS + 1), "SELECT '\udcff'"])
def test_sql_that_cannot_be_asked_starts_no_process(sql: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        anyio.run(SqlDesk(tmp_path, None, tiles(tmp_path)).ask, sql, None)


def test_a_query_that_takes_too_long_is_ended_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def run_command(command: object, *, timeout: float, environment: dict[str, str], **_: object) -> None:
        asked.update(timeout=timeout)
        spill = Path(environment["TMPDIR"]) / "spill"
        spill.write_text("rows")
        asked.update(spill=spill)
        raise CommandTimedOut("python", timeout)

    monkeypatch.setattr(sql_module, "run_command", run_command)
    with pytest.raises(UsageError, match=f"took {SECONDS} s, the limit"):
        anyio.run(SqlDesk(tmp_path, None, tiles(tmp_path)).ask, "SELECT 1", None)
    assert asked["timeout"] == SECONDS
    assert not Path(str(asked["spill"])).parent.exists()


@pytest.mark.parametrize(
    ("exit_code", "by"), [(-9, "by signal 9"), (-6, "by signal 6"), (1, "with exit code 1")]
)
def test_of_a_process_that_gave_no_answer_only_its_end_is_said(
    exit_code: int, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Completed(("python",), exit_code, "", "", 0.0)
    monkeypatch.setattr(sql_module, "run_command", lambda *_, **__: done)
    with pytest.raises(UsageError, match=f"ended {by}, without an answer"):
        anyio.run(SqlDesk(tmp_path, None, tiles(tmp_path)).ask, "SELECT 1", None)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DELETE FROM runs", "only reads"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("ATTACH 'x.db' AS x", "only reads"),
        ("PRAGMA journal_mode = WAL", "only reads"),
        ("SELECT a FROM missing", "no such table"),
    ],
)
def test_sql_that_does_more_than_read_is_refused(tmp_path: Path, sql: str, says: str) -> None:
    open_store(None, tmp_path).prepare()
    before = (tmp_path / "hpcprof.db").read_bytes()
    assert says in answer(Question(sql, None, str(tmp_path), None, 30, 10, 1000)).error
    assert [path.name for path in tmp_path.iterdir()] == ["hpcprof.db"]
    assert (tmp_path / "hpcprof.db").read_bytes() == before


def test_a_table_of_events_needs_runs(tmp_path: Path) -> None:
    open_store(None, tmp_path).prepare()
    question = Question("SELECT count(*) FROM kernels", None, str(tmp_path), None, 30, 10, 1000)
    assert answer(question).error == "kernels is a table of events: name the runs to read them from."


def test_an_answer_is_cut_to_its_limits(tmp_path: Path) -> None:
    open_store(None, tmp_path).prepare()
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    found = answer(Question(numbers, None, str(tmp_path), None, 30, 10, 1000))
    assert (found.columns, found.rows, found.truncated) == (["i"], [(i,) for i in range(1, 11)], True)
    found = answer(Question(numbers, None, str(tmp_path), None, 30, 1000, 100))
    assert found.truncated
    assert 0 < len(found.rows) < 100
