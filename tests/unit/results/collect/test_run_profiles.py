"""The profiles of a run, and the files beside them."""

from __future__ import annotations

import lzma
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results.ask.explanation import explain
from hpcprof.results.collect import run_profiles
from hpcprof.results.collect.collection import collect
from hpcprof.results.collect.run_memory import snapshots_of
from hpcprof.results.collect.run_profiles import (
    foreign_files,
    profiles_of,
    readable,
    runs_below,
    runs_in,
    runs_of_files,
    several_runs_notes,
    why_unprofiled,
)
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers import polling
from hpcprof.submit.schedulers.base import JobState, JobStatus
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run


def test_files_of_other_tools_beside_profiles_are_named(tmp_path: Path) -> None:
    for name in ("a.nvprof", "results.csv", "trace.json", "notes.txt"):
        (tmp_path / name).write_text('"Index","KernelName","gpu-id"\n' if name.endswith(".csv") else "{}")
    nvprof, rocprof = foreign_files(Run("a-1", tmp_path))
    assert nvprof.startswith("a.nvprof is left out: it is a profile of nvprof")
    assert rocprof.startswith("results.csv is left out: it is a table of rocprof")
    assert not foreign_files(Run("a-1", tmp_path, files=(tmp_path / "a.sqlite",)))


def test_profiles_that_end_as_files_of_other_tools_do_are_not_left_out(tmp_path: Path) -> None:
    columns = {"rank": [0], "step": [0], "name": ["gemm"], "kind": ["compute"]}
    pq.write_table(pa.table({**columns, "start_ns": [0], "duration_ns": [5]}), tmp_path / "jobs.parquet")
    assert foreign_files(Run("a-1", tmp_path)) == []


def test_profiles_below_a_folder_of_profiles_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"rank": [0], "step": [0], "name": ["gemm"], "kind": ["compute"]}
    table = pa.table({**columns, "start_ns": [0], "duration_ns": [5]})
    for place in ("", "notes/deep", "old", ".hidden"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / place / "jobs.parquet")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/run.json").write_text("{")
    assert foreign_files(Run("a-1", tmp_path)) == [
        f"profiles below {tmp_path} are left out: open notes/deep and 1 more run by name."
    ]
    # The search reads the first bytes of many files: folders of data are not searched.
    monkeypatch.setattr(run_profiles, "_MAX_FILES_BELOW", 3)
    assert foreign_files(Run("a-1", tmp_path)) == []


def test_folders_of_darshan_logs_are_runs_beside_folders_of_profiles(tmp_path: Path) -> None:
    for place in (".", "a", "b/logs", "c"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / ("job.darshan" if place != "c" else "notes.txt")).touch()
    assert [run.path for run in runs_below(tmp_path)] == [tmp_path, tmp_path / "a", tmp_path / "b/logs"]


def test_logs_of_several_jobs_are_a_run_each(tmp_path: Path) -> None:
    names = [
        "u_a_id7-12_3-1-600-1_1.darshan",
        "u_a_id7-13_3-1-600-1_1.darshan",
        "u_a_id8-9_3-1-601-1_1.darshan",
    ]
    logs = [tmp_path / name for name in (*names, "renamed.darshan")]
    for log in logs:
        log.touch()
    jobs = [tuple(logs[:2]), (logs[2],), (logs[3],)]
    in_folder, named = runs_below(tmp_path), runs_of_files(logs)
    assert [(run.files, run.beside) for run in named] == [((), job) for job in sorted(jobs, key=str)]
    assert [run.id for run in in_folder] == [run.id for run in named] == [run.id for run in runs_in(tmp_path)]
    (note,) = several_runs_notes(named)
    assert "is 3 runs, one for each job: " in note and "(2 Darshan logs)" in note
    (tmp_path / "older").mkdir()
    (tmp_path / "older/a.darshan").touch()
    assert [run.path for run in runs_in(tmp_path)] == [tmp_path] * 3 + [tmp_path / "older"]
    # A snapshot of memory belongs to the only job.
    snapshot = tmp_path / "memory.pickle"
    snapshot.write_bytes(b"\x80\x04segments")
    (both,) = runs_of_files([snapshot, *logs[:2]])
    assert both.beside == (snapshot, *logs[:2])


def test_a_profile_that_is_named_alone_has_no_snapshot_of_its_folder(tmp_path: Path) -> None:
    trace, snapshot = tmp_path / "rank0.sqlite", tmp_path / "memory.pickle"
    trace.touch()
    snapshot.write_bytes(b"\x80\x04segments")
    (whole,), (alone,), (both,) = runs_in(tmp_path), runs_of_files([trace]), runs_of_files([trace, snapshot])
    assert whole.id == alone.id == both.id
    assert [*map(snapshots_of, (whole, alone, both))] == [[snapshot], [], [snapshot]]


def profiled(run: Run) -> Run:
    assert run.manifest is not None
    job = msgspec.structs.replace(run.manifest.job, profiler="nsys")
    return Run(run.id, run.path, msgspec.structs.replace(run.manifest, job=job))


def test_a_run_that_failed_before_it_was_profiled_leads_to_its_status(make_run: MakeRun) -> None:
    failed = profiled(make_run("1", finished="2"))
    says = "no rank wrote a profile, since the job failed: hpcprof status "
    assert why_unprofiled(failed).startswith(says) and why_unprofiled(failed).endswith("run-1 says why")
    assert why_unprofiled(profiled(make_run("2", finished="0"))) == "no rank wrote a profile"
    assert why_unprofiled(make_run("3", finished="0")) == "it ran without a profiler"
    assert why_unprofiled(profiled(make_run("4"))) == ""
    (failed.path / "profiles").mkdir()
    (failed.path / "profiles/rank00000.sqlite.xz").touch()
    assert why_unprofiled(failed) == ""
    (failed.path / "profiles/rank00000.sqlite").touch()
    assert [path.name for path in profiles_of(failed)] == ["rank00000.sqlite"]


def test_a_run_that_ended_without_a_profile_is_explained_by_the_reason(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = profiled(make_run("1", started="2026-11-30T10:00:00Z", finished="0"))
    (unjudged,) = explain(run, open_store(None, tmp_path)).not_judged
    assert unjudged.reason == "no rank wrote a profile"


def test_compressed_profiles_in_a_run_are_unpacked_to_be_read(make_run: MakeRun) -> None:
    run = profiled(make_run("1", finished="0"))
    (run.path / "profiles").mkdir()
    with lzma.open(run.path / "profiles/rank00000.sqlite.xz", "wb") as file:
        file.write(b"SQLite")
    with readable(run) as (run_to_read, unpacked):
        (plain,) = run_to_read.files or ()
        assert (plain.name, plain.read_bytes(), len(unpacked.files)) == ("rank00000.sqlite", b"SQLite", 1)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (
            JobStatus(JobState.RUNNING),
            " has no profiles yet: wait with hpcprof status .* --watch, then collect",
        ),
        (JobStatus(JobState.CANCELLED, "by root"), " has no profiles: it is cancelled: by root"),
    ],
)
def test_a_run_without_profiles_is_waited_for_until_it_has_ended(
    status: JobStatus, says: str, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = profiled(make_run("1"))
    monkeypatch.setattr(polling, "poll", lambda *_: {run.id: status})
    with pytest.raises(HpcprofError, match=f"^{run.id}{says}"):
        collect(run, open_store(None, tmp_path))


@pytest.mark.parametrize(
    ("imported", "profiler"),
    [
        ("numpy", "torch or jax shows"),
        ("torch", "auto shows"),
        ("mpi4py", "auto shows which rank"),
        ("mpi4py, torch", "auto shows where"),
        ("", "auto shows its GPUs and MPI; for a program without them use perf without hpcprof"),
    ],
)
def test_the_hint_how_to_profile_names_no_profiler_that_refuses_the_program(
    imported: str, profiler: str, make_run: MakeRun
) -> None:
    run = make_run()
    (run.path / "t.py").write_text(f"import {imported}\n")
    assert run.manifest is not None
    program = ["python", "t.py"] if imported else ["./solver"]
    job = msgspec.structs.replace(run.manifest.job, workload=None, arguments=program, directory=str(run.path))
    run = Run(run.id, run.path, msgspec.structs.replace(run.manifest, job=job))
    assert f"(hpcprof run --profiler {profiler}" in run_profiles.unprofiled_sentence(run)
