"""SQL that is to read files, load code, or tell where the server is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.results.ask.event_query import EventFiles, asking
from hpcprof.results.ask.query import query
from hpcprof.results.store.store import open_store


@pytest.mark.parametrize(
    "sql",
    [
        *("PRAGMA database_list", "SELECT * FROM pragma_database_list", "ATTACH '/etc/passwd' AS x"),
        *("SELECT * FROM pragma_table_info('runs')", "VACUUM INTO '/tmp/x'", "SELECT load_extension('x')"),
        *(
            "SELECT readfile('/etc/passwd')",
            "SELECT fts3_tokenizer('simple')",
            "SELECT FTS3_Tokenizer('a', 1)",
        ),
        "SELECT 1; SELECT 2",
    ],
)
def test_a_query_of_results_reads_only_them(sql: str, tmp_path: Path) -> None:
    store = open_store(None, tmp_path)
    store.prepare()
    with pytest.raises(UsageError):
        query(open_store(None, tmp_path, read_only=True), sql)


@pytest.mark.parametrize(
    "sql",
    [
        *("ATTACH '/tmp/x.db'", "COPY (SELECT 1) TO '/tmp/x'", "PRAGMA database_list", "SET threads = 1"),
        *(f"SELECT * FROM {f}('/etc/passwd')" for f in ("read_csv", "read_text", "read_blob", "sniff_csv")),
        *("SELECT * FROM glob('/etc/*')", "SELECT * FROM '/etc/passwd'", "SELECT getenv('HOME')"),
        *("SELECT * FROM duckdb_secrets()", "SELECT * FROM duckdb_extensions()", "LOAD httpfs"),
        *("SELECT * FROM enable_logging()", "SELECT * FROM read_csv('http://169.254.169.254/')"),
    ],
)
def test_a_query_of_events_reads_only_them(sql: str) -> None:
    with pytest.raises(UsageError), asking(sql, EventFiles()) as asked:
        list(asked.rows)


def test_no_setting_of_a_query_tells_where_the_server_is() -> None:
    with asking("SELECT name, value FROM duckdb_settings() WHERE value LIKE '%/%'", EventFiles()) as asked:
        shown = {f"{name}": f"{value}" for name, value in asked.rows}
    folder = shown["temp_directory"].removesuffix("/spill")
    assert all(folder in value for name, value in shown.items() if "director" in name)


def test_json_of_a_query_that_is_malformed_is_no_damage_of_the_database(tmp_path: Path) -> None:
    open_store(None, tmp_path).prepare()
    with pytest.raises(UsageError) as raised:
        query(open_store(None, tmp_path, read_only=True), "SELECT json('[[[')")
    assert "malformed JSON" in str(raised.value) and "move" not in str(raised.value)
