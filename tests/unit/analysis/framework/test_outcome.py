"""What the framework does with the rows of an analysis."""

from __future__ import annotations

import pandas as pd

from hpcprof.analysis.framework.declaration import Analysis, Scope, columns
from hpcprof.analysis.framework.outcome import Outcome, as_declared


def test_rows_are_sorted_as_declared_and_equal_ones_keep_their_order() -> None:
    analysis = Analysis("sizes", "Sizes", Scope.RUN, columns("a b:float c:text"), "a:b", sort_by=("-a", "b"))
    rows = pd.DataFrame({"c": list("vwxyz"), "b": [1.5, 2.0, 0.5, 0.5, 9.0], "a": [1, 3, 3, 3, 2]})
    found = as_declared(Outcome(rows, "why"), analysis)
    assert found.columns() == {"a": [3, 3, 3, 2, 1], "b": [0.5, 0.5, 2.0, 9.0, 1.5], "c": list("xywzv")}
    assert found.reason == "why"
