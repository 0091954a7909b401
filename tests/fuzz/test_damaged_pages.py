"""The compiled reader of pages, built with the compiler's sanitizers, on pages with any bytes changed.

tests/unit/profiles/readers/nsys/test_sqlite_pages.py tests that what it reads is what SQLite reads.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# Most take a thirty-thousandth of a second each.
CASES = 100 * int(os.environ.get("HPCPROF_FUZZ_EXAMPLES", "60"))
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of damaged_pages.c; without a compiler the tests are skipped, but not in CI."""
    if not shutil.which("cc"):
        assert not os.environ.get("CI"), "CI installs a C compiler"
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("reader") / "reader"
    source = Path(__file__).with_name("damaged_pages.c")
    warnings = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["cc", *warnings, "-O1", "-g", *SANITIZERS, "-o", program, source], check=True)
    return program


def value(generator: random.Random, column: int) -> int | str | bytes | None:
    """Return an integer, for every third column a text or a blob."""
    if column % 3 == 2:
        return generator.choice([None, "", "text", b"", generator.randbytes(generator.randrange(40))])
    return generator.choice([None, 0, 1, generator.getrandbits(generator.choice([7, 15, 47, 63]))])


@pytest.mark.parametrize(
    ("page", "rows", "columns"),
    [(512, 1, 2), (512, 12_000, 3), (1024, 2000, 6), (4096, 1500, 12), (65536, 5000, 4)],
)
def test_whatever_bytes_pages_hold_no_other_memory_is_touched(
    tmp_path: Path, reader: Path, page: int, rows: int, columns: int
) -> None:
    path = tmp_path / "t.sqlite"
    generator = random.Random(page)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page}")
        database.execute(f"CREATE TABLE t ({', '.join(f'c{i}' for i in range(columns))})")
        cells = [[value(generator, column) for column in range(columns)] for _ in range(rows)]
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * columns)})", cells)
        (root,) = database.execute("SELECT rootpage FROM sqlite_master").fetchone()
    arguments = [path, *map(str, (root, columns, CASES, page + rows))]
    done = subprocess.run([reader, *arguments], capture_output=True, text=True, timeout=540)
    assert (done.returncode, done.stderr) == (0, "")
    # Among so many there are always some that a change does not keep from being read.
    assert not done.stdout.startswith("0 of")
