"""Times of calls of CUDA's driver, with a driver that does nothing, and one that fails."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.workloads.calls import benchmark
from hpcprof.workloads.calls.benchmark import Driver, quickest, time_calls
from hpcprof.workloads.calls.options import parse


class Library:
    """A driver whose functions return 0, or the status that they are given."""

    def __init__(self, **failing: int) -> None:
        self.failing, self.called = failing, dict[str, int]()

    def __getattr__(self, name: str) -> Any:
        def function(*_: object) -> int:
            self.called[name] = self.called.get(name, 0) + 1
            return self.failing.get(name, 0)

        return function


def test_each_kind_of_call_is_timed_in_each_round() -> None:
    library: Any = Library()
    rows = time_calls(Driver(library), rounds=2)
    assert [kind for kind, *_ in rows] == ["launch", "copy", "wait", "record", "stream_wait", "other"]
    assert all(ns >= 0 for _, _, ns in rows)
    assert library.called["cuMemcpyHtoDAsync_v2"] == library.called["cuLaunchKernel"] == 12 * 200


def test_the_quickest_process_counts_for_each_call() -> None:
    tables = [[("launch", "a", 5), ("copy", "b", 2)], [("launch", "a", 4), ("copy", "b", 3)]]
    assert quickest(tables) == [("launch", "a", 4), ("copy", "b", 2)]


def test_a_driver_without_a_gpu_is_named_with_its_error() -> None:
    library: Any = Library(cuInit=100)
    with pytest.raises(HpcprofError, match="cuInit of CUDA's driver fails with error 100"):
        Driver(library)


def test_a_node_without_the_driver_has_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "_CUDA_DRIVER", "libnowhere.so")
    assert benchmark.run(parse(["--processes", "0"])) == 1
    assert capsys.readouterr().err.startswith(
        "The workload calls needs an NVIDIA GPU and its driver: libnowhere.so"
    )
    assert benchmark.run(UsageError("calls: calls are timed on one rank.")) == 1


@pytest.mark.parametrize(("processes", "least"), [("1", "9"), ("2", "7")])
def test_the_table_is_written_into_the_folder_of_the_run(
    processes: str, least: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([[("launch", "cuLaunchKernel", 9)], [("launch", "cuLaunchKernel", 7)]])
    monkeypatch.setattr(benchmark, "_time_in_process", lambda: next(times))
    monkeypatch.setenv("HPCPROF_RUN_DIR", str(tmp_path))
    assert benchmark.run(parse(["--processes", processes])) == 0
    with (tmp_path / "calls.csv").open(newline="") as file:
        assert [row["ns"] for row in csv.DictReader(file)] == [least]


def test_a_process_that_fails_ends_the_workload_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[benchmark.Row]:
        raise subprocess.CalledProcessError(3, ["python"])

    monkeypatch.setattr(benchmark, "_time_in_process", fail)
    assert benchmark.run(parse([])) == 3


def test_several_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="on one rank"):
        parse([]).validate(2)
