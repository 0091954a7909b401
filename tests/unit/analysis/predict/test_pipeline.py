"""Pipelines are rebuilt from their blocks: textbook bubbles, and a job of production."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.predict.pipeline import (
    BACKWARD,
    FORWARD,
    PipelineBlocks,
    Schedule,
    blocks_of,
    pipeline_step,
    predict_pipeline,
)
from hpcprof.common.errors import UsageError
from hpcprof.profiles.readers.operations.table import read_tables
from tests.unit.analysis.predict.test_scale import program

DATA = Path(__file__).parents[3] / "data"


def even(stages: int, microbatches: int) -> PipelineBlocks:
    """Return blocks of a pipeline with forward 1, backward 2, and neither delays nor messages."""
    shape = (stages, microbatches, 1, 1)
    times = {FORWARD: np.ones(shape), BACKWARD: np.full(shape, 2.0)}
    delays = {kind: np.zeros(shape) for kind in times}
    return PipelineBlocks(times, delays, 0.0, np.zeros(1), stages, stages, np.ones(1))


@pytest.mark.parametrize(
    ("stages", "microbatches", "schedule", "chunks", "step"),
    [
        (4, 8, "1f1b", 1, (8 + 3) * 3),
        (8, 16, "1f1b", 1, (16 + 7) * 1.5),
        (2, 1, "1f1b", 1, 12),
        (4, 8, "interleaved", 2, 8 * 3 + 3 * 3 / 2),
        (4, 8, "interleaved", 4, 8 * 3 + 3 * 3 / 4),
        (4, 8, "zero-bubble", 1, 8 * 3 + 3 * (1 + 1 - 1)),
    ],
)
def test_even_stages_take_what_textbooks_say(
    stages: int, microbatches: int, schedule: Schedule, chunks: int, step: float
) -> None:
    wall, bubble = pipeline_step(even(4, 8), stages, microbatches, schedule, chunks)
    assert wall.tolist() == pytest.approx([step])
    assert bubble == pytest.approx(1 - microbatches * 3 * 4 / stages / step)


@pytest.fixture(scope="module")
def job() -> pd.DataFrame:
    """Return the operations of a job of production on 4 stages, with 4 microbatches."""
    return read_tables([DATA / "pipeline_job.parquet"])


def test_a_recorded_schedule_is_rebuilt_within_one_percent(job: pd.DataFrame) -> None:
    same = predict_pipeline(job, 4)
    assert (same.microbatches, same.ranks, same.schedule) == (4, 8, "1f1b")
    assert abs(same.rebuilt_error_pct) < 1
    assert same.value == pytest.approx(2.2144478e9, rel=0.01)
    assert same.low < 2.2144478e9 < same.high
    blocks = blocks_of(job)
    assert blocks.times[FORWARD].shape == (4, 4, 2, 32)
    better = predict_pipeline(job, 4, 4, "zero-bubble")
    assert better.value < same.value
    assert better.bubble_pct < same.bubble_pct
    wider = predict_pipeline(job, 8, 32)
    assert (wider.ranks, wider.microbatches) == (16, 32)


def test_what_cannot_be_rebuilt_is_refused(job: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="6 microbatches are no multiple of 4 stages"):
        predict_pipeline(job, 4, 6, "interleaved")
    with pytest.raises(UsageError, match="--chunks is for --schedule interleaved"):
        predict_pipeline(job, 4, 8, "1f1b", 2)
    halves = job[job["name"] == "backward-compute"].assign(name="backward-weights")
    with pytest.raises(UsageError, match="one forward and one backward operation per microbatch"):
        predict_pipeline(pd.concat([job, halves], ignore_index=True), 4)
    with pytest.raises(UsageError, match="forward and backward operations on several stages"):
        predict_pipeline(program(2)[0], 4)
