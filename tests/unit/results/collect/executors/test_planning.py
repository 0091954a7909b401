"""The number of processes that share tasks, and their chunks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.results.collect.executors import planning
from hpcprof.results.collect.executors.planning import chunks, usable_cpus, worker_count

work_of_tasks = st.lists(st.floats(0, 100), max_size=200)


@pytest.mark.parametrize(
    ("work", "jobs", "workers"),
    [
        ([], 8, 0),
        ([100.0], 8, 0),
        ([100.0] * 4, 1, 0),
        ([0.01] * 64, 2, 0),
        ([0.1] * 64, 2, 2),
        ([3.0] * 4, 16, 4),
        # One large task takes as long with workers as without.
        ([50.0, 0.1, 0.1], 3, 0),
        ([50.0, 50.0, 0.1], 3, 3),
    ],
)
def test_workers_start_where_they_save_more_than_starting_costs(
    work: list[float], jobs: int, workers: int
) -> None:
    assert worker_count(work, jobs) == workers


def test_workers_that_have_started_share_little_work_too() -> None:
    assert worker_count([0.01] * 64, 2, started=True) == 2
    assert worker_count([0.001] * 16, 2, started=True) == 0


@given(work_of_tasks, st.integers(1, 20))
def test_every_task_is_in_one_chunk_and_large_ones_come_first(work: list[float], workers: int) -> None:
    found = chunks(work, workers)
    assert sorted(task for chunk in found for task in chunk) == [*range(len(work))]
    amounts = [work[task] for chunk in found for task in chunk]
    assert amounts == sorted(amounts, reverse=True)


@given(work_of_tasks, st.integers(1, 20))
def test_no_chunk_is_more_than_its_share_unless_it_is_one_task(work: list[float], workers: int) -> None:
    share = sum(work) / workers * planning._CHUNK_SHARE
    for chunk in chunks(work, workers):
        assert len(chunk) == 1 or sum(work[task] for task in chunk) <= share + 1e-9
        assert len(chunk) <= 32


def test_small_tasks_come_several_at_a_time() -> None:
    assert max(map(len, chunks([0.02] * 256, 2))) > 4


def test_the_last_chunks_are_single_tasks_so_that_workers_end_together() -> None:
    sizes = [*map(len, chunks([0.1] * 4096, 16))]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 32
    assert sizes[-64:] == [1] * 64


@pytest.mark.parametrize(
    ("files", "groups", "cpus"),
    [
        ({"job/cpu.max": "150000 100000", "cpu.max": "max 100000"}, "0::/job", 1),
        ({"job/cpu.max": "max 100000"}, "0::/job", 8),
        ({"cpu.max": "300000 100000"}, "0::/job/step", 3),
        ({"job/cpu.max": "400000 100000", "job/step/cpu.max": "200000 100000"}, "0::/job/step", 2),
        (
            {"cpu/job/cpu.cfs_quota_us": "250000", "cpu/job/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/job\n3:memory:/job",
            2,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/", 8),
        ({}, "", 8),
    ],
)
def test_the_quota_of_a_control_group_limits_the_cpus(
    files: dict[str, str], groups: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(groups)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(planning, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(planning, "_CGROUPS", tmp_path)
    assert usable_cpus() == cpus
