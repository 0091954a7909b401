"""A profiled MPI program without a GPU, from its exports to the report, the page's timeline and traces."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import re
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from hpcprof.profiles.readers.kineto import MERGED
from hpcprof.report.page.timeline_data import timeline_data
from hpcprof.report.perfetto.export import TRACE
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run
from tests.conftest import Hpcprof
from tests.integration.chromium import barriers, open_page
from tests.unit.report.perfetto.decoded import decode

DATA = Path(__file__).parents[1] / "data"
PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "mpi_programs" / "mpi_programs.c"
RUN = "stencil"
NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")


@pytest.fixture
def folder(hpcprof: Hpcprof, tmp_path: Path) -> Path:
    """A folder with four ranks of a stencil, of which rank 2 works longer in each step."""
    (tmp_path / RUN).mkdir()
    for rank in range(4):
        packed = (DATA / f"mpi_stencil_slow_rank{rank}.sqlite.xz").read_bytes()
        path = tmp_path / RUN / f"rank{rank}.sqlite"
        path.write_bytes(lzma.decompress(packed))
        with closing(sqlite3.connect(path)) as export, export:
            export.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'node')")
    return tmp_path


def test_report_page_and_traces_show_the_messages_of_a_run(hpcprof: Hpcprof, folder: Path) -> None:
    report = " ".join(hpcprof("report", RUN).stdout.split())
    assert "load balance is lowest" in report
    assert "rank 2 between MPI_Isend and MPI_Waitall causes 8" in report
    assert "320 messages, 10.49 MB" in report
    assert "CUDA" not in report
    store = open_store(None, folder / "runs")
    (run,) = store.runs()
    data = timeline_data(Run(run.id, folder / RUN), store)
    ends = Counter(
        number for of in data["ranks"] for track in of["tracks"] for number in track["messages"]["number"]
    )
    # Each message has one slice that sends and one that receives it.
    assert set(ends.values()) == {1}
    assert {number for number in ends if number > 0} == {-number for number in ends if number < 0}
    assert len(ends) == 2 * 320
    hpcprof("export", run.id, "traces", "--to", "perfetto")
    trace = decode(gzip.decompress((folder / "traces" / TRACE).read_bytes()))
    assert {one.category for one in trace.slices} >= {"mpi", "mpi request", "step"}
    done = hpcprof("export", run.id, "traces", "--to", "chrome")
    assert "The clocks are the node's" in done.stderr
    events = json.loads(gzip.decompress((folder / "traces" / MERGED).read_bytes()))["traceEvents"]
    arrows = [
        {one["id"] for one in events if one.get("ph") == phase and one["cat"] == "mpi"} for phase in "sf"
    ]
    assert arrows[0] == arrows[1]
    assert len(arrows[0]) == 320


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("nsys") and shutil.which("mpicc")), reason="needs nsys and mpicc on the PATH"
)
@pytest.mark.parametrize(("export", "ending"), [("sqlite", ".sqlite"), ("parquet", "_pqtdir")])
def test_a_real_program_under_a_real_nsys_agrees_with_what_it_prints(
    export: str, ending: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["mpicc", "-O2", PROGRAMS, "-o", tmp_path / "program"], check=True, timeout=120)
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    options = ("--ranks-per-node", "2", "--profiler", "nsys", "--profiler-option", f"export={export}")
    done = hpcprof("run", *options, "--", "./program", "halo", "--steps", "30", "--late", "1", "--extra", "6")
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.glob(f"runs/*/profiles/rank00001{ending}")]
    assert "30 on each of 2 ranks" in " ".join(done.stdout.split())
    printed = (log.read_text() for log in tmp_path.glob("runs/*/logs/rank*.out"))
    rows = [[*map(float, NUMBER.findall(text))] for text in printed if "TRUTH" in text]
    computes = {int(rank): compute / wall for rank, wall, compute in rows}
    assert computes.keys() == {0, 1}
    report = hpcprof("report", "--analysis", "pop", "--format", "csv").stdout
    (step,) = [row for row in csv.DictReader(report.splitlines()) if row["scope"] == "step"]
    # What else the machine does beside the program counts as computing.
    useful = 100 * sum(computes.values()) / 2
    assert float(step["parallel_efficiency_pct"]) == pytest.approx(useful, abs=10)
    calls = csv.DictReader(
        hpcprof("report", "--analysis", "mpi_calls", "--format", "csv").stdout.splitlines()
    )
    sent = {int(row["rank"]): int(row["calls"]) for row in calls if row["call"] == "MPI_Isend"}
    assert sent == {0: 60, 1: 60}


@pytest.mark.slow
def test_axe_finds_nothing_on_the_page(
    hpcprof: Hpcprof, folder: Path, browser: Browser, web_packages: Path
) -> None:
    assert hpcprof("report", RUN, "--html", "page.html").returncode == 0
    opened = open_page(browser, folder / "page.html", bypass_csp=True)
    assert barriers(opened, web_packages) == []
    page = opened.page
    assert "load balance" in page.locator("#efficiencies").inner_text()
    page.locator('[data-part="messages"] .heat-map-area').focus()
    page.keyboard.press("ArrowRight")
    said = page.locator('[data-part="messages"] .heat-map-said').inner_text()
    assert "bytes 1.311 MB, messages 40" in said
    assert opened.complaints == []
