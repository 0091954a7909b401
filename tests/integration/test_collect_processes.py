"""Collecting ranks in several processes, over MPI, and what is left when that is cut short."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.cli.collect import ProgressBar
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.collect import rank_task
from hpcprof.results.collect.rank_task import ProfileTask, analyze_profile
from tests.conftest import INTERRUPTED, Hpcprof
from tests.data.many_ranks import write_all
from tests.integration.conftest import Database
from tests.waiting import until

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
RANKS = 6

# As a sitecustomize.py: the processes that read profiles are started by another one.
STUCK = """
import os, pathlib, time
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.results.collect import rank_task
read = rank_task.read_profile
def read_profile(path, *rest):
    if path.name == "rank00002.sqlite":
        pathlib.Path({told!r} + ".part").write_text(str(os.getpid()))
        os.rename({told!r} + ".part", {told!r})
        time.sleep(600)
    return read(path, *rest)
rank_task.read_profile = read_profile
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Profiles of some ranks in a folder that hpcprof did not make."""
    write_all(tmp_path / "profiles", RANKS, 500)
    return tmp_path / "profiles"


@pytest.fixture
def run(hpcprof: Hpcprof, tmp_path: Path) -> Path:
    """A run directory with the same profiles."""
    hpcprof("submit", "--site", "local", "--wait", "--", "true")
    (run,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    write_all(run / "profiles", RANKS, 500)
    return run


def test_workers_of_all_phases_find_what_they_need_imported_and_no_database() -> None:
    program = (
        "import sys; from importlib import import_module; "
        "from hpcprof.results.collect.rank_task import PRELOAD; "
        "[import_module(name) for name in PRELOAD]; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {*done.stdout.split()}
    maps = {analysis.map.partition(":")[0] for analysis in ANALYSES.values() if analysis.map}
    assert {"hpcprof.results.collect.over_ranks", *maps} < imported
    assert "sqlalchemy" not in imported


def test_several_processes_make_the_store_that_one_makes(
    hpcprof: Hpcprof, folder: Path, tmp_path: Path
) -> None:
    for jobs in (1, 3):
        done = hpcprof("collect", "--jobs", str(jobs), "--db", f"{jobs}.db", str(folder))
        assert f"{RANKS} profiles collected" in done.stdout, done.stderr
    assert Database(str(tmp_path / "1.db")).dump() == Database(str(tmp_path / "3.db")).dump()


def test_timelines_are_kept_beside_a_run_and_nowhere_else(hpcprof: Hpcprof, folder: Path, run: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert hpcprof("collect", str(folder)).returncode == 0
    assert sorted(folder.rglob("*")) == before
    assert hpcprof("collect", "--jobs", "2", run.name).returncode == 0
    with sqlite3.connect(run.parent / "hpcprof.db") as store:
        query = "SELECT rank, sha256 FROM profiles WHERE run_id = ?"
        checksums = dict(store.execute(query, (run.name,)).fetchall())
    for rank, sha256 in checksums.items():
        timeline = RankEvents(run / "timeline", run.name, rank, sha256).load()
        assert timeline is not None
        assert len(timeline.kernels) == 500
    files = json.loads((run / "run.json").read_text())["files"]
    assert f"timeline/kernels/run={run.name}/rank=0/events.parquet" in files


def test_profiles_whose_rows_cannot_be_kept_are_named(hpcprof: Hpcprof, run: Path) -> None:
    (run / "timeline").write_text("a file where the folder should be")
    done = hpcprof("collect", "--jobs", "2", run.name)
    assert done.returncode == 1
    assert re.search(r"rank0000\d\.sqlite was not collected: ", done.stderr)
    assert "cannot be written: Not a directory (and 5 more files, by other numbers)." in done.stderr
    assert "Traceback" not in done.stderr


def start_collect(folder: Path, *options: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a collect by two processes of which one is stuck; return the file that tells which, too."""
    site, told = folder.parent / "site", folder.parent / "stuck"
    site.mkdir()
    (site / "sitecustomize.py").write_text(STUCK.format(told=str(told)))
    collecting = subprocess.Popen(
        [sys.executable, "-m", "hpcprof", "collect", *options, "--jobs", "2", str(folder)],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return collecting, told


def test_a_process_that_is_killed_costs_its_rank_only(folder: Path, hpcprof: Hpcprof) -> None:
    collecting, stuck = start_collect(folder)
    until(stuck.exists)
    os.kill(int(stuck.read_text()), signal.SIGKILL)
    printed, said = collecting.communicate(timeout=480)
    assert collecting.returncode == 1
    assert f"{RANKS - 1} profiles collected, 0 unchanged, 1 skipped" in printed
    assert "rank00002.sqlite was not collected: its process was killed" in said
    assert "1 profile collected, 5 unchanged" in hpcprof("collect", str(folder)).stdout


@pytest.mark.slow
def test_ctrl_c_leaves_a_store_that_the_next_collect_completes(
    folder: Path, tmp_path: Path, hpcprof: Hpcprof
) -> None:
    collecting, stuck = start_collect(folder)
    until(stuck.exists)  # so another rank has been read
    os.killpg(collecting.pid, signal.SIGINT)
    _, said = collecting.communicate(timeout=480)
    assert collecting.returncode in INTERRUPTED, said
    assert said.splitlines()[-1] == "hpcprof: interrupted."
    assert "Traceback" not in said, said
    hpcprof("collect", "--db", "reference.db", str(folder))
    done = hpcprof("collect", str(folder))
    assert " 0 unchanged" not in done.stdout
    assert (
        Database(str(tmp_path / "runs/hpcprof.db")).dump() == Database(str(tmp_path / "reference.db")).dump()
    )


def test_a_profile_that_changes_while_it_is_read_is_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "rank00000.sqlite"
    read = read_profile

    def grow(path: Path, *_: object) -> object:
        timeline = read(path)
        with path.open("ab") as file:
            file.write(b"more")
        return timeline

    monkeypatch.setattr(rank_task, "read_profile", grow)
    result = analyze_profile(ProfileTask(path, 0))
    assert isinstance(result, DamagedInput)
    assert "changed while it was read" in str(result)


def test_a_bar_shows_ranks_rate_and_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    clock = iter([0.0, 10.0, 20.0])
    # Only this module's clock: others read that of the process meanwhile.
    monkeypatch.setattr("hpcprof.cli.collect.time", SimpleNamespace(monotonic=lambda: next(clock)))
    with ProgressBar() as progress:
        progress(5, 100, Path("rank00004.sqlite"))
        half = capsys.readouterr().err
        progress(100, 100, Path("rank00099.sqlite"))
    assert "[=                       ] 5 of 100 ranks, 0.5 a second, 3 min 10 s left" in half
    assert "100 of 100 ranks, 5.0 a second, 0 s left" in capsys.readouterr().err


def test_without_a_terminal_progress_is_told_only_while_a_collect_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 3.0, 3.0, 4.0])
    monkeypatch.setattr("hpcprof.cli.collect.time", SimpleNamespace(monotonic=lambda: next(clock)))
    with ProgressBar() as progress:
        for finished in (1, 2, 3):
            progress(finished, 3, Path(f"rank{finished}.sqlite"))
    assert capsys.readouterr().err == "rank2.sqlite (2 of 3)\n"


def test_a_worker_that_is_ended_in_a_destructor_ends_without_a_word() -> None:
    program = (
        "import os, signal, time\n"
        "from hpcprof.results.collect.executors.processes import _end_worker\n"
        "signal.signal(signal.SIGTERM, _end_worker)\n"
        "class Writer:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.1)\n"
        "writer = Writer()\n"
        "del writer\n"
        "print('it goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
