"""Collecting real profiles into a store, and reporting from it, through the command line."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hpcprof as package
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.cli.main import cli
from hpcprof.profiles.readers.declaration import ProfileContent
from tests.conftest import Hpcprof
from tests.data import rocprof_profiles
from tests.integration.conftest import Database, on_sqlite, unpack_mpi

DATA = Path(__file__).parents[1] / "data"


def dump(tmp_path: Path) -> list[str]:
    """Return everything that the store holds, in an order that does not depend on when it was written."""
    with sqlite3.connect(tmp_path / "runs/hpcprof.db") as store:
        return sorted(store.iterdump())


def rows(hpcprof: Hpcprof, folder: Path, analysis: str) -> list[dict[str, object]]:
    done = hpcprof("report", str(folder), "--analysis", analysis, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_a_folder_that_hpcprof_did_not_make_is_adopted_and_csv_holds_the_rows_of_json(
    hpcprof: Hpcprof, profiles: Path
) -> None:
    done = hpcprof("collect", str(profiles))
    assert done.returncode == 0, done.stderr
    assert "2 profiles collected, 0 unchanged, 0 skipped" in done.stdout
    report = hpcprof("report", str(profiles))
    assert report.returncode == 0, report.stderr
    assert "matmul_1" in report.stdout
    assert "2 x NVIDIA H200" in report.stdout
    lines = hpcprof("report", str(profiles), "--analysis", "kernels", "--format", "csv").stdout.splitlines()
    assert lines[0] == ",".join(column.name for column in ANALYSES["kernels"].columns)
    assert len(lines) == 1 + len(rows(hpcprof, profiles, "kernels"))


def test_a_run_whose_number_of_ranks_was_not_stored_gets_it_from_the_next_collect(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    reference = dump(tmp_path)
    with sqlite3.connect(tmp_path / "runs/hpcprof.db") as store:
        assert store.execute("SELECT ranks FROM runs").fetchone()[0] is not None
        store.execute("UPDATE runs SET ranks = NULL")
    assert "0 profiles collected" in hpcprof("collect", str(profiles)).stdout
    assert dump(tmp_path) == reference


@pytest.mark.parametrize("mebibytes", [500, 1000])
def test_a_collect_with_little_memory_ends_in_results_or_a_sentence(
    mebibytes: int, profiles: Path, tmp_path: Path
) -> None:
    limited = f"ulimit -v {mebibytes << 10}; exec {shlex.quote(sys.executable)} -m hpcprof collect"
    done = subprocess.run(
        ["sh", "-c", f"{limited} {shlex.quote(str(profiles))}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if mebibytes == 500:
        assert done.returncode == 1
        assert "may map 500 MiB" in done.stderr and "Traceback" not in done.stderr
    else:
        assert (done.returncode, done.stderr.count("skipped")) == (0, 0), done.stderr


@on_sqlite
def test_the_name_that_collect_prints_is_accepted_where_only_the_database_is_left(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    shutil.copytree(profiles, profiles.with_name("again"))
    place = ("--db", database.url)
    names = [
        hpcprof("collect", folder, *place).stdout.partition(":")[0] for folder in (str(profiles), "again")
    ]
    timelines = hpcprof("export", names[0], "--to", "perfetto", "timelines", *place)
    assert timelines.returncode == 0, timelines.stderr
    before = hpcprof("report", str(profiles), *place).stdout
    for folder in (profiles, profiles.with_name("again")):
        shutil.rmtree(folder)
    assert hpcprof("report", names[0], *place).stdout == before
    for words in (
        ("report", names[0], "--html", "page.html"),
        ("report", names[0], "--analysis", "compare", "--against", names[1]),
        ("compare", *names),
        ("export", names[0], "--to", "csv", "tables"),
    ):
        done = hpcprof(*words, *place)
        assert done.returncode == 0, done.stderr
    assert package.open(names[1], db=database.url).ranks == [0, 1]
    done = hpcprof("export", names[0], "--to", "perfetto", "timelines", *place)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the timelines of {names[0]} cannot be read: there is no folder {profiles} here" in done.stderr


def test_the_runs_below_a_folder_are_collected_even_if_one_of_them_cannot_be(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    shutil.copytree(profiles, parent / "a")
    shutil.copytree(profiles, parent / "b")
    (parent / "a" / "rank1.sqlite").unlink()
    shutil.copy(parent / "a" / "rank0.sqlite", parent / "a" / "rank00.sqlite")
    (parent / "damaged").mkdir()
    (parent / "damaged" / "run.json").write_text("{")
    done = hpcprof("collect", str(parent))
    assert done.returncode == 1
    assert "skipped: two profiles of rank 0" in done.stderr
    assert f"skipped: {parent}/damaged/run.json cannot be read" in done.stderr
    assert "2 profiles collected" in done.stdout


def test_runs_are_found_beside_folders_of_their_program_and_their_array(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    solver = tmp_path / "solver/solver"
    solver.parent.mkdir()
    solver.write_text("#!/bin/sh\n")
    solver.chmod(0o755)
    hpcprof("submit", "--wait", "--", str(solver))
    (run,) = (tmp_path / "runs").glob("2*")
    shutil.copytree(profiles, run / "profiles", dirs_exist_ok=True)
    assert f"{run.name}: 2 profiles collected" in hpcprof("collect", "solver").stdout
    array = run.with_name("20261121-020000-solver-0abc")
    member = run.rename(array.with_name(f"{array.name}.0"))
    (member / "run.json").write_text((member / "run.json").read_text().replace(run.name, member.name))
    array.mkdir()
    (array / "array.sh").touch()
    assert f"{member.name}: 2 profiles collected" in hpcprof("collect", str(array)).stdout


def test_printed_commands_work_as_printed(hpcprof: Hpcprof, profiles: Path) -> None:
    folder, db = str(profiles), "my results.db"
    needed = hpcprof("export", folder, "tables", "--to", "csv", "--db", db)
    command = needed.stderr.partition("run hpcprof ")[2].removesuffix(" first.\n")
    assert hpcprof(*shlex.split(command)).returncode == 0
    report = hpcprof("report", folder, "--db", db).stdout
    commands = re.findall(r"more rows?: hpcprof (.*)", report)
    assert commands
    for command in commands:
        done = hpcprof(*shlex.split(command))
        assert done.returncode == 0, done.stderr


MODULE = {
    "ph": "X",
    "cat": "python_function",
    "name": "nn.Module: Net_0",
    "pid": 1,
    "tid": 1,
    "ts": 0,
    "dur": 9,
}


SAMPLES = """\
{"node":"n1","gpus":["A"],"limits":{},"missing":{},"ranks":{"0":{"cores":[0],"gpus":[0],"devices":""}},\
"fast":["rank0 cpu_s","gpu0 power_w","gpu0 sm_mhz"],"slow":["cpu0 busy_s","rank0 read_bytes"]}
[100.0,[1,200,1500],[3,0]]
[102.0,[2,200,1500],[5,9]]
"""


def test_json_rows_have_exactly_the_keys_of_their_analysis(
    hpcprof: Hpcprof, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(DATA / "ncu/roofline.raw.csv.gz", profiles / "rank3.csv.gz")
    # What only PyTorch traces record is in this one.
    shutil.copy(DATA / "allocator_rank0.pt.trace.json.gz", profiles / "rank2.pt.trace.json.gz")
    # Communication beside compute is in this one, which is of rank 0 too: its name tells another.
    trace = gzip.decompress((DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes())
    (profiles / "rank4.pt.trace.json").write_bytes(trace.replace(b"distributedInfo", b"elsewhere"))
    (profiles / "rank5.pt.trace.json").write_text(json.dumps({"traceEvents": [MODULE]}), encoding="utf-8")
    # Only these ranks send each other messages.
    pipeline = profiles.parent / "pipeline"
    pipeline.mkdir()
    for rank in (0, 1):
        shutil.copy(DATA / f"pipeline_rank{rank}.pt.trace.json.gz", pipeline / f"rank{rank}.pt.trace.json.gz")
    # Only these call MPI.
    mpi = profiles.parent / "mpi"
    unpack_mpi(mpi)
    # Only this one has hardware counters of kernels.
    counted = profiles.parent / "counted"
    counted.mkdir()
    rocprof_profiles.write_database(counted / "rank0.db")
    # The node of this one was sampled.
    (counted / "telemetry").mkdir()
    (counted / "telemetry/node.jsonl").write_text(SAMPLES)
    folders = (profiles, pipeline, mpi, counted)
    for folder in folders:
        hpcprof("collect", str(folder), "--program", "any")
        hpcprof("explain", str(folder))
    # In this process, since there are many.
    monkeypatch.chdir(profiles.parent)

    def asked(folder: Path, *words: str) -> Any:
        done = CliRunner().invoke(cli, ["report", str(folder), *words, "--format", "json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    analyses = [(folder, asked(folder)["analyses"]) for folder in folders]
    empty = set()
    for name, analysis in ANALYSES.items():
        found = [(folder, every[name]) for folder, every in analyses if every.get(name)]
        if not found:
            empty.add(name)
        # One analysis alone has the same rows.
        folder, alone = found[0] if found else (profiles, [])
        assert asked(folder, "--analysis", name) == alone
        for row in chain.from_iterable(table for _, table in found):
            assert list(row) == [column.name for column in analysis.columns]
    # No small profile has MPI and a GPU, counters of MPI programs, calls of the system, samples of GPUs,
    # snapshots of memory, logs of Darshan, experts, operations of a table, results of ncu's rules, or many
    # noted steps; none says what its step takes alone.
    memory = {"memory", "memory_use", "memory_over_step", "memory_snapshots", "host_memory"}
    of_some = {
        "offload",
        "useful_counters",
        "os_calls",
        "device_metrics",
        "coincidences",
        "expert_balance",
        "profiler_cost",
        "operation_slowdowns",
        "ncu_rules",
    }
    assert empty == of_some | memory | {"darshan_files", "darshan_ranks", "darshan_steps"}


def test_a_table_of_the_explanation_is_there_without_asking_for_the_explanation(
    hpcprof: Hpcprof, profiles: Path
) -> None:
    hpcprof("collect", str(profiles))
    assert json.loads(hpcprof("report", "--analysis", "critical_path", "--format", "json").stdout)


def test_a_second_profile_of_a_rank_is_left_out_and_without_other_ranks_both_are_refused(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    both = tmp_path / "both"
    both.mkdir()
    for copy in (profiles / "rank7.sqlite", both / "rank7.sqlite", both / "rank1.sqlite"):
        shutil.copy(profiles / "rank1.sqlite", copy)
    done = hpcprof("collect", str(both))
    assert done.returncode == 1
    assert "two profiles of rank 1" in done.stderr
    assert "rank1.sqlite" in done.stderr
    assert "rank7.sqlite" in done.stderr
    assert not any('INSERT INTO "profiles"' in line for line in dump(tmp_path))
    done = hpcprof("collect", str(profiles))
    assert done.returncode == 0
    left_out = f"{profiles}/rank7.sqlite is left out: {profiles}/rank1.sqlite is a profile of rank 1 too"
    assert left_out in done.stderr
    assert "2 profiles collected, 0 unchanged, 0 skipped" in done.stdout


def test_a_second_profile_of_a_rank_is_left_out_but_those_of_two_profilers_are_two_runs(
    hpcprof: Hpcprof, profiles: Path
) -> None:
    shutil.copy(DATA / "ncu/sp.details.csv.gz", profiles / "rank1.csv.gz")
    done = hpcprof("collect", str(profiles))
    assert done.returncode == 0
    assert f"{profiles} is 2 runs, one for each profiler" in done.stderr
    assert "2 profiles collected" in done.stdout
    assert "1 profile collected" in done.stdout
    asked = hpcprof("report", str(profiles))
    assert asked.returncode == 2
    assert "name one of them" in asked.stderr
    by_name = hpcprof("report", f"{profiles.name}-ncu", "--analysis", "ncu_kernels", "--format", "csv")
    assert by_name.returncode == 0, by_name.stderr
    shutil.copy(profiles / "rank1.sqlite", profiles / "again_rank1.sqlite")
    done = hpcprof("collect", str(profiles))
    assert done.returncode == 0
    assert "again_rank1.sqlite is a profile of rank 1 too" in done.stderr


def test_a_rank_under_ncu_gives_a_roofline_with_the_times_of_the_others(
    hpcprof: Hpcprof, profiles: Path
) -> None:
    shutil.copy(DATA / "ncu/sp.details.csv.gz", profiles / "rank2.details.csv.gz")
    shutil.copy(DATA / "ncu/README.md", profiles / "notes.csv")
    done = hpcprof("collect", str(profiles))
    assert done.returncode == 0, done.stderr
    assert "3 profiles collected" in done.stdout
    assert {row["rank"] for row in rows(hpcprof, profiles, "ncu_kernels")} == {2}
    assert {row["rank"] for row in rows(hpcprof, profiles, "kernels")} == {0, 1}
    found = {row["name"]: row["in_situ_ns"] for row in rows(hpcprof, profiles, "roofline")}
    assert found["nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NNN"] is None
    # The median over the two ranks of what nsys stats prints: 1425933.5 and 1441182.0 ns.
    assert found["nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT"] == 1_433_558
    shown = hpcprof("report", str(profiles))
    assert "\nRoofline\n" in shown.stdout
    assert "GPU time breakdown" in shown.stdout


def test_the_report_of_a_run_speaks_of_the_kinds_of_profiles_that_it_has(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    assert "roofline" not in hpcprof("report", str(profiles)).stdout
    other = tmp_path / "of ncu"
    other.mkdir()
    shutil.copy(DATA / "ncu/roofline.raw.csv.gz", other / "rank0.csv.gz")
    assert hpcprof("collect", str(other)).returncode == 0
    shown = hpcprof("report", str(other)).stdout
    assert "Kernels measured by Nsight Compute" in shown
    assert "GPU time breakdown" not in shown
    assert "breakdown" not in shown
    alone = hpcprof("report", str(other), "--analysis", "breakdown").stdout
    assert f"breakdown needs {ProfileContent.TIMELINE.value}" in " ".join(alone.split())


def test_a_profile_without_kernels_says_so(hpcprof: Hpcprof, profiles: Path) -> None:
    for path in profiles.iterdir():
        with sqlite3.connect(path) as export:
            for table in ("KERNEL", "MEMSET"):
                export.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}")
    assert hpcprof("collect", str(profiles)).returncode == 0
    done = hpcprof("report", str(profiles), "--analysis", "kernels", "--format", "json")
    assert json.loads(done.stdout) == []
    assert "no CUDA kernels in rank0.sqlite" in done.stderr


def test_a_report_collects_what_has_not_been_collected_and_says_so(hpcprof: Hpcprof, profiles: Path) -> None:
    analysis = ("report", str(profiles), "--analysis", "steps_summary", "--format", "json")
    done = hpcprof(*analysis)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["p50_ns"] == 3654419.0
    assert "has been collected: collecting it first" in done.stderr
    assert "2 profiles collected, 0 unchanged, 0 skipped" in done.stderr
    again = hpcprof(*analysis)
    assert (again.stdout, again.stderr) == (done.stdout, "")
    for path in profiles.iterdir():
        path.unlink()
    gone = hpcprof(*analysis)
    assert (gone.stdout, gone.stderr) == (done.stdout, "")


def test_a_folder_without_profiles_has_nothing_to_report(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = hpcprof("report", "empty")
    assert (done.returncode, "there is nothing to report on empty-" in done.stderr) == (1, True)


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_is_submitted_waited_for_collected_and_reported_by_one_command(
    code: int, hpcprof: Hpcprof, profiles: Path
) -> None:
    leave = f'cp "$0" "$HPCPROF_RUN_DIR/profiles/rank00000.sqlite"; exit {code}'
    done = hpcprof("run", "--", "sh", "-c", leave, str(profiles / "rank0.sqlite"))
    assert done.returncode == code, done.stderr
    said = " ".join(done.stdout.split())
    assert f" state {'failed: exit code 3' if code else 'completed'} " in said
    assert " profiles 1 rank, nsys" in said
    assert "1 profile collected, 0 unchanged, 0 skipped" in done.stderr


@pytest.mark.parametrize(("script", "code"), [("kill -SEGV $$", 139), ("exit 0", 0)])
def test_run_has_the_exit_code_of_its_job(script: str, code: int, hpcprof: Hpcprof) -> None:
    done = hpcprof("run", "--", "sh", "-c", script)
    assert done.returncode == code
    # The report says so, and nothing says it twice.
    says = " ".join((done.stdout + done.stderr).split())
    assert says.count("not profiled (hpcprof run --profiler auto shows") == (code == 0)
    assert says.count("note: no profiler records this run") == 1
    assert (
        "Resources of the job" in done.stdout or " state completed " in " ".join(done.stdout.split())
    ) == (code == 0)


def test_a_run_that_has_not_ended_is_not_collected(hpcprof: Hpcprof) -> None:
    hpcprof("submit", "--profiler", "torch", "--", sys.executable, "-c", "import time; time.sleep(300)")
    try:
        done = hpcprof("report")
        assert done.returncode == 1
        assert ": wait with hpcprof status " in done.stderr
    finally:
        hpcprof("cancel", "last")


def test_a_file_that_is_no_database_is_one_sentence(hpcprof: Hpcprof, profiles: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("shopping list\n" * 100)
    done = hpcprof("collect", str(profiles), "--db", "notes.txt")
    assert done.returncode == 1
    assert "cannot use the results database notes.txt: file is not a database" in done.stderr


def test_no_environment_variable_of_a_profile_reaches_the_store_or_a_report(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    with sqlite3.connect(profiles / "rank0.sqlite") as export:
        export.execute(
            "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'API_KEY=\"hush-hush\"')"
        )
        export.execute(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = value || ';TOKEN=hush-hush' "
            "WHERE name = 'DeviceEnvironment'"
        )
    hpcprof("collect", str(profiles))
    hpcprof("report", str(profiles), "--html", "report.html")
    assert b"hush-hush" not in (tmp_path / "runs/hpcprof.db").read_bytes()
    assert b"hush-hush" not in (tmp_path / "report.html").read_bytes()
