"""nsys guarantees no order of rows since 2025.6: what is read is the same in any."""

from __future__ import annotations

import lzma
import random
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from hpcprof.profiles.event_columns import arrow_columns, timeline_tables
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import Timeline
from tests.data.parquet_export import write_folder
from tests.unit.profiles.readers.conftest import DATA


def shuffle(path: Path) -> None:
    """Write the rows of all tables in another order; ids stay those of their rows."""
    choose = random.Random(7)
    with closing(sqlite3.connect(path)) as connection, connection:
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for table in [name for (name,) in listed if not name.startswith("sqlite_")]:
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            columns = ", ".join(f'"{row[1]}"' for row in connection.execute(f'PRAGMA table_info("{table}")'))
            connection.execute(f'DROP TABLE "{table}"')
            # Without a key, which would order them again.
            connection.execute(f'CREATE TABLE "{table}" ({columns})')
            choose.shuffle(rows)
            marks = ", ".join("?" * len(rows[0])) if rows else ""
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)


def rows_of(timeline: Timeline) -> dict[str, Counter[tuple[object, ...]]]:
    """Return how often each row occurs in each table, with texts in the place of their numbers."""
    texts = timeline.strings.tolist()
    return {
        name: Counter(zip(*arrow_columns(getattr(timeline, name), texts).to_pydict().values(), strict=True))
        for name in timeline_tables()
    }


def written(folder: Path, name: str) -> Path:
    """Write an export."""
    path = folder / "rank0.sqlite"
    path.write_bytes(lzma.decompress((DATA / f"{name}.sqlite.xz").read_bytes()))
    return path


@cache
def original(name: str) -> tuple[Timeline, dict[str, Counter[tuple[object, ...]]]]:
    """Return an export as it is, and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        timeline = read(written(Path(folder), name))
    return timeline, rows_of(timeline)


EXPORTS = ["sp_bf16_rank0", "ddp_cap2_rank0", "cuda_graphs", "mpi_stencil_slow_rank1"]


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_with_all_tables_shuffled_has_the_same_rows(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    before, rows = original(name)
    shuffle(path)
    after = read(path)
    assert rows_of(after) == rows
    assert (after.origin.rank, after.origin.gpus, after.origin.start_utc_ns) == (
        (before.origin.rank, before.origin.gpus, before.origin.start_utc_ns)
    )
    assert {*after.origin.facts} == {*before.origin.facts}
    assert {*after.origin.losses} == {*before.origin.losses}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("name", [*EXPORTS, "ddp_mlp_rank0", "planted_late_rank_gpu_rank1"])
def test_a_folder_of_parquet_files_has_the_rows_of_the_export_to_sqlite(
    name: str, seed: int | None, tmp_path: Path
) -> None:
    before, rows = original(name)
    after = read(write_folder(written(tmp_path, name), tmp_path / "rank0_pqtdir", seed))
    assert rows_of(after) == rows
    if seed is None:
        for table in timeline_tables():
            assert arrow_columns(getattr(after, table), after.strings.tolist()).equals(
                arrow_columns(getattr(before, table), before.strings.tolist())
            )
    assert {*after.origin.facts} == {*before.origin.facts}
    assert {*after.origin.losses} == {*before.origin.losses}
