"""The failure of one rank ends the job."""

from __future__ import annotations

import os
import threading
import time

import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.workloads import failure
from hpcprof.workloads.distributed import check_launch
from hpcprof.workloads.failure import run_or_abort
from hpcprof.workloads.rankenv import RankEnvironment


class Comm:
    """A communicator that remembers its abort."""

    rank = 1
    size = 2
    aborted: int | None = None

    def Abort(self, code: int) -> None:
        self.aborted = code


def failing(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(("error", "code"), [(UsageError("No such thing."), 2), (HpcprofError("No."), 1)])
def test_a_users_mistake_is_one_sentence_with_the_rank_and_no_traceback(
    error: HpcprofError, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    comm = Comm()
    with pytest.raises(SystemExit):
        run_or_abort(comm, lambda: failing(error))
    assert comm.aborted == code
    assert capfd.readouterr().err == f"rank 1: {error}\n"


def test_a_bug_keeps_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    comm = Comm()
    with pytest.raises(SystemExit):
        run_or_abort(comm, lambda: failing(KeyError("x")))
    assert comm.aborted == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "rank 1: KeyError: 'x'"


def test_an_abort_waits_until_the_launcher_has_read_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_PATIENCE_S", 600.0)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"the sentence")
        waiting = threading.Thread(target=failure._wait_until_read, args=(writer,))
        waiting.start()
        assert waiting.is_alive()
        os.read(reader, 100)
        waiting.join(timeout=60)
        assert not waiting.is_alive()
    finally:
        os.close(reader)
        os.close(writer)


def test_an_abort_does_not_wait_for_a_launcher_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_PATIENCE_S", 0.05)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"the sentence")
        begun = time.monotonic()
        failure._wait_until_read(writer)
        assert time.monotonic() - begun >= 0.05
    finally:
        os.close(reader)
        os.close(writer)


def test_success_returns_the_status_and_aborts_nothing() -> None:
    comm = Comm()
    assert run_or_abort(comm, lambda: 5) == 5
    assert comm.aborted is None


def test_singletons_of_a_wrong_mpi_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^MPI has 2 ranks, but the launcher started 4: mpi4py uses \w+"):
        check_launch(Comm(), RankEnvironment(world_size=4))


def test_a_wrapper_that_counts_the_ranks_differently_is_refused() -> None:
    with pytest.raises(UsageError, match="MPI reports rank 1, but HPCPROF_RANK is 0"):
        check_launch(Comm(), RankEnvironment(rank=0, world_size=2))


def test_a_launch_that_agrees_or_says_nothing_is_accepted() -> None:
    check_launch(Comm(), RankEnvironment(rank=1, world_size=2))
    check_launch(Comm(), RankEnvironment())
