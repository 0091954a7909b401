"""The framework's treatment of an analysis's rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.declaration import Analysis, Scope, columns
from hpcprof.analysis.framework.outcome import (
    Outcome,
    Values,
    columns_of,
    data_frame,
    in_declared_columns,
    joined_tables,
    no_rows,
)


def test_rows_are_sorted_as_declared_and_equal_ones_keep_their_order() -> None:
    analysis = Analysis("sizes", "Sizes", Scope.RUN, columns("a b:float c:text"), "a:b", sort_by=("-a", "b"))
    rows = pd.DataFrame({"c": list("vwxyz"), "b": [1.5, 2.0, 0.5, 0.5, 9.0], "a": [1, 3, 3, 3, 2]})
    found = in_declared_columns(Outcome(rows, "why"), analysis)
    assert found.columns == {"a": [3, 3, 3, 2, 1], "b": [0.5, 0.5, 2.0, 9.0, 1.5], "c": list("xywzv")}
    assert found.reason == "why"


def test_columns_need_no_data_frame_and_keep_what_is_missing() -> None:
    analysis = Analysis(
        "sizes", "Sizes", Scope.RANK, columns("rank a b:float c:text"), "a:b", sort_by=("-a",)
    )
    table: dict[str, Values] = {"a": np.array([1, 3]), "b": np.array([np.nan, 0.5]), "c": [None, "x"]}
    found = in_declared_columns(Outcome(table), analysis, rank=7)
    assert found.columns == {"rank": [7, 7], "a": [3, 1], "b": [0.5, None], "c": ["x", None]}
    assert found.part(1, 2).columns == {"rank": [7], "a": [1], "b": [None], "c": [None]}
    assert found.frame["c"].tolist() == ["x", None]


def test_columns_without_rows_are_those_that_are_declared() -> None:
    analysis = Analysis("sizes", "Sizes", Scope.RUN, columns("a b:float"), "a:b")
    found = in_declared_columns(Outcome(columns_of([]), "why"), analysis)
    assert (found.count, [*found.frame.columns], found.columns) == (0, ["a", "b"], {"a": [], "b": []})


def test_tables_of_ranks_are_joined_and_keep_whole_numbers_beside_what_is_missing() -> None:
    analysis = Analysis("sizes", "Sizes", Scope.RANK, columns("rank a b:float c:text"), "a:b")
    largest = 2**63 - 1
    rows: dict[str, Values] = {"a": [largest, None], "b": np.array([np.nan, 0.5]), "c": ["x", None]}
    joined = joined_tables(
        [in_declared_columns(Outcome(rows), analysis, 0), in_declared_columns(no_rows("why"), analysis, 1)]
    )
    assert joined.columns == {"rank": [0, 0], "a": [largest, None], "b": [None, 0.5], "c": ["x", None]}
    assert joined.reasons == {1: "why"}
    assert joined.arrow().to_pylist() == joined.rows
    assert data_frame(joined.declared, joined.values, exact=True)["a"].tolist() == [largest, pd.NA]
