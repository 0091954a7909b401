"""The order of findings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.explain.arrangement import (
    only_hidden,
    order_findings,
    with_certain_interval,
    without_profiler_drift,
)
from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.findings import Judged
from hpcprof.analysis.explain.intervals import Interval
from hpcprof.analysis.steps.run_step import step_series
from tests.unit.explanations import MS, finding

NOISE = np.tile([0, 200_000, -150_000, 100_000, -100_000], 4)
"""Differences of steps in ns, shape (20,)."""


def test_a_finding_of_low_confidence_counts_with_its_lower_bound() -> None:
    """A cost of 58.9 % of low confidence came after one of 7.4 %."""
    sure = replace(finding(7, cause=Cause.HOST_SYNC), confidence="medium")
    large = replace(finding(59, 30), confidence="low")
    doubtful = replace(finding(59, 1), confidence="low", where="backward")
    unknown = finding(None, 0, cause=Cause.CAPTURE_INCOMPLETE)
    assert order_findings([unknown, doubtful, sure, large], None, {}) == (large, sure, doubtful, unknown)


def test_a_cost_for_which_the_gpu_waits_is_not_told_to_be_hidden() -> None:
    """Rebuilt from a public export of OpenACC: the GPU waited for allocations in 13 % of a step."""
    waited, behind = finding(7), replace(finding(7), where="forward", evidence=())
    assert only_hidden([waited, behind, behind], [], 100 * MS) == [behind]
    assert only_hidden([waited], [], 1_000 * MS) == [waited]
    assert only_hidden([behind], [replace(behind, saving_ns=9)], 100 * MS) == []


def test_a_drift_that_the_profiler_may_have_caused_is_no_finding() -> None:
    """Steps of GPT-2 took 69 ms while recorded, then 75, and 63 without what nsys may add; kernels 57."""
    drift, work = finding(2, 1.5, cause=Cause.STEP_DRIFT), finding(4)
    level = np.arange(20) > 13
    account = pd.DataFrame({"rank": 0, "step": range(20), "wall_ns": (69 + 6 * level) * MS + NOISE})
    series = step_series(account)
    host, gpu = (account.assign(compute_ns=(57 + more * level) * MS) for more in (2, 6))
    judged, (doubt,) = without_profiler_drift([drift, work], series, host, 8 * MS)
    assert judged == [work]
    assert doubt.what == Cause.STEP_DRIFT and "the profiler, which slows the host" in doubt.reason
    for table, by_profiler in ((host, 1 * MS), (host, 0), (gpu, 8 * MS)):
        assert without_profiler_drift([drift, work], series, table, by_profiler) == ([drift, work], [])


def test_no_saving_and_no_interval_ends_beyond_the_step() -> None:
    wide, narrow = (
        replace(finding(saving), saving_high_ns=high * MS) for saving, high in ((200, 300), (80, 190))
    )
    first, second = order_findings([narrow, wide], 100 * MS, {})
    assert (first.saving_ns, first.share_pct) == (100 * MS, 100)
    assert (second.saving_ns, (second.saving_high_ns or 0) // MS) == (80 * MS, 100)


def test_a_drift_narrows_what_the_steps_leave_open_and_nothing_else() -> None:
    """The interval of a cause of a drift was that of the drift, whatever its host leaves open."""
    interval = Interval(-60.0, 260.0, beside_steps=(30.0, 40.0))
    judged = Judged(None, (0,), 100.0, np.ones(6), interval)  # type: ignore[arg-type]
    level = replace(finding(50, 30), saving_high_ns=65 * MS)
    found = with_certain_interval(judged, level).interval
    assert (found.low, found.high) == pytest.approx((50.0, 150.0))
