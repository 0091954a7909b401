"""Aligning clocks by the ends of collectives."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analysis.collectives import clock_alignment


def test_long_runs_are_aligned_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    common = np.cumsum(random.integers(10_000, 20_000, 100))
    end = common[:, None] + random.integers(0, 500, (100, 5)) + np.array([0, 10**9, -(10**6), 7, 50_000])
    at_once = clock_alignment._align(end)
    monkeypatch.setattr(clock_alignment, "_ROWS_AT_ONCE", 33)
    in_parts = clock_alignment._align(end)
    assert (in_parts.offset == at_once.offset).all()
    assert (in_parts.uncertainty == at_once.uncertainty).all()
    assert (at_once.uncertainty < 500).all()


def test_delays_that_grow_are_no_drift_of_a_clock() -> None:
    # No clock gains a thousandth: these messages grow.
    own = np.cumsum(np.full(16, 1e6))[:, None]
    assert clock_alignment.drift(own, 0.4 * own).tolist() == [0.0]
    assert clock_alignment.drift(own, 4e-5 * own) == pytest.approx(4e-5)
