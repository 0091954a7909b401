"""``hpcprof query --events`` on real profiles: what the documentation asks, and runs that lack something."""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from pathlib import Path

import pytest

import hpcprof as package
from hpcprof.results.ask.event_query import schema
from tests.command_server import CommandServer
from tests.conftest import INTERRUPTED, Hpcprof

DATA = Path(__file__).parents[1] / "data"
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = re.findall(r"```sql\n(.*?)```", (DOCS / "how-to/query-events.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collected profiles of two ranks of a DDP training, and nothing asked of them yet."""
    place = tmp_path_factory.mktemp("asked")
    (place / "ddp").mkdir()
    for rank in (0, 1):
        packed = (DATA / f"ddp_cap2_rank{rank}.sqlite.xz").read_bytes()
        (place / f"ddp/rank{rank}.sqlite").write_bytes(lzma.decompress(packed))
    package.collect_profiles(place / "ddp", runs_dir=place / "runs", jobs=1)
    return place


@pytest.fixture
def hpcprof(place: Path, command_server: CommandServer) -> Hpcprof:
    """Run ``hpcprof`` in that folder."""
    return lambda *arguments: command_server.run([*arguments], place, 480)


def test_the_first_query_keeps_the_events_of_imported_profiles_and_leaves_their_folder_alone(
    hpcprof: Hpcprof, place: Path
) -> None:
    before = sorted((place / "ddp").rglob("*"))
    sql = "SELECT rank, count(*) AS kernels, count(DISTINCT step) AS steps FROM kernels GROUP BY 1 ORDER BY 1"
    done = hpcprof("query", "--events", sql, "ddp", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert "(2 of 2)" not in done.stderr  # a quick collect tells no progress where there is no terminal
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert {row["steps"] for row in rows} == {"5"}
    asked = "SELECT rank, sum(instances) AS kernels FROM analysis_kernels GROUP BY rank ORDER BY rank"
    stored = list(csv.DictReader(io.StringIO(hpcprof("query", asked, "--format", "csv").stdout)))
    assert [row["kernels"] for row in stored] == [row["kernels"] for row in rows]
    again = hpcprof("query", "--events", sql, "ddp", "--format", "csv")
    assert (again.stdout, again.stderr) == (done.stdout, "")
    assert sorted((place / "ddp").rglob("*")) == before


@pytest.mark.parametrize("sql", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_of_the_documentation_finds_something(place: Path, sql: str) -> None:
    # A profile of two ranks has few collectives that are slow; all are slower than no time.
    run = package.open(place / "ddp", runs_dir=place / "runs")
    frame = run.events(sql.replace("1.5 * median_ns", "1.05 * median_ns"))
    assert len(frame)
    assert set(frame.get("rank", (0, 1))) <= {0, 1}


def test_the_longest_gap_is_that_of_the_timeline(place: Path) -> None:
    run = package.open(place / "ddp", runs_dir=place / "runs")
    gaps = run.events(EXAMPLES[0]).set_index("rank")["longest_gap_ns"]
    kernels = run.timeline(1).kernels
    order = kernels.start.argsort(kind="stable")
    start, end = kernels.start[order], kernels.end[order]
    latest = end[0]
    longest = 0
    for one, last in zip(start[1:].tolist(), end[1:].tolist(), strict=True):
        longest, latest = max(longest, one - latest), max(latest, last)
    assert gaps[1] == longest


def test_formats_and_the_list_of_columns(hpcprof: Hpcprof) -> None:
    sql = "SELECT rank, step, start_ns FROM steps WHERE step < 2 ORDER BY ALL"
    found = json.loads(hpcprof("query", "--events", sql, "ddp", "--format", "json").stdout)
    assert [(row["rank"], row["step"]) for row in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert hpcprof("query", "--events", f"{sql} LIMIT 0", "ddp", "--format", "json").stdout == "[]\n"
    table = hpcprof("query", "--events", sql, "ddp").stdout.splitlines()
    assert table[0].split() == ["rank", "step", "start_ns"]
    listed = hpcprof("query", "--events", "--schema", "--format", "csv").stdout
    assert len(listed.splitlines()) == len(schema().rows) + 1


def test_the_reference_lists_every_table_with_its_columns() -> None:
    text = (DOCS / "reference/results.md").read_text("utf-8").partition("## Events in SQL")[2]
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text.partition("\n## ")[0], re.MULTILINE))
    columns: dict[str, list[str]] = {}
    for table, column, _ in schema().rows:
        columns.setdefault(str(table), []).append(str(column))
    assert {table: f"run, rank, {names}".split(", ") for table, names in documented.items()} == columns


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--events", "FROM read_text('/etc/passwd')", "ddp"), "reads nothing but the events of its runs"),
        (
            ("--events", "SELECT 1", "ddp", "--memory", "lots"),
            "--memory lots: write a whole number with K, M",
        ),
        (("SELECT 1", "ddp"), "RUN ddp is for --events: SQL on the results database names runs by run_id."),
    ],
)
def test_a_mistake_is_one_sentence(hpcprof: Hpcprof, arguments: tuple[str, ...], sentence: str) -> None:
    done = hpcprof("query", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert sentence in line


def test_ctrl_c_ends_a_query_and_removes_its_folder(place: Path, tmp_path: Path) -> None:
    sql = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE (a.range * b.range) % 7 = 3"
    asked = subprocess.Popen(
        [sys.executable, "-m", "hpcprof", "query", "--events", sql, "ddp"],
        cwd=place,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 240
        while not list(tmp_path.glob("hpcprof-query-*/spill")):
            assert asked.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        asked.send_signal(signal.SIGINT)
        _, said = asked.communicate(timeout=240)
    finally:
        asked.kill()
    assert asked.returncode in INTERRUPTED, said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_runs_that_lack_events_are_named_and_the_others_are_asked(hpcprof: Hpcprof, place: Path) -> None:
    (place / "other").mkdir()
    (place / "other/rank0.pt.trace.json.gz").write_bytes(
        (DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes()
    )
    sql = "SELECT DISTINCT run, rank FROM kernels ORDER BY ALL"
    done = hpcprof("query", "--events", sql, "other", "ddp")
    assert done.returncode == 1
    assert "has not been collected: run hpcprof collect" in done.stderr
    assert hpcprof("collect", "other").returncode == 0
    (place / "other/rank0.pt.trace.json.gz").unlink()
    done = hpcprof("query", "--events", sql, "ddp", "other", "--format", "csv")
    assert len(done.stdout.splitlines()) == 3
    assert re.search(r"the events of rank 0 of other-\w+ are missing: its profile is gone\.", done.stderr)
    alone = hpcprof("query", "--events", sql, "other")
    assert alone.returncode == 1
    assert alone.stderr.splitlines()[-1].endswith("are missing: its profile is gone.")


def test_what_version_0_1_kept_is_asked_too(hpcprof: Hpcprof, place: Path) -> None:
    (place / "old").mkdir()
    profile = place / "old/rank0.pt.trace.json.gz"
    profile.write_bytes((DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes())
    assert hpcprof("collect", "old").returncode == 0
    with tarfile.open(DATA / "timeline_0.1.tar.xz") as archive:
        archive.extractall(place / "runs", filter="data")
    with closing(sqlite3.connect(place / "runs/hpcprof.db")) as store, store:
        store.execute("UPDATE profiles SET sha256 = 'f00d' WHERE run_id LIKE 'old-%'")
    profile.unlink()
    done = hpcprof(
        "query", "--events", "SELECT count(*) AS n, count(step) AS s FROM kernels", "old", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    (counts,) = json.loads(done.stdout)
    assert counts["n"] == counts["s"] > 0
    assert not list((place / "runs/timeline").glob("rank*"))


def test_removing_imported_profiles_removes_their_events(hpcprof: Hpcprof, place: Path) -> None:
    (place / "gone").mkdir()
    (place / "gone/rank0.pt.trace.json.gz").write_bytes(
        (DATA / "ddp_step_rank0.pt.trace.json.gz").read_bytes()
    )
    assert hpcprof("collect", "gone").returncode == 0
    assert hpcprof("query", "--events", "SELECT count(*) FROM kernels", "gone").returncode == 0
    assert list((place / "runs/timeline/kernels").glob("run=gone-*"))
    assert hpcprof("rm", "--yes", "gone").returncode == 0
    assert not list((place / "runs/timeline").glob("*/run=gone-*"))
    assert list((place / "gone").iterdir())
