"""How many queries are executed, and which are refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.results.store.store import open_store
from hpcprof.serve.query_process import Question, Reply, answer
from hpcprof.serve.sql import MOST_CHARACTERS, SqlDesk, TooManyQueries


class Desk(SqlDesk):
    """A desk whose queries ask another one, before they answer."""

    def _execute(self, sql: str, runs: object) -> Reply:
        if sql.startswith("ask "):
            return self.ask(sql.removeprefix("ask "), None)
        if sql == "fail":
            raise UsageError("wrong")
        return Reply(["a"])


def test_two_queries_run_at_a_time() -> None:
    desk = Desk(Path(), None)
    assert desk.ask("ask SELECT", None).columns == ["a"]
    with pytest.raises(TooManyQueries):
        desk.ask("ask ask SELECT", None)
    # Their places are free again.
    assert desk.ask("ask SELECT", None).columns == ["a"]


def test_sixty_queries_run_a_minute() -> None:
    now = [0.0]
    desk = Desk(Path(), None, lambda: now[0])
    for _ in range(60):
        with pytest.raises(UsageError):
            desk.ask("fail", None)
    with pytest.raises(TooManyQueries):
        desk.ask("SELECT", None)
    now[0] = 60.0
    assert desk.ask("SELECT", None)


@pytest.mark.parametrize("sql", ["", " \n", "x" * (MOST_CHARACTERS + 1), "SELECT '\udcff'"])
def test_sql_that_cannot_be_asked_starts_no_process(sql: str) -> None:
    with pytest.raises(UsageError):
        SqlDesk(Path(), None).ask(sql, None)


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


def test_an_answer_is_cut_to_its_limits(tmp_path: Path) -> None:
    open_store(None, tmp_path).prepare()
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    found = answer(Question(numbers, None, str(tmp_path), None, 30, 10, 1000))
    assert (found.columns, found.rows, found.truncated) == (["i"], [(i,) for i in range(1, 11)], True)
    found = answer(Question(numbers, None, str(tmp_path), None, 30, 1000, 100))
    assert found.truncated
    assert 0 < len(found.rows) < 100
