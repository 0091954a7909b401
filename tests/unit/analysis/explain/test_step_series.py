"""Single steps that take longer, and a level that changes, are told from what steps always do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.explain.step_series import spikes, step_series


def spiking(wall: Sequence[int], span: Sequence[int | None]) -> list[int]:
    """Return the numbers of the steps with these times that are spikes."""
    rows = pd.DataFrame({"rank": 0, "step": range(len(wall)), "wall_ns": wall})
    times = rows.assign(gpu_span_ns=np.array(span, object))
    series = step_series(rows, times)
    found: list[int] = series.steps[spikes(series)].tolist()
    return found


def test_the_last_step_is_no_spike_because_it_runs_to_its_own_end() -> None:
    assert spiking([100] * 9 + [150], [140] * 10) == []


def test_the_last_step_is_a_spike_if_its_work_takes_longer() -> None:
    assert spiking([100] * 9 + [300], [140] * 9 + [290]) == [9]


@pytest.mark.parametrize("step", [3, 9])
def test_without_a_gpu_any_step_but_the_first_may_be_a_spike(step: int) -> None:
    assert spiking([300 if i in (0, step) else 100 for i in range(10)], [None] * 10) == [step]


def test_steps_of_the_rank_that_takes_longest_count() -> None:
    rows = pd.DataFrame({"rank": [0, 0, 1, 1], "step": [0, 1, 0, 1], "wall_ns": [5, 9, 7, 8]})
    series = step_series(rows, rows.assign(gpu_span_ns=[1, 2, 3, 4]))
    assert (series.wall.tolist(), series.ranks.tolist(), series.span.tolist()) == ([7, 9], [1, 0], [3, 2])
