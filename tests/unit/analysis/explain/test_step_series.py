"""Single steps that take longer are told from what steps always do."""

from __future__ import annotations

import pandas as pd
import pytest

from hpcprof.analysis.explain.step_series import spikes
from hpcprof.analysis.steps.run_step import step_series


@pytest.mark.parametrize(
    ("long", "found"),
    [((3,), [3]), ((3, 7), [3, 7]), ((0,), []), ((9,), []), ((4, 9), [4, 9]), ((1, 3, 5, 7), [])],
)
def test_a_long_step_is_a_spike_unless_it_is_the_first_or_the_last_or_one_of_many(
    long: tuple[int, ...], found: list[int]
) -> None:
    wall = [300 if step in long else 100 for step in range(10)]
    series = step_series(pd.DataFrame({"rank": 0, "step": range(10), "wall_ns": wall}))
    assert series.steps[spikes(series)].tolist() == found
