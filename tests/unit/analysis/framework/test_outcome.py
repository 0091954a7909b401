"""The framework's treatment of an analysis's rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.declaration import Analysis, Scope, columns
from hpcprof.analysis.framework.outcome import Outcome, Values, columns_of, in_declared_columns


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
