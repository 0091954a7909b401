"""The watchdog names the rank that is lost and where it was."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch.distributed as dist

from hpcprof.workloads import watchdog
from hpcprof.workloads.watchdog import Watchdog


class Comm:
    """The communicator of one of several ranks in this process."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def Barrier(self) -> None:
        """Pass: the test starts the ranks one after the other."""


Ranks = tuple[list[Watchdog], "queue.Queue[str]"]
Begin = Callable[[Watchdog], None]


def nothing(one: Watchdog) -> None:
    """Leave a rank at its start."""


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    """Create three ranks that share a store; their messages go into a queue.

    Where they have come to when they start to tell each other is one step, on a machine however busy.
    """
    monkeypatch.setattr(watchdog, "_BEAT_S", 0.02)
    monkeypatch.setattr(watchdog, "_SILENT_S", 4.0)
    said: queue.Queue[str] = queue.Queue()

    def end(comm: Any, text: str, code: int) -> None:
        assert code == 1
        said.put(text)

    with ExitStack() as stack:

        def make(timeout_s: float, begin: Begin = nothing) -> Ranks:
            store = dist.HashStore()
            made = [Watchdog(Comm(rank, 3), store, timeout_s, end) for rank in range(3)]
            # The fallback would end the process of the tests.
            monkeypatch.setattr("hpcprof.workloads.watchdog.os._exit", lambda code: None)
            for one in made:
                begin(one)
            for one in made:
                stack.enter_context(one)
            return made, said

        yield make


def test_the_rank_that_is_behind_the_others_is_named_with_its_phase(ranks: Callable[..., Ranks]) -> None:
    def begin(one: Watchdog) -> None:
        one.enter("allgather of step 4")
        if one._comm.rank != 1:
            one.enter("reduce_scatter of step 4")

    _, said = ranks(1.0, begin)
    sentence = "no progress for 1 s (--step-timeout): rank 1 hangs in allgather of step 4.\n"
    assert said.get(timeout=60) == sentence


def test_a_rank_of_which_nothing_is_heard_is_named_with_what_it_said_last(
    ranks: Callable[..., Ranks],
) -> None:
    made, _ = ranks(60)
    made[2].enter("matmul_1 of step 7")
    while made[2]._count == 0:
        time.sleep(0.01)
    made[2]._tell()
    assert made[0].lost() is None
    # Its thread ends as if the process were killed.
    made[2]._stopped.set()
    made[2]._thread.join()
    expected = "rank 2 died or was stopped; its last sign of life came from matmul_1 of step 7."
    assert made[0].lost() == expected


def test_ranks_that_all_hang_in_the_same_phase_are_all_named(ranks: Callable[..., Ranks]) -> None:
    _, said = ranks(1.0, lambda one: one.enter("allgather of step 0"))
    assert said.get(timeout=60).endswith("all 3 ranks hang in allgather of step 0.\n")


def test_the_point_of_a_sweep_is_named_with_the_phase(ranks: Callable[..., Ranks]) -> None:
    def begin(one: Watchdog) -> None:
        one.within("hidden-size=64")
        one.enter("allgather of step 0")

    _, said = ranks(1.0, begin)
    assert said.get(timeout=60).endswith("hang in allgather of step 0 at hidden-size=64.\n")


def test_what_the_device_has_not_come_to_does_not_count(ranks: Callable[..., Ranks]) -> None:
    def begin(one: Watchdog) -> None:
        one.enter("matmul_1 of step 2")
        one.enter("matmul_2 of step 2", lambda: False)

    _, said = ranks(1.0, begin)
    assert "hang in matmul_1 of step 2" in said.get(timeout=60)


def test_ranks_that_go_on_are_left_in_peace(ranks: Callable[..., Ranks]) -> None:
    made, said = ranks(3.0)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for one in made:
            one.enter("a step")
        time.sleep(0.01)
    assert said.empty()
