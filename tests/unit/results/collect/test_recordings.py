"""A folder in which processes were recorded several times, or in several forms, is divided into runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.profiles.readers.discovery import find_profiles
from hpcprof.results.collect.profile_ranks import ranks_by_name
from hpcprof.results.collect.run_profiles import runs_below, runs_in, runs_of_files, several_runs_sentence


def trace(folder: Path, name: str, rank: int | None) -> None:
    told = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    (folder / name).write_text(json.dumps({"schemaVersion": 1, **told, "traceEvents": []}))


def names(folder: Path) -> list[list[str]]:
    return [[file.name for file in run.files or find_profiles(folder)] for run in runs_in(folder)]


def test_recordings_of_the_same_processes_are_runs_in_the_order_of_time(tmp_path: Path) -> None:
    for rank, process in enumerate(("host_100", "host_101")):
        for moment in (1700000010000, 1700000000000):
            trace(tmp_path, f"{process}.{moment + rank}.pt.trace.json", rank)
    assert names(tmp_path) == [
        ["host_100.1700000000000.pt.trace.json", "host_101.1700000000001.pt.trace.json"],
        ["host_100.1700000010000.pt.trace.json", "host_101.1700000010001.pt.trace.json"],
    ]
    runs = runs_in(tmp_path)
    assert "is 2 runs, one for each recording" in several_runs_sentence(runs)
    assert [run.id for run in runs_in(tmp_path)] == [run.id for run in runs]


@pytest.mark.parametrize(("second", "runs"), [(1672918364334, 2), (1672918347334, 1)])
def test_processes_of_one_host_that_were_recorded_one_after_another_are_runs(
    tmp_path: Path, second: int, runs: int
) -> None:
    """As in the public EpsilonPiDelta/mlops_1: a program that was started twice, without ranks."""
    trace(tmp_path, "node1_6695.1672918347213.pt.trace.json", None)
    trace(tmp_path, f"node1_6759.{second}.pt.trace.json", None)
    assert len(runs_in(tmp_path)) == runs


def test_recordings_of_one_file_each_are_named_by_their_files(tmp_path: Path) -> None:
    for name in ("warm.json", "measured.json"):
        trace(tmp_path, name, None)
    (alone,) = runs_of_files([tmp_path / "warm.json"])
    assert alone.id.startswith(f"{tmp_path.name}-warm-")
    assert alone.id in {run.id for run in runs_in(tmp_path)}


def test_ranks_whose_names_are_only_moments_are_one_run(tmp_path: Path) -> None:
    trace(tmp_path, "1700000000.123.trace.json", 0)
    trace(tmp_path, "1700000001.456.trace.json", 1)
    assert len(runs_in(tmp_path)) == 1


def test_steps_in_the_names_tell_recordings_apart_and_ranks_do_not(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step in (9, 10):
            trace(tmp_path, f"step{step}_rank{rank}.trace.json", rank)
    assert names(tmp_path) == [
        [f"step9_rank{rank}.trace.json" for rank in (0, 1)],
        [f"step10_rank{rank}.trace.json" for rank in (0, 1)],
    ]


def test_a_server_that_records_two_kinds_of_work_is_two_runs(tmp_path: Path) -> None:
    for rank in (0, 1):
        for work in ("DECODE", "EXTEND"):
            trace(tmp_path, f"170000000{rank}-TP-{rank}-{work}.trace.json", rank)
    assert [len(files) for files in names(tmp_path)] == [2, 2]
    assert all("DECODE" in name for name in names(tmp_path)[0])
    trace(tmp_path, "1700000005-tokenizer.trace.json", None)
    assert [len(files) for files in names(tmp_path)] == [3, 2]


def test_engines_with_ranks_of_their_own_are_a_run_each(tmp_path: Path) -> None:
    """As vLLM names its traces with data parallelism."""
    for engine in (0, 1):
        for rank in (0, 1):
            name = f"dp{engine}_pp0_tp{rank}_dcp0_ep{2 * engine + rank}_rank{rank}"
            trace(tmp_path, f"{name}.17000000{engine}{rank}.pt.trace.json", rank)
    assert [{name[:3] for name in run} for run in names(tmp_path)] == [{"dp0"}, {"dp1"}]


def test_folders_of_single_ranks_are_one_run(tmp_path: Path) -> None:
    """Rebuilt from AMD-AGI/Magpie#77: a server makes a folder for each rank."""
    for told, form in ((False, "rank_{}"), (True, "dp{}_tp0")):
        for rank in (0, 1):
            folder = tmp_path / form[:2] / form.format(rank)
            folder.mkdir(parents=True)
            trace(folder, "model_run.pt.trace.json", rank if told else None)
        (run,) = runs_below(tmp_path / form[:2])
        assert [file.parent.name for file in run.files or ()] == [form.format(rank) for rank in (0, 1)]
    # Two runs of the same rank stay two.
    trace(tmp_path / "dp" / "dp1_tp0", "model_run.pt.trace.json", 0)
    assert len(runs_below(tmp_path / "dp")) == 2


def test_a_helper_beside_the_ranks_is_no_recording(tmp_path: Path) -> None:
    trace(tmp_path, "dp0_tp0_rank0.17000000000.pt.trace.json", 0)
    trace(tmp_path, "dp0_tp1_rank1.17000000001.pt.trace.json", 1)
    trace(tmp_path, "node1_50.async_llm.17000000009.pt.trace.json", None)
    assert len(runs_in(tmp_path)) == 1


def test_files_that_are_named_by_their_hosts_are_ranks_of_one_recording(tmp_path: Path) -> None:
    for host in ("gke-tpu-b309-rq5s", "gke-tpu-b309-xwkz"):
        (tmp_path / f"{host}.xplane.pb").write_bytes(b"")
    assert len(runs_in(tmp_path)) == 1
    assert [*ranks_by_name(find_profiles(tmp_path)).values()] == [0, 1]


def test_the_chrome_trace_beside_an_xplane_is_the_same_recording(tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(b"")
    trace(tmp_path, "host.trace.json.gz", None)
    assert [path.name for path in find_profiles(tmp_path)] == ["host.xplane.pb"]


def test_profiles_that_tell_no_rank_are_a_run_each(tmp_path: Path) -> None:
    """As nsys numbers the reports of one folder: seven exports of a public course (CUDA_Cpp_Intro)."""
    for number in (1, 2, 7):
        trace(tmp_path, f"report{number}.json", None)
    runs = runs_in(tmp_path)
    assert [[file.name for file in run.files or ()] for run in runs] == [
        ["report1.json"],
        ["report2.json"],
        ["report7.json"],
    ]
    assert several_runs_sentence(runs).endswith(
        "; if they are ranks of one run, name them rank0, rank1 and so on"
    )
    assert [run.id for run in runs_of_files([*(file for run in runs for file in run.files or ())])] == [
        run.id for run in runs
    ]
    trace(tmp_path, "report3.json", 1)
    assert len(runs_in(tmp_path)) == 1


def test_hosts_whose_folders_have_moments_of_their_own_are_one_run(tmp_path: Path) -> None:
    """Of a report: vllm-project/tpu-inference#2521."""
    for moment, host in (("36", "node-1"), ("38", "node-0")):
        folder = tmp_path / f"plugins/profile/2026_05_06_04_47_{moment}"
        folder.mkdir(parents=True)
        (folder / f"{host}.xplane.pb").touch()
    (run,) = runs_below(tmp_path)
    assert ranks_by_name(run.files or ()).values() and len(run.files or ()) == 2
    for later in ("2026_05_06_04_49_00/node-2", "2026_05_06_04_47_39/node-1"):
        path = tmp_path / f"plugins/profile/{later}.xplane.pb"
        path.parent.mkdir()
        path.touch()
        assert len(runs_below(tmp_path)) == 3
        path.unlink()
