"""Runs on a host that is reached by a real OpenSSH server, with a stand-in for PBS and with a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Hpcprof
from tests.integration.slurm_cluster import Cluster
from tests.integration.ssh_server import SshServer, Unavailable, ssh_server
from tests.integration.test_schedulers import STANDIN
from tests.integration.test_schedulers import running_slurm as running_slurm
from tests.waiting import until

pytestmark = pytest.mark.slow

SITES = {
    "pbs": "extends: generic-pbs\nlauncher: {name: none}\n",
    "slurm": "extends: generic-slurm\nlauncher: {name: srun, arguments: [--mpi=none]}\n",
}


def start(folder: Path, environment: dict[str, str]) -> Iterator[SshServer]:
    try:
        with ssh_server(folder, {"HOME": f"{folder}/home", **environment}) as server:
            yield server
    except Unavailable as missing:
        assert not os.environ.get("CI"), f"CI installs OpenSSH: {missing}"
        pytest.skip(str(missing))


@pytest.fixture
def ssh(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """A host ``cluster`` with the stand-in for PBS, which this machine does not have."""
    folder = tmp_path_factory.mktemp("ssh")
    (folder / "pbs").mkdir()
    environment = {
        "PBS_STANDIN": f"{folder}/pbs",
        "PBS_STANDIN_PYTHON": sys.executable,
        "PATH": f"{STANDIN}:/usr/bin:/bin",
        "SQUEUE_FORMAT": "misleading",
    }
    for server in start(folder, environment):
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        yield server


@pytest.fixture
def pbs(ssh: SshServer, tmp_path: Path) -> SshServer:
    write_site(tmp_path, "pbs")
    return ssh


def write_site(folder: Path, name: str) -> None:
    (folder / "site_configs").mkdir(exist_ok=True)
    (folder / "site_configs" / f"{name}.yaml").write_text(SITES[name])


def submit(hpcprof: Hpcprof, *words: str) -> str:
    done = hpcprof("submit", "--host", "cluster", "--site", "pbs", "--walltime", "5m", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("submitted ")[2].strip()


def state(hpcprof: Hpcprof) -> str:
    return hpcprof("status").stdout.splitlines()[-1].split()[1]


def test_a_run_is_submitted_followed_and_its_logs_are_read_by_ssh(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    run = submit(hpcprof, "--", "sh", "-c", 'pwd; echo "it\'s $0 here"; exit 3', "a 'b' $c")
    until(lambda: state(hpcprof) == "failed")
    assert "exit code 3" in hpcprof("status").stdout
    assert f"{pbs.home}\nit's a 'b' $c here\n" in hpcprof("logs").stdout
    assert (pbs.home / "hpcprof-runs" / run / "job.sh").is_file()
    manifest = json.loads((tmp_path / "runs" / run / "run.json").read_text())
    assert manifest["site"]["host"] == "cluster"
    assert manifest["site"]["runs_dir"] == f"{pbs.home}/hpcprof-runs"
    assert manifest["job"]["directory"] == str(pbs.home)
    assert manifest["git"] is None


def test_a_run_is_cancelled_by_ssh(pbs: SshServer, hpcprof: Hpcprof) -> None:
    submit(hpcprof, "--", "sleep", "300")
    until(lambda: state(hpcprof) == "running")
    done = hpcprof("cancel", "last")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cancelled" in done.stdout
