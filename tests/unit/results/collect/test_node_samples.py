"""The facts that a run tells beside the samples of its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.results.collect.node_samples import items_per_step
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import StepLine


def _lines(*items: int) -> tuple[StepLine, ...]:
    return tuple(
        StepLine(10 * at, float(at), 10, 1, 1, items=count, item="token" if count else "")
        for at, count in enumerate(items, 1)
    )


def test_the_tokens_of_a_step_are_those_of_all_ranks(tmp_path: Path) -> None:
    run = Run("run", tmp_path)
    both = {0: _lines(100, 2100, 4100), 1: _lines(0, 1000, 2000)}
    assert items_per_step(run, both, 2) == {"items_per_step": pytest.approx(300.0), "item": "token"}
    # Of four ranks, the lines of two were read.
    assert items_per_step(run, both, 4)["items_per_step"] == pytest.approx(600.0)


def test_without_counts_nothing_is_said(tmp_path: Path) -> None:
    run = Run("run", tmp_path)
    assert items_per_step(run, {0: _lines(0, 0), 1: _lines(5)}, 2) == {}
    assert items_per_step(run, {}, 0) == {}
