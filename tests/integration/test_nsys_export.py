"""An export while another process would change it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from hpcprof.profiles.readers.nsys.export import open_export

DELETE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=0.1)
database.execute("DELETE FROM t WHERE start > 5")
database.commit()
"""


def test_another_process_cannot_change_an_export_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (start INTEGER)")
        database.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(10)])
    with open_export(path) as export:
        table = export.table("t")
        assert table is not None
        # Again after each way of reading: each has an SQLite of its own, which could lose the other's locks.
        for read in (table.integers, lambda columns: table.read_bulk(columns)[0], table.integers):
            deleted = subprocess.run([sys.executable, "-c", DELETE, path], capture_output=True, text=True)
            assert "database is locked" in deleted.stderr
            assert len(read({"start": -1})["start"]) == 10
    subprocess.run([sys.executable, "-c", DELETE, path], check=True)
