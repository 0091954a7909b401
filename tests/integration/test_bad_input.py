"""Profiles and disks as they should not be: each ends in a sentence, and in results that are right.

What the readers do with a single damaged file is tested beside them, and any damage by ``tests/fuzz``.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcprof import open as open_run
from hpcprof.profiles.event_columns import dataset_name, timeline_tables
from tests.conftest import Hpcprof
from tests.data.many_ranks import write_all
from tests.integration.conftest import Database
from tests.page_blocks import blocks

DATA = Path(__file__).parents[1] / "data"
pytestmark = pytest.mark.slow

RANKS, KERNELS = 3, 300
PAGE = 4096
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
STEERING = "clear \x1b[2J\x9b2J the\nscreen"
NAMES = ("<script>alert(1)</script>", "内核<größe> 🚀", "a \"quoted\" & 'odd' \\ name", STEERING)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Exports of three ranks; the tests damage rank 1."""
    write_all(tmp_path / "profiles", RANKS, KERNELS)
    return tmp_path / "profiles"


@pytest.fixture
def run(hpcprof: Hpcprof, tmp_path: Path, folder: Path) -> Path:
    """A run directory with these exports."""
    assert hpcprof("submit", "--ranks-per-node", "3", "--wait", "--", "true").returncode == 0
    (found,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    shutil.copytree(folder, found / "profiles", dirs_exist_ok=True)
    return found


def rows(hpcprof: Hpcprof, place: Path, analysis: str, *more: str) -> list[dict[str, Any]]:
    done = hpcprof("report", str(place), "--analysis", analysis, "--format", "json", *more)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def change(path: Path, *statements: str) -> None:
    """Change an export; constraints of its tables are dropped, so that it takes any value."""
    with sqlite3.connect(path) as export:
        for table in (KERNEL, "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "ENUM_CUDA_MEMCPY_OPER"):
            export.execute(f"CREATE TABLE copy AS SELECT * FROM {table}")
            export.execute(f"DROP TABLE {table}")
            export.execute(f"ALTER TABLE copy RENAME TO {table}")
        for statement in statements:
            export.execute(statement)
    export.close()


def truth(path: Path, condition: str = "1") -> dict[str | None, int]:
    """Add up the kernels of an export by name, in SQL."""
    with sqlite3.connect(path) as export:
        query = (
            "SELECT value, sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL "
            f"LEFT JOIN StringIds ON id = demangledName WHERE {condition} GROUP BY value"
        )
        found = dict(export.execute(query).fetchall())
    export.close()
    return found


def totals(hpcprof: Hpcprof, folder: Path) -> dict[int, dict[str | None, int]]:
    """Return the times of the kernels of each rank by name, as the report has them."""
    found: dict[int, dict[str | None, int]] = defaultdict(dict)
    for row in rows(hpcprof, folder, "kernels"):
        found[row["rank"]][row["name"]] = row["total_ns"]
    return found


def sentences(text: str) -> list[str]:
    """Return what was said beside the lines of progress."""
    return [line for line in text.splitlines() if line.startswith("hpcprof: ")]


SKIPPED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: os.truncate(path, path.stat().st_size * 2 // 3), "truncated"),
    "zero bytes": (lambda path: path.write_bytes(b""), "is empty"),
    "zeros": (lambda path: path.write_bytes(bytes(9000)), "is not an SQLite file"),
    "not SQLite": (lambda path: path.write_bytes(b"shopping list\n" * 99), "is not an SQLite file"),
    "another database": (lambda path: other_database(path), "not an export of nsys"),
    "no StringIds": (lambda path: change(path, "DROP TABLE StringIds"), "no StringIds"),
    "text for the id of a label": (
        lambda path: change(
            path,
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 0, 1, 7, 1, 0, 64, 1)",
            "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES ('one', 'KIND', 'Host-to-Device')",
        ),
        "table ENUM_CUDA_MEMCPY_OPER holds a value in column id that is not an integer",
    ),
}


def other_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE users (id INTEGER)")
    other.close()


def test_profiles_that_cannot_be_read_are_named_and_the_others_are_right(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    """Each rank but the first and the last has another damage."""
    folder, last = tmp_path / "profiles", 1 + len(SKIPPED)
    write_all(folder, last + 1, KERNELS)
    for rank, (spoil, _) in enumerate(SKIPPED.values(), 1):
        spoil(folder / f"rank{rank:05d}.sqlite")
    done = hpcprof("collect", "--jobs", "1", str(folder))
    assert done.returncode == 1
    assert f"2 profiles collected, 0 unchanged, {len(SKIPPED)} skipped" in done.stdout
    for (rank, (_, says)), said in zip(
        enumerate(SKIPPED.values(), 1), sorted(sentences(done.stderr)), strict=True
    ):
        assert said.startswith(f"hpcprof: skipped: {folder / f'rank{rank:05d}.sqlite'}")
        assert says in said
    assert totals(hpcprof, folder) == {rank: truth(folder / f"rank{rank:05d}.sqlite") for rank in (0, last)}
    assert {row["rank"] for row in rows(hpcprof, folder, "breakdown")} == {0, last}


READ: dict[str, tuple[list[str], str]] = {
    "text for a stamp": ([f"UPDATE {KERNEL} SET start = 'soon' WHERE rowid = 5"], "start <> 'soon'"),
    "a fraction for a stamp": (
        [f"UPDATE {KERNEL} SET end = end + 0.5 WHERE rowid = 5"],
        "typeof(end) = 'integer'",
    ),
    "NULL names": ([f"UPDATE {KERNEL} SET demangledName = NULL WHERE rowid % 7 = 0"], "1"),
    "names that the table of names lacks": (["DELETE FROM StringIds WHERE id = 2"], "1"),
    "negative durations": ([f"UPDATE {KERNEL} SET end = start - 900 WHERE rowid % 50 = 3"], "end >= start"),
    "no duration": ([f"UPDATE {KERNEL} SET end = start WHERE rowid % 2 = 0"], "1"),
    "stamps that go back": (
        [f"UPDATE {KERNEL} SET start = start - 5000000, end = end - 5000000 WHERE rowid % 3 = 0"],
        "CUPTI_ACTIVITY_KIND_KERNEL.rowid % 3 != 0",
    ),
    "rows in another order": (
        [
            f"CREATE TABLE copy AS SELECT * FROM {KERNEL} ORDER BY end % 97",
            f"DROP TABLE {KERNEL}",
            f"ALTER TABLE copy RENAME TO {KERNEL}",
        ],
        "1",
    ),
    "stamps of 2^62": (
        [f"UPDATE {KERNEL} SET start = start + (1 << 62), end = end + (1 << 62) WHERE rowid IN (3, 9)"],
        "end < (1 << 62)",
    ),
    "a stamp of 2^63 - 1": (
        [f"UPDATE {KERNEL} SET end = 9223372036854775807 WHERE rowid = 3"],
        "end < 1 << 62",
    ),
    "pushes that overlap": (
        [
            "UPDATE NVTX_EVENTS SET end = end + 400000 WHERE rowid % 4 = 1",
            "INSERT INTO NVTX_EVENTS SELECT * FROM NVTX_EVENTS WHERE rowid % 5 = 0",
        ],
        "1",
    ),
    "ranges that are never closed": (["UPDATE NVTX_EVENTS SET end = NULL WHERE rowid % 4 = 0"], "1"),
    "ranges that end before they begin": (
        ["UPDATE NVTX_EVENTS SET end = start - 9 WHERE rowid % 4 = 0"],
        "1",
    ),
    "no name of any API call": (["UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = -5"], "1"),
}


LOST = {
    "text for a stamp": "1 of 300 kernels has no valid start and is left out",
    "a fraction for a stamp": "1 of 300 kernels has no valid end and is left out",
    "NULL names": "42 of 300 kernels have no readable name",
    "names that the table of names lacks": "99 of 300 kernels have no readable name",
    "stamps of 2^62": "2 of 300 kernels have no valid start and are left out",
    "a stamp of 2^63 - 1": "1 of 300 kernels has no valid end and is left out",
    "negative durations": "6 of 300 kernels have no valid end and are left out",
    "stamps that go back": "100 of 300 kernels start before their launch and are left out",
    "ranges that end before they begin": "5 of 19 ranges have no valid end and are left out",
    "ranges that are never closed": "2 of 19 ranges have no end, and are open until the end of the capture",
    "no name of any API call": "300 of 300 API calls have no readable name",
}


def test_odd_values_leave_every_total_right_and_every_rank_there(hpcprof: Hpcprof, tmp_path: Path) -> None:
    """Each rank but the first has other odd values."""
    folder, conditions = tmp_path / "profiles", {0: "1"}
    write_all(folder, 1 + len(READ), KERNELS)
    for rank, (statements, condition) in enumerate(READ.values(), 1):
        change(folder / f"rank{rank:05d}.sqlite", *statements)
        conditions[rank] = condition
    done = hpcprof("collect", "--jobs", "1", str(folder))
    assert done.returncode == 0, done.stderr
    assert f"{1 + len(READ)} profiles collected" in done.stdout
    lost = {(rank, LOST[damage]) for rank, damage in enumerate(READ, 1) if damage in LOST}
    losses = open_run(folder, runs_dir=tmp_path / "runs").losses()
    assert {*zip(losses["rank"], losses["sentence"], strict=True)} == lost
    # Ranks that lost the same are added up.
    assert (
        f"hpcprof: ranks 1, 9: 3 of {2 * KERNELS} kernels have no valid start and are left out"
        in sentences(done.stderr)
    )
    assert totals(hpcprof, folder) == {
        rank: truth(folder / f"rank{rank:05d}.sqlite", condition) for rank, condition in conditions.items()
    }
    for row in rows(hpcprof, folder, "breakdown"):
        parts = [row[f"{part}_ns"] for part in ("compute", "exposed_comm", "exposed_mem", "idle")]
        assert sum(parts) == row["span_ns"]
        assert min(parts) >= 0
    assert hpcprof("report", str(folder)).returncode == 0


def test_rows_that_are_left_out_are_counted_in_the_report(hpcprof: Hpcprof, folder: Path) -> None:
    change(folder / "rank00001.sqlite", *READ["stamps of 2^62"][0])
    hpcprof("collect", str(folder))
    path = folder / "rank00001.sqlite"
    (kernels,) = sqlite3.connect(path).execute(f"SELECT count(*) FROM {KERNEL}").fetchone()
    found = [row["instances"] for row in rows(hpcprof, folder, "kernels") if row["rank"] == 1]
    assert sum(found) == kernels - 2
    lost = f"rank 1: 2 of {kernels} kernels have no valid start and are left out"
    assert f"losses: {lost}" in hpcprof("report", str(folder), "--analysis", "breakdown").stdout
    told = hpcprof("report", str(folder), "--analysis", "breakdown", "--format", "json")
    assert f"losses: {lost}" in told.stderr
    everything = json.loads(hpcprof("report", str(folder), "--format", "json").stdout)
    assert everything["losses"]["breakdown"] == [lost]
    assert "api" not in everything["losses"]


@pytest.mark.parametrize("kind", ["nsys", "torch"])
def test_names_of_any_text_reach_every_report_as_text(
    kind: str, hpcprof: Hpcprof, folder: Path, tmp_path: Path
) -> None:
    if kind == "nsys":
        for number, name in enumerate(NAMES, 1):
            with sqlite3.connect(folder / "rank00000.sqlite") as export:
                export.execute("UPDATE StringIds SET value = ? WHERE id = ?", (name, number))
            export.close()
    else:
        (folder / "rank00000.sqlite").unlink()
        kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0}
        events = [{**kernel, "name": name, "ts": 10.0 * i} for i, name in enumerate(NAMES)]
        (folder / "rank00000.trace.json").write_text(json.dumps({"traceEvents": events}))
    assert hpcprof("collect", str(folder), "--program", "any").returncode == 0
    assert set(NAMES) <= set(totals(hpcprof, folder)[0])
    assert NAMES[1] in hpcprof("report", str(folder), "--analysis", "kernels", "--format", "csv").stdout
    shown = hpcprof("report", str(folder), "--html", "report.html")
    assert shown.returncode == 0, shown.stderr
    assert not set("\x1b\x9b") & set(shown.stdout)
    asked = hpcprof("query", "select name from analysis_kernels where name like 'clear%'")
    alone = hpcprof("report", str(folder), "--analysis", "kernels")
    for out in (asked.stdout, alone.stdout):
        assert r"clear \x1b[2J" in out and not set("\x1b\x9b") & set(out)
    assert "is not valid UTF-8" in hpcprof("query", "select '\udcff'").stderr
    page = (tmp_path / "report.html").read_text()
    assert NAMES[0] not in page
    assert NAMES[1] in blocks(page)["tables-data"]


def test_a_trace_that_is_cut_is_named_and_the_rest_is_right(hpcprof: Hpcprof, folder: Path) -> None:
    trace = gzip.decompress((DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes())
    anonymous = trace.replace(b'"distributedInfo"', b'"elsewhere"')
    packed = gzip.compress(anonymous)
    (folder / "rank00007.trace.json.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "rank00008.trace.json").write_bytes(anonymous[:-200])
    done = hpcprof("collect", str(folder))
    assert "3 profiles collected, 0 unchanged, 2 skipped" in done.stdout
    assert [name in done.stderr for name in ("rank00007.trace.json.gz", "rank00008.trace.json")] == [True] * 2
    assert {row["rank"] for row in rows(hpcprof, folder, "kernels")} == {0, 1, 2}


def with_size(path: Path, ranks: int) -> None:
    """Let an export say of how many ranks its program is."""
    with sqlite3.connect(path) as export:
        export.execute("DELETE FROM META_DATA_CAPTURE")
        export.execute(
            "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)",
            (f"OMPI_COMM_WORLD_SIZE={ranks}",),
        )
    export.close()


def test_a_profile_of_another_number_of_ranks_than_the_run_has_is_named(hpcprof: Hpcprof, run: Path) -> None:
    for rank, size in enumerate((3, 8, 3)):
        with_size(run / f"profiles/rank{rank:05d}.sqlite", size)
    done = hpcprof("collect", "--jobs", "1")
    assert done.returncode == 0
    path = run / "profiles/rank00001.sqlite"
    assert sentences(done.stderr) == [
        f"hpcprof: {path} has 8 ranks, but the run has 3: is it from another run?"
    ]
    assert {row["rank"] for row in rows(hpcprof, run, "kernels")} == {0, 1, 2}


def test_what_nsys_could_not_trace_or_import_is_said(hpcprof: Hpcprof, run: Path) -> None:
    (run / "state/rank00000.untraced").write_text("MPI_Send_c and its like\n")
    # Rank 0 has its profile all the same.
    (run / "profiles/rank00000.qdstrm").touch()
    (run / "profiles/rank00003.qdstrm").touch()
    said = sentences(hpcprof("collect", "--jobs", "1").stderr)
    assert said[0].startswith("hpcprof: this profiler traces no MPI_Send_c and its like")
    assert said[1].startswith(
        f"hpcprof: nsys could not import what it recorded in {run}/profiles/rank00003.qdstrm"
    )
    assert len(said) == 2
    assert "MPI_Send_c" in hpcprof("report", str(run)).stdout
    found = json.loads(hpcprof("explain", str(run), "--format", "json").stdout)["findings"]
    assert [one["cause"] for one in found if "MPI_Send_c" in one["where"]] == ["capture_incomplete"]


def test_a_profile_of_another_number_of_ranks_than_the_others_is_refused(
    hpcprof: Hpcprof, folder: Path
) -> None:
    for rank, size in enumerate((4, 4, 16)):
        with_size(folder / f"rank{rank:05d}.sqlite", size)
    done = hpcprof("collect", "--jobs", "1", str(folder))
    assert done.returncode == 1
    (said,) = sentences(done.stderr)
    assert said.startswith(
        "hpcprof: rank 2 (rank00002.sqlite) is of another program than rank 0 (rank00000.sqlite): it ran on "
        "16 ranks, the other on 4."
    )
    assert hpcprof("list").stdout.startswith("no runs in runs yet: ")
    assert hpcprof("collect", "--jobs", "1", str(folder), "--program", "train").returncode == 0


def in_namespace(commands: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run commands that may mount; where that is not allowed the test is skipped."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("namespaces are not allowed here")
    hpcprof = f"{sys.executable} -m hpcprof"
    return subprocess.run(
        ["unshare", "-rm", "sh", "-ec", commands.replace("HPCPROF", hpcprof)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )


def test_a_run_that_can_only_be_read_is_collected_and_what_is_not_kept_is_said(
    run: Path, tmp_path: Path, hpcprof: Hpcprof
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    done = in_namespace(
        f"mount --bind {run} {run}; mount -o remount,ro,bind {run}; HPCPROF collect --db here.db --jobs 1",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (said,) = sentences(done.stderr)
    assert said.endswith(f"the list of files in {run} was not updated: Read-only file system.")
    # What could not be kept in the run is among the runs.
    assert len([*(run.parent / "timeline/origins").rglob("*.jsonl")]) == RANKS
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert {row["rank"] for row in rows(hpcprof, run, "kernels", "--db", "here.db")} == {0, 1, 2}


def test_a_folder_that_can_only_be_read_takes_no_database_and_says_so(run: Path, tmp_path: Path) -> None:
    runs = run.parent
    done = in_namespace(
        f"mount --bind {runs} {runs}; mount -o remount,ro,bind {runs}; HPCPROF collect", tmp_path
    )
    assert done.returncode == 1
    (said,) = sentences(done.stderr)
    assert "cannot use the results database" in said


def test_a_full_disk_ends_in_a_sentence_and_the_next_collect_completes_it(
    run: Path, tmp_path: Path, hpcprof: Hpcprof
) -> None:
    hpcprof("collect", "--db", "reference.db")
    small = tmp_path / "small"
    small.mkdir()
    # Enough for the tables and some of the ranks.
    size = (tmp_path / "reference.db").stat().st_size * 9 // 10
    filled = in_namespace(
        f"mount -t tmpfs -o size={size} none {small}; HPCPROF collect --jobs 1 --db {small}/a.db || code=$?; "
        f"cp {small}/a.db kept.db; exit $code",
        tmp_path,
    )
    assert filled.returncode == 1
    (said,) = sentences(filled.stderr)
    assert said == f"hpcprof: cannot use the results database {small}/a.db: database or disk is full."
    done = hpcprof("collect", "--db", "kept.db")
    assert done.returncode == 0, done.stderr
    assert Database(str(tmp_path / "kept.db")).dump() == Database(str(tmp_path / "reference.db")).dump()


def pages(folder: Path) -> int:
    """Return how much of a file system in memory the files in a folder take."""
    return sum(-(-path.stat().st_size // PAGE) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("fits", [True, False], ids=["tables fit", "nothing fits"])
def test_a_full_disk_for_the_timelines_leaves_the_results_that_fit(
    run: Path, tmp_path: Path, hpcprof: Hpcprof, fits: bool
) -> None:
    # One rank, so that room for all tables is too little for any timeline.
    shutil.rmtree(run / "profiles")
    write_all(run / "profiles", 1, 20_000)
    hpcprof("collect", "--db", "reference.db")
    of_timelines = {dataset_name(field) for field in timeline_tables()}
    kept = {table.name: pages(table) for table in (run / "timeline").iterdir()}
    room = sum(count for name, count in kept.items() if name not in of_timelines) + 1
    assert room < sum(kept[name] for name in of_timelines & kept.keys())
    shutil.rmtree(run / "timeline")
    (run / "timeline").mkdir()
    done = in_namespace(
        f"mount -t tmpfs -o size={room * PAGE if fits else 3 * PAGE} none {run}/timeline; "
        f"HPCPROF collect --jobs 1 || code=$?; ls -A {run}/timeline; exit $code",
        tmp_path,
    )
    said = sentences(done.stderr)
    if fits:
        assert done.returncode == 0, done.stderr
        assert "1 profile collected" in done.stdout
        assert sum("was not kept in" in line and "No space left" in line for line in said) == 1
    else:
        assert done.returncode == 1
        assert sum("was not collected:" in line and "No space left" in line for line in said) == 1
    assert not any(line.startswith(".") for line in done.stdout.splitlines())


def test_a_limit_on_the_size_of_files_is_a_sentence_too(run: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 100; exec {sys.executable} -m hpcprof collect --jobs 1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot use the results database" in sentences(done.stderr)[-1]


def test_a_run_whose_profiles_cannot_be_read_is_not_said_to_need_a_collect(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    path = tmp_path / "observer.json"
    path.write_text('{"schema": "1.1.1", "nodes": []}')
    done = hpcprof("explain", str(path))
    assert done.returncode == 1 and "has no list of traceEvents" in done.stderr
    assert done.stderr.rstrip().endswith("could be collected: its profiles cannot be read.")
