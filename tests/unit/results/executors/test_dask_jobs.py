"""What the import of dask-jobqueue changes; the jobs are tested on a real Slurm."""

from __future__ import annotations

import signal
import sys

import pytest

from hpcprof.results.executors.dask_jobs import _dask_jobqueue


def test_dask_jobqueue_leaves_ctrl_c_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    for name in [name for name in sys.modules if name.startswith("dask_jobqueue")]:
        monkeypatch.delitem(sys.modules, name)
    before = signal.getsignal(signal.SIGINT)
    assert _dask_jobqueue().SLURMCluster
    assert signal.getsignal(signal.SIGINT) is before
