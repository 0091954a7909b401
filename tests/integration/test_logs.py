"""``-v``, ``-vv`` and ``HPCPROF_LOG`` on real commands."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcprof.cli.main import COMMANDS
from tests.conftest import Hpcprof
from tests.waiting import until

STANDIN = Path(__file__).parents[1] / "standins" / "pbs"
QSTAT = re.compile(r"^\$ qstat .*  \[exit code 0, \d+\.\d\d s\]$", re.MULTILINE)


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hpcprof: Hpcprof) -> Iterator[None]:
    """A run on the stand-in for PBS that has not ended, so that the scheduler is asked about it."""
    (tmp_path / "pbs-server").mkdir()
    (tmp_path / "site_configs").mkdir()
    (tmp_path / "site_configs/pbs.yaml").write_text("extends: generic-pbs\nlauncher: {name: mpiexec}\n")
    monkeypatch.setenv("PBS_STANDIN", str(tmp_path / "pbs-server"))
    monkeypatch.setenv("PBS_STANDIN_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{STANDIN}:{os.environ['PATH']}")
    submitted = hpcprof("submit", "--site", "pbs", "--walltime", "5m", "--", "sleep", "300")
    assert submitted.returncode == 0, submitted.stderr
    until(lambda: " running" in hpcprof("status").stdout)
    yield
    assert hpcprof("cancel", "last").returncode == 0


@pytest.mark.usefixtures("pbs")
def test_v_shows_the_schedulers_commands_on_standard_error_and_vv_their_output(hpcprof: Hpcprof) -> None:
    quiet = hpcprof("status")
    assert quiet.stderr == ""
    for words in (["-v", "status"], ["status", "-v"], ["status", "--verbose", "last"]):
        done = hpcprof(*words)
        assert (done.returncode, done.stdout) == (0, quiet.stdout), words
        assert QSTAT.search(done.stderr), words
        assert "stdout of qstat" not in done.stderr, words
    for words in (["-vv", "status"], ["-v", "status", "-vv"]):
        done = hpcprof(*words)
        assert QSTAT.search(done.stderr), words
        output = done.stderr.partition("stdout of qstat:\n")[2]
        assert re.search(r'^ +"timestamp": +\d+', output, re.MULTILINE), words


@pytest.mark.usefixtures("pbs")
def test_the_log_file_keeps_the_commands_of_several_calls(
    hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCPROF_LOG", "hpcprof.log")
    for _ in range(2):
        done = hpcprof("status")
        assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "hpcprof.log").read_text()
    assert len(re.findall(r"^\d{4}-\d\d-\d\dT.* INFO \$ qstat ", text, re.MULTILINE)) == 2
    assert len(re.findall(r" DEBUG hpcprof [\d.]+: hpcprof status$", text, re.MULTILINE)) == 2


def test_submit_shows_the_launcher_that_job_sh_will_run(hpcprof: Hpcprof) -> None:
    if shutil.which("mpiexec") is None and not Path(sys.executable).with_name("mpiexec").is_file():
        pytest.skip("no mpiexec is installed")
    done = hpcprof("submit", "-v", "--ranks-per-node", "2", "--wait", "--", "true")
    assert re.search(r"^\$ .*mpiexec -n 2 .*wrapper\.sh  \[for job\.sh to run\]$", done.stderr, re.MULTILINE)


def test_collect_shows_the_commands_of_its_worker_processes(
    hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = tmp_path / "bin/nsys"
    nsys.parent.mkdir()
    nsys.write_text("#!/bin/sh\necho no licence >&2\nexit 3\n")
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{nsys.parent}:{os.environ['PATH']}")
    (tmp_path / "profiles").mkdir()
    for rank in range(2):
        (tmp_path / f"profiles/rank{rank:05d}.nsys-rep").write_bytes(b"x")
    done = hpcprof("collect", "-vv", "--jobs", "2", "profiles")
    # Its help is asked for, too.
    for words in ("--help", "--type=sqlite"):
        found = re.findall(rf"^\$ .*/nsys export .*{words}.*\[exit code 3, ", done.stderr, re.MULTILINE)
        assert len(found) == 2, done.stderr
    assert done.stderr.count("    no licence\n") == 4


def test_a_log_file_that_cannot_be_written_stops_the_command_at_once(
    hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCPROF_LOG", "missing/hpcprof.log")
    done = hpcprof("submit", "--", "true")
    assert (done.returncode, (tmp_path / "runs").exists()) == (2, False)
    assert (
        done.stderr
        == "hpcprof: HPCPROF_LOG=missing/hpcprof.log cannot be written: No such file or directory.\n"
    )


@pytest.mark.parametrize("name", ["", *COMMANDS, "study slowdown", "sites list", "container run"])
def test_every_command_has_v_in_its_help(name: str, hpcprof: Hpcprof) -> None:
    assert "-v, --verbose" in hpcprof(*name.split(), "--help").stdout
