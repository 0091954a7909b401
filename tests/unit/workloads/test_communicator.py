"""The communicator of ranks without MPI."""

from __future__ import annotations

import sys

import pytest

from hpcprof.workloads.communicator import communicator, launcher_versions, node_communicator


@pytest.fixture(autouse=True)
def _no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)


def test_one_rank_without_a_launcher_needs_no_mpi() -> None:
    alone = communicator({"HPCPROF_LAUNCHER": "none"})
    assert (alone.rank, alone.size) == (0, 1)
    assert (alone.allgather("x"), alone.bcast(2), alone.allreduce(3)) == (["x"], 2, 3)
    alone.Barrier()
    assert node_communicator(alone).size == 1
    assert launcher_versions(alone) == {}


@pytest.mark.parametrize("environ", [{}, {"HPCPROF_LAUNCHER": "srun"}])
def test_ranks_that_mpi_started_need_mpi4py(environ: dict[str, str]) -> None:
    with pytest.raises(ImportError, match="mpi4py"):
        communicator(environ)
