"""The fastest of several variants, on one rank without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcprof.workloads.sequence_parallel.modes import tuning
from hpcprof.workloads.sequence_parallel.modes.tuning import fastest


class Simulated:
    """A clock that only a variant's work moves, and the order in which the variants ran."""

    def __init__(self) -> None:
        self.now = 0
        self.ran: list[int] = []

    def mark(self) -> int:
        return self.now

    def elapsed_ns(self, start: int, end: int) -> int:
        return end - start

    def run(self, index: int, time: int) -> None:
        assert index == len(self.ran) - self.first
        self.ran.append(time)
        self.now += time

    first = 0


def chosen(monkeypatch: pytest.MonkeyPatch, times: list[int], peers: list[float] | None = None) -> Any:
    clock = Simulated()
    monkeypatch.setattr(tuning, "clock_for", lambda device: clock)

    def gather(mine: list[float]) -> list[list[float]]:
        # The index of the steps begins again in the next trials.
        clock.first = len(clock.ran)
        return [mine, peers if peers and len(peers) == len(mine) else mine]

    world: Any = SimpleNamespace(comm=SimpleNamespace(allgather=gather), device=torch.device("cpu"))
    return fastest(world, clock.run, times), clock


def test_the_fastest_variant_is_found_and_slow_ones_run_only_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = [1000 + 100 * (which * 7 % 11) for which in range(11)]
    found, clock = chosen(monkeypatch, times)
    assert found == 1000
    assert clock.ran.count(2000) == tuning._TRIALS[0] < clock.ran.count(1000)
    # In turns, and every second turn in reverse.
    assert clock.ran[:22] == times + times[::-1]


def test_within_the_noise_the_variant_to_prefer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, [1005, 1000, 1300, 1400, 1500, 1600])[0] == 1005
    assert chosen(monkeypatch, [1050, 1000, 1300, 1400, 1500, 1600])[0] == 1000


def test_the_slowest_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, [1000, 1200, 1300], peers=[9000.0, 1200.0, 1300.0])[0] == 1200


def test_a_single_variant_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found, clock = chosen(monkeypatch, [1000])
    assert (found, clock.ran) == (1000, [])
