"""Collecting by Dask workers in batch jobs: on a real Slurm."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import INTERRUPTED, Hpcprof
from tests.data.many_ranks import write_all
from tests.integration.conftest import Database
from tests.integration.slurm_cluster import Cluster
from tests.integration.test_schedulers import running_slurm as running_slurm
from tests.integration.test_schedulers import slurm as slurm
from tests.waiting import until

# To import dask-jobqueue here would change what Ctrl-C does in all tests of this process.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("dask_jobqueue") is None, reason="there is no dask-jobqueue"),
]

RANKS = 6
WORDS = ["--executor", "dask", "--site", "slurm", "--nodes", "2", "--jobs", "2", "--walltime", "5m"]


def test_cancelled_jobs_are_replaced_and_the_store_is_that_of_one_process(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All nodes are this machine: nothing listens on another interface.
    monkeypatch.setenv("DASK_JOBQUEUE__SLURM__INTERFACE", "lo")
    write_all(tmp_path / "profiles", RANKS, 200)
    hpcprof("collect", "--db", "reference.db", "profiles")
    command = [sys.executable, "-m", "hpcprof", "collect", *WORDS, "--db", "dask.db", "profiles"]
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as running,
        ExitStack() as stopped,
    ):
        assert running.stderr is not None
        stopped.callback(running.kill)
        said = [running.stderr.readline(), running.stderr.readline()]
        assert re.fullmatch(r"hpcprof: Dask dashboard: http://127\.0\.0\.1:\d+/status\n", said[0])
        assert f"(1 of {RANKS})" in said[1]
        for job in slurm.command("squeue", "--noheader", "--format=%i").split():
            slurm.command("scancel", job)
        printed, _ = running.communicate(timeout=480)
    assert f"{RANKS} profiles collected" in printed
    assert Database(str(tmp_path / "dask.db")).dump() == Database(str(tmp_path / "reference.db")).dump()
    until(lambda: not slurm.command("squeue", "--noheader").strip())
    assert {path.suffix for path in (tmp_path / "runs/dask-workers").iterdir()} == {".out", ".err"}


def test_a_queue_that_slurm_does_not_have_is_named_at_once(
    slurm: Cluster, new_hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_JOBQUEUE__SLURM__INTERFACE", "lo")
    write_all(tmp_path / "profiles", 1, 200)
    done = new_hpcprof("collect", *WORDS, "--queue", "nowhere", "profiles")
    assert done.returncode == 1
    assert "the jobs of the Dask workers cannot be submitted: sbatch: error: invalid partition" in done.stderr


def test_ctrl_c_ends_the_jobs(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_JOBQUEUE__SLURM__INTERFACE", "lo")
    write_all(tmp_path / "profiles", RANKS, 200)
    command = [sys.executable, "-m", "hpcprof", "collect", *WORDS, "profiles"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running,
        ExitStack() as stopped,
    ):
        assert running.stderr is not None
        stopped.callback(running.kill)
        assert "Dask dashboard" in running.stderr.readline()
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=480)
    assert running.returncode in INTERRUPTED, said
    assert said.strip() == "hpcprof: interrupted."
    until(lambda: not slurm.command("squeue", "--noheader").strip())
