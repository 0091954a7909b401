"""Collecting by Dask workers in batch jobs: on a real Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Hpcprof
from tests.data.many_ranks import write_all
from tests.integration.slurm_cluster import Cluster
from tests.integration.test_collect_processes import dump
from tests.integration.test_schedulers import running_slurm as running_slurm
from tests.integration.test_schedulers import slurm as slurm
from tests.integration.test_schedulers import until

pytest.importorskip("dask_jobqueue", reason="there is no dask-jobqueue")
pytestmark = pytest.mark.slow

RANKS = 6


def test_workers_in_jobs_of_slurm_make_the_store_that_one_process_makes(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All nodes are this machine: nothing listens on another interface.
    monkeypatch.setenv("DASK_JOBQUEUE__SLURM__INTERFACE", "lo")
    write_all(tmp_path / "profiles", RANKS, 200)
    words = ["--executor", "dask", "--site", "slurm", "--nodes", "2", "--jobs", "2", "--walltime", "5m"]
    done = hpcprof("collect", *words, "--db", "dask.db", "profiles")
    assert done.returncode == 0, done.stderr
    assert f"{RANKS} profiles collected" in done.stdout
    assert re.search(r"Dask dashboard: http://127\.0\.0\.1:\d+/status", done.stderr)
    hpcprof("collect", "--db", "reference.db", "profiles")
    assert dump(tmp_path / "dask.db") == dump(tmp_path / "reference.db")
    until(lambda: not slurm.command("squeue", "--noheader").strip())
