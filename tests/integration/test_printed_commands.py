"""The commands that messages print work as printed, also with another folder of runs and another database."""

from __future__ import annotations

import lzma
import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hpcprof.runs.directory import save
from tests.conftest import Hpcprof
from tests.submitted_run import MakeRun, make_run

__all__ = ["make_run"]

DATA = Path(__file__).parents[1] / "data"
ELSEWHERE = ("--db", "results of all/store.db")


def export(folder: Path, rank: int = 0, keep: str = "") -> None:
    """Put a real export into a folder; if a name is given, with its ranges alone and few kernels."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{rank}.sqlite"
    path.write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
    if keep:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM NVTX_EVENTS WHERE text IS NOT ?", (keep,))
            # Steps would be found from launches, and from kernels.
            for table in ("RUNTIME", "MEMSET", "KERNEL"):
                connection.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE rowid > 4")


def printed(text: str, command: str) -> list[str]:
    """Return the words of the command that a message prints."""
    line = " ".join(text.split())
    found = re.search(rf"hpcprof ({command} .*?store\.db'(?: --(?:step-range|program) \w+)?)", line)
    assert found is not None, text
    return shlex.split(found[1])


@pytest.fixture
def collected(tmp_path: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a collected folder of profiles without steps, whose results are in another database."""
    # A narrow terminal folds long paths anywhere.
    monkeypatch.setenv("COLUMNS", "500")
    (tmp_path / "results of all").mkdir()
    export(tmp_path / "no steps", keep="allgather")
    assert hpcprof("collect", "no steps", *ELSEWHERE).returncode == 0
    return "no steps"


def test_the_range_that_a_report_proposes_can_be_taken(collected: str, hpcprof: Hpcprof) -> None:
    words = printed(hpcprof("report", collected, *ELSEWHERE).stdout, "collect")
    assert words[-2:] == ["--step-range", "allgather"]
    done = hpcprof("report", collected, *ELSEWHERE, "--analysis", "phases")
    assert printed(done.stdout + done.stderr, "collect") == words
    assert "1 profile collected" in hpcprof(*words).stdout
    steps = hpcprof("report", collected, *ELSEWHERE, "--analysis", "steps", "--format", "csv").stdout
    assert len(steps.splitlines()) == 44


def test_what_compare_proposes_is_a_command(collected: str, hpcprof: Hpcprof, tmp_path: Path) -> None:
    export(tmp_path / "other run", rank=1)
    assert hpcprof("collect", "other run", "--program", "a", *ELSEWHERE).returncode == 0
    assert hpcprof("collect", collected, "--program", "b", *ELSEWHERE).returncode == 0
    done = hpcprof("compare", collected, "other run", *ELSEWHERE)
    assert "the runs have different programs (a, b): " in done.stderr or "(b, a): " in done.stderr
    assert hpcprof(*printed(done.stderr, "compare --anyway")).returncode == 0


def test_what_was_collected_by_an_earlier_version_is_collected_again_by_a_report(
    collected: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "results of all/store.db")) as store, store:
        store.execute("UPDATE hpcprof_schema SET version = 4")
        store.execute("DROP TABLE analysis_kernels")
    done = hpcprof("report", collected, *ELSEWHERE, "--analysis", "kernels")
    said = r"hpcprof: no steps-\w+ was collected by an earlier version of hpcprof: collecting it first"
    assert re.search(said, done.stderr)
    assert "nccl" in done.stdout


def test_commands_name_another_folder_of_runs(make_run: MakeRun, hpcprof: Hpcprof, tmp_path: Path) -> None:
    run = save(make_run(scheduler="local"))
    runs = tmp_path / "my runs"
    shutil.copytree(run.path, runs / run.id)
    export(runs / run.id / "profiles")
    done = hpcprof("query", "SELECT 1", "--runs-dir", "my runs")
    assert done.returncode == 1
    found = re.search(r"run (hpcprof .*) first", done.stderr)
    assert found is not None and found[1] == "hpcprof collect --runs-dir 'my runs'"
    assert hpcprof(*shlex.split(found[1])[1:]).returncode == 0
    assert hpcprof("query", "SELECT 1", "--runs-dir", "my runs").returncode == 0


def test_an_unknown_run_is_answered_with_the_names_of_imported_ones(collected: str, hpcprof: Hpcprof) -> None:
    for command in (("report", "nothing"), ("rm", "--yes", "nothing")):
        done = hpcprof(*command, *ELSEWHERE)
        assert done.returncode == 2
        assert "unknown run 'nothing'" in done.stderr and "no steps-" in done.stderr
