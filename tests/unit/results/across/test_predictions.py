"""Predictions are scored by runs of the same program."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.results.across import predictions
from hpcprof.results.across.predictions import (
    KeptPrediction,
    kept_predictions,
    predict_runs,
    score_predictions,
)
from hpcprof.results.store.database import store_url
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import RunRow
from hpcprof.runs.directory import Run


def test_a_prediction_is_not_scored_by_a_run_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(store_url(str(tmp_path / "hpcprof.db"), Path()))
    store.prepare()
    for name, program in (("small", "train"), ("large", "train"), ("other", "solve"), ("imported", None)):
        store.put_profiles(RunRow(name, str(tmp_path / name), None, None, None, program), [])
    monkeypatch.setattr(predictions, "measured_step", lambda run, store: (1000, 4))
    made = KeptPrediction("small", 2, 4, "weak", 900, 800, 1100, 950, 970, "2026-01-01T00:00:00+00:00")
    predictions._write(tmp_path, [made])
    with pytest.raises(UsageError, match=r"no prediction is for the 4 ranks of other .*; predicted: none\."):
        score_predictions(tmp_path, Run("other", tmp_path), store)
    assert kept_predictions(tmp_path) == [made]
    for name in ("large", "imported"):
        (scored,) = score_predictions(tmp_path, Run(name, tmp_path), store)
        assert (scored.actual, scored.checked_by) == (1000, name)


def test_steps_of_a_table_that_overlap_are_not_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"stage": 0, "name": "task", "kind": "compute", "duration_ns": 9000}
    rows = [row | {"rank": r, "step": s, "start_ns": 10000 * (s + r)} for s in range(9) for r in range(4)]
    monkeypatch.setattr(predictions, "operations_of", lambda run, store: pd.DataFrame(rows))
    store = Store(store_url(str(tmp_path / "hpcprof.db"), Path()))
    with pytest.raises(HpcprofError, match="the steps overlap"):
        predict_runs([Run("tasks", tmp_path)], store, [8])
