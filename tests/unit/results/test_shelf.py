"""Rows on a shelf, in the order in which they begin."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcprof.analysis.collectives.across_ranks import by_begin, in_order, joined
from hpcprof.analysis.framework.declaration import Analysis, Scope, columns
from hpcprof.analysis.framework.outcome import Outcome, as_declared
from hpcprof.results import shelf
from hpcprof.results.shelf import Shelf, put_table, sorted_rows

ANALYSIS = Analysis("listed", "Listed", Scope.RUN, columns("op:text seq bytes latency_ns"), "m:f")


def table(part: int, rows: int, first: int, missing: bool = False) -> dict[str, NDArray[Any]]:
    """Return rows that begin at random from a moment on, many of them together."""
    draw = np.random.default_rng(part)
    sizes = draw.integers(0, 3, rows).astype(object)
    if missing:
        sizes[::2] = None
    return by_begin(
        {
            "op": np.full(rows, f"op {part}", object),
            "seq": draw.integers(0, 4, rows),
            "bytes": sizes if missing else sizes.astype(np.int64),
            "latency_ns": np.arange(rows) + 1000 * part,
            "begin": first + draw.integers(0, 300, rows),
        }
    )


def test_rows_that_begin_together_are_in_the_order_of_their_numbers() -> None:
    rows = table(5, 400, 0)
    rows["latency_ns"] = np.random.default_rng(1).integers(0, 3, 400)
    order = np.lexsort((rows["seq"], rows["bytes"], rows["latency_ns"], rows["seq"], rows["begin"]))
    for name, values in in_order(rows).items():
        assert values.tolist() == rows[name][order].tolist(), name


def test_the_process_of_a_shelf_reads_it_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 0)
    shelf = Shelf()
    place = shelf.put({"rank": 0})
    assert not shelf.shared.file.exists()
    with shelf.shared.opened() as get:
        assert get([place]) == [{"rank": 0}]


def test_another_process_reads_a_shelf_and_no_other_file_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf()
    places = [shelf.put({"rank": rank}) for rank in range(3)]
    shelf.flush()
    monkeypatch.setattr("hpcprof.results.shelf._HERE", {})
    with shelf.shared.opened() as get:
        assert get(places[1:]) == [{"rank": 1}, {"rank": 2}]
    (tmp_path / "other").write_bytes(b"0123456789abcdef and more")
    os.mkfifo(tmp_path / "pipe")
    for elsewhere in (tmp_path / "other", tmp_path / "pipe", tmp_path / "none"):
        with pytest.raises(FileNotFoundError), replace(shelf.shared, file=elsewhere).opened():
            pass


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_BLOCK", 7)
    monkeypatch.setattr(shelf, "_AT_ONCE", 20)


@pytest.mark.parametrize("missing", [False, True])
def test_rows_from_a_shelf_come_in_the_order_in_which_all_at_once_are_sorted(missing: bool) -> None:
    tables = [table(part, 90, 100 * part, missing and part == 2) for part in range(5)]
    place = Shelf()
    blocks = [block for one in tables for block in put_table(one, place)]
    found = sorted_rows(blocks, place, ANALYSIS, "why")
    whole = as_declared(Outcome(in_order(joined(tables))), ANALYSIS)
    assert found.columns() == whole.columns()
    assert found.reason == "why"
    batches = [len(batch["seq"]) for batch in found.batches(10)]
    assert sum(batches) == 450 and max(batches) == 10
    # What is read again is the same.
    assert found.columns() == whole.columns()


def test_few_rows_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Shelf()
    blocks = [block for part in range(40) for block in put_table(table(part, 50, 300 * part), place)]
    most = 0

    def counted(columns: dict[str, NDArray[Any]], objects: frozenset[str]) -> dict[str, NDArray[Any]]:
        nonlocal most
        most = max(most, len(columns["seq"]))
        return in_order(columns, objects)

    monkeypatch.setattr(shelf, "in_order", counted)
    assert sum(len(batch["seq"]) for batch in sorted_rows(blocks, place, ANALYSIS, "").batches(100)) == 2000
    assert most < 120


def test_without_rows_there_are_columns_and_a_reason() -> None:
    found = sorted_rows([], Shelf(), ANALYSIS, "nothing to list")
    assert found.columns() == {"op": [], "seq": [], "bytes": [], "latency_ns": []}
    assert found.reason == "nothing to list" and [*found.batches(10)] == []
