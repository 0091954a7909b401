"""``hpcprof open``, and what it shares with other commands: names of runs, and the last one."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pty
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import hpcprof as package
from tests.conftest import Hpcprof

DATA = Path(__file__).parents[1] / "data"
ROOT = Path(__file__).parents[2]
EXAMPLE, TUTORIAL = ROOT / "examples/first-report", ROOT / "docs/tutorial/first-report.md"


def folder_of(place: Path, *files: str) -> Path:
    """Make a folder of profiles: ``sp_bf16_rank0.sqlite.xz as rank0.sqlite`` unpacks one."""
    place.mkdir()
    for text in files:
        source, _, name = text.partition(" as ")
        content = (DATA / source).read_bytes()
        unpack = source.endswith(".xz") and not name.endswith(".xz")
        (place / name).write_bytes(lzma.decompress(content) if unpack else content)
    return place


NSYS = [f"sp_bf16_rank{rank}.sqlite.xz as rank{rank}.sqlite" for rank in (0, 1)]


def test_profiles_in_an_empty_folder_are_the_last_run_of_every_command_that_reads(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    profiles = folder_of(tmp_path / "of another tool", *NSYS)
    first = hpcprof("report")
    assert "hpcprof run -- COMMAND starts one, hpcprof open PATH shows profiles" in first.stderr
    assert hpcprof("collect", str(profiles)).returncode == 0
    for command in (
        ["report"],
        ["explain"],
        ["whatif", "--set", "kernel:nvjet*0.5"],
        ["collect"],
        ["query", "--events", "SELECT count(*) FROM kernels"],
        ["export", "--to", "csv", "tables"],
    ):
        done = hpcprof(*command)
        assert done.returncode == 0, done.stderr
    assert package.open("last", runs_dir=tmp_path / "runs").ranks == [0, 1]
    for command in (["status"], ["logs"], ["rm", "--yes", "last"], ["resubmit", "last"], ["cancel", "last"]):
        done = hpcprof(*command)
        assert done.returncode == 2
        assert "no job in runs: the runs that hpcprof list shows were imported, or their" in done.stderr


def test_the_tutorial_shows_what_its_example_says(hpcprof: Hpcprof) -> None:
    shown = " ".join(hpcprof("open", str(EXAMPLE), "--terminal").stdout.split())
    finding = re.search(r"Percentages are of .* 1\. host work .*?\)", shown)
    assert finding is not None
    assert finding.group() in " ".join(TUTORIAL.read_text(encoding="utf-8").split())


def test_the_last_run_is_the_last_of_any_kind(hpcprof: Hpcprof, tmp_path: Path) -> None:
    one, other = (folder_of(tmp_path / name, *NSYS[:1]) for name in ("one", "other"))
    submitted = hpcprof("submit", "--wait", "--", "true")
    assert submitted.returncode == 0, submitted.stderr
    for folder in (one, other, one):  # also if nothing is new
        os.utime(folder)
        assert hpcprof("collect", str(folder)).returncode == 0
        assert hpcprof("report").stdout.startswith(f"run  {folder.name}-")
    assert "-true-" in hpcprof("status").stdout
    again = hpcprof("submit", "--wait", "--", "echo", "x")
    assert again.returncode == 0, again.stderr
    assert "-echo-" in hpcprof("report").stdout.splitlines()[0]
    report_of_one = hpcprof("report", "one").stdout
    assert report_of_one.startswith("run  one-")
    assert "\nprofile  " in report_of_one and "\nfolder  " not in report_of_one


def test_a_refused_file_is_what_was_opened_last(hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "one", *NSYS[:1])
    assert hpcprof("open", str(folder)).returncode == 0
    (tmp_path / "odd.json").write_text('{"a": 1}')
    assert hpcprof("open", str(tmp_path / "odd.json")).returncode == 1
    answer = hpcprof("report", "last")
    assert answer.returncode == 1 and answer.stdout == ""
    assert "odd.json, of which nothing could be read: name a run (hpcprof list)." in answer.stderr
    assert hpcprof("open", str(folder)).returncode == 0
    assert hpcprof("report", "last").stdout.startswith("run  one-")


def test_compressed_profiles_are_opened_and_stay_whole(hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "profiles")
    (folder / "README.md").unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = hpcprof("open", str(folder))
    assert done.returncode == 0, done.stderr
    assert "unpacked 2 files" in done.stderr
    assert "(1 of 2)" not in done.stderr
    assert "host work in data on all ranks" in done.stdout
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    # The events are kept, since the unpacked profiles are gone.
    timeline = package.open(folder, runs_dir=tmp_path / "runs").timeline(1)
    assert timeline.origin.rank == 1 and len(timeline.kernels)
    twice = hpcprof("open", str(folder), f"{folder}/")
    assert twice.stdout.count("run  ") == 1 and "one for each" not in twice.stderr
    predicted = hpcprof("whatif", "--set", "range:data*0")
    assert predicted.returncode == 0, predicted.stderr
    assert hpcprof("report", "profiles", "--html", "page.html").returncode == 0
    again = hpcprof("open", str(folder))
    assert "0 profiles collected, 2 unchanged" in again.stderr


@pytest.mark.parametrize("kind", ["sqlite", "sqlite.gz"])
def test_a_file_is_opened_alone(kind: str, hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "profiles", *NSYS)
    file = folder / f"rank0.{kind}"
    if kind != "sqlite":
        file.write_bytes(gzip.compress((folder / "rank0.sqlite").read_bytes(), compresslevel=1))
        (folder / "rank0.sqlite").unlink()
    done = hpcprof("open", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("run  profiles-rank0-")
    assert "profiles       1 rank" in done.stdout or "1 rank," in done.stdout
    run = done.stdout.split()[1]
    for name in (run, str(file), "profiles-rank0"):
        shown = hpcprof("report", name)
        assert shown.returncode == 0, shown.stderr
        assert "collecting it first" not in shown.stderr
    assert hpcprof("query", "--events", "SELECT count(*) FROM kernels", run).returncode == 0


def test_all_files_of_a_folder_are_the_run_of_the_folder(hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "profiles", *NSYS)
    names = [str(path) for path in sorted(folder.iterdir())]
    assert "2 profiles collected" in hpcprof("collect", *names).stdout
    assert "0 profiles collected, 2 unchanged" in hpcprof("collect", str(folder)).stdout


def test_packed_traces_of_a_folder_are_found_and_other_packed_tables_left_alone(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "profiles")
    for rank in (0, 1):
        trace = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": []}
        (folder / f"rank{rank}.trace.json.xz").write_bytes(lzma.compress(json.dumps(trace).encode()))
    (folder / "notes.csv.xz").write_bytes(lzma.compress(b"a,b"))
    assert "2 profiles collected" in hpcprof("collect", str(folder)).stdout


def test_several_folders_are_shown_one_after_the_other_and_mistakes_named(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    one, other = (folder_of(tmp_path / name, *NSYS[:1]) for name in ("one", "other"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/rank0.sqlite.xz").write_text("no xz")
    done = hpcprof("open", str(one), str(other), str(tmp_path / "bad"))
    assert done.returncode == 1
    assert [line.split()[1][:-9] for line in done.stdout.splitlines() if line.startswith("run ")] == [
        "one",
        "other",
    ]
    assert f"skipped: {tmp_path}/bad/rank0.sqlite.xz is damaged or truncated" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("nothere", 2, "unknown run 'nothere': there is no such file or folder, and no run in runs"),
        ("empty", 1, "/empty: hpcprof open --help lists the formats."),
        ("notes.txt", 2, "is not a profile that hpcprof reads"),
        ("junk.sqlite", 1, "junk.sqlite is not an SQLite file"),
    ],
)
def test_a_wrong_path_is_one_sentence(
    path: str, code: int, says: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "junk.sqlite"):
        (tmp_path / name).write_text("hello")
    done = hpcprof("open", path)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_of_two_profilers_is_in_two_runs(hpcprof: Hpcprof, tmp_path: Path) -> None:
    trace = "ddp_steps_rank0.pt.trace.json.gz as rank0.pt.trace.json.gz"
    folder = folder_of(tmp_path / "profiles", NSYS[0], trace)
    done = hpcprof("open", str(folder))
    assert done.returncode == 0, done.stderr
    assert f"{folder} is 2 runs, one for each profiler: profiles-nsys-" in done.stderr
    assert "run  profiles-nsys-" in done.stdout
    assert "run  profiles-torch-" in done.stdout
    for name in ("profiles-nsys", "profiles-torch"):
        assert hpcprof("explain", name).returncode == 0
        assert hpcprof("query", "--events", "SELECT count(*) FROM kernels", name).returncode == 0


@pytest.mark.parametrize("kept", [True, False])
def test_ranks_of_two_programs_are_refused_and_what_was_there_is_kept(
    kept: bool, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "profiles", "ddp_cap2_rank0.sqlite.xz as rank0.sqlite")
    if kept:
        assert hpcprof("collect", str(folder)).returncode == 0
    (folder / "rank1.sqlite").write_bytes(lzma.decompress((DATA / "sp_bf16_rank1.sqlite.xz").read_bytes()))
    done = hpcprof("open", str(folder))
    assert done.returncode == 1
    assert "rank 1 (rank1.sqlite) is of another program than rank 0 (rank0.sqlite): it calls" in done.stderr
    assert not done.stdout
    stored = hpcprof("list", "--format", "json")
    assert [row["ranks"] for row in json.loads(stored.stdout)] == ([4] if kept else [])
    with sqlite3.connect(tmp_path / "runs/hpcprof.db") as database:
        assert database.execute("SELECT rank FROM profiles").fetchall() == ([(0,)] if kept else [])
    told = hpcprof("collect", str(folder), "--program", "both")
    assert told.returncode == 0, told.stderr


def test_unknown_programs_are_apart_in_a_history(hpcprof: Hpcprof, tmp_path: Path) -> None:
    for name in ("one", "other"):
        hpcprof("collect", str(folder_of(tmp_path / name, *NSYS[:1])))
    shown = hpcprof("history")
    assert "2 series, because runs differ in program" in " ".join(shown.stdout.split())
    assert "The program of 2 runs is not known" in shown.stderr
    for name in ("one", "other"):
        hpcprof("collect", name, "--program", "train")
    assert "step of 2 runs" in hpcprof("history").stdout


def test_a_page_is_opened_in_a_terminal_with_a_display(hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "profiles", *NSYS[:1])
    (tmp_path / "bin").mkdir()
    browser = tmp_path / "bin/browser"
    browser.write_text(f"#!/bin/sh\necho $1 > {tmp_path}/opened\nsleep 5\n")
    browser.chmod(0o755)
    terminal, own = pty.openpty()
    environment = {**os.environ, "DISPLAY": ":0", "BROWSER": str(browser), "COLUMNS": "200"}
    done = subprocess.Popen(
        [sys.executable, "-m", "hpcprof", "open", str(folder)],
        cwd=tmp_path,
        env=environment,
        stdout=own,
        stderr=subprocess.DEVNULL,
    )
    os.close(own)
    assert done.wait(480) == 0
    said = os.read(terminal, 10_000).decode()
    os.close(terminal)
    (page,) = (tmp_path / "runs/pages").iterdir()
    assert f"opening runs/pages/{page.name} in the browser" in said
    assert (tmp_path / "opened").read_text() == f"file://{page}\n"
    assert "<html" in page.read_text()
    assert hpcprof("rm", "--yes", page.stem).returncode == 0
    assert not page.exists()


def test_files_of_other_tools_below_a_folder_without_profiles_are_named(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (tmp_path / "run/node0").mkdir(parents=True)
    (tmp_path / "run/node0/trace.rpd").touch()
    done = hpcprof("open", str(tmp_path / "run"))
    assert done.returncode == 1
    assert "no profiles in" in done.stderr and "run: node0/trace.rpd is a profile of ROCm's" in done.stderr


def test_many_files_that_are_skipped_for_one_reason_are_told_once(hpcprof: Hpcprof, tmp_path: Path) -> None:
    for rank in range(6):
        (tmp_path / f"rank.{rank}.et").write_bytes(b"\x0a\x05\x12")
    (tmp_path / "rank.9.sqlite").write_text("no database")
    said = hpcprof("open", str(tmp_path), "--runs-dir", str(tmp_path / "runs")).stderr
    assert (
        "rank.0.et is not a Chakra execution trace, or is cut off (and 5 more files, by other numbers)."
        in said
    )
    assert "rank.5.et" not in said and "rank.9.sqlite" in said
