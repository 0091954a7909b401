"""Repeats of a job, in turns with that of a baseline."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.cli import repeats
from hpcprof.cli.repeats import check, in_turns, repeat
from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job

JOB = Job("train", "local", None, ["python", "train.py"], "/new")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_both_sides_take_turns_so_that_a_drift_meets_them_alike(count: int) -> None:
    order = in_turns(count)
    assert Counter(order) == {"A": count, "B": count}
    assert all({*order[i : i + 2]} == {"A", "B"} for i in range(0, 2 * count, 2))
    assert order.startswith("ABBA")


def test_the_job_of_the_baseline_takes_turns_and_must_be_another_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = Job("train", "local", None, ["python", "train.py"], "/old")
    submitted: list[str] = []

    def run_job(site: Any, job: Job) -> Any:
        submitted.append(job.directory)
        return SimpleNamespace(id=str(len(submitted)))

    def compare_runs(a: list[str], b: list[str], _: Any, force: bool) -> Any:
        # The two programs may have different names: whoever names both sides means to compare them.
        assert (a, b, force) == (["1", "4"], ["2", "3"], True)
        return SimpleNamespace(conclusion=lambda: "slower")

    monkeypatch.setattr("hpcprof.submit.sites.model.recorded_site", lambda _: "site")
    monkeypatch.setattr("hpcprof.report.comparison.compare_runs", compare_runs)
    monkeypatch.setattr("hpcprof.results.collect.missing.find_collected_sides", lambda sides, *_: sides)
    monkeypatch.setattr(repeats, "show_comparison", lambda *_: None)
    runs = [SimpleNamespace(submission=SimpleNamespace(job=old))]
    monkeypatch.setattr("hpcprof.results.across.named_baselines.baseline_runs", lambda *_: runs)
    given: Any = (None, tmp_path, run_job)
    repeat(2, "main", "site", JOB, *given)  # type: ignore[arg-type]
    assert submitted == ["/old", "/new", "/new", "/old"]
    with pytest.raises(UsageError, match="the same command in the same folder, /old"):
        repeat(2, "main", "site", old, *given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "here", "said"), [(1, False, "two runs of each"), (2, True, "leave out --here")]
)
def test_a_baseline_needs_repeats_of_jobs(count: int, here: bool, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(count, "main", here)
