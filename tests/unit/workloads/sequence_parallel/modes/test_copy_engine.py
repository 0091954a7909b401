"""The copy-engine mode computes the block with every schedule; threads stand in for ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcprof.workloads.sequence_parallel.buffers import Buffers, allocate
from hpcprof.workloads.sequence_parallel.modes import copy_engine
from hpcprof.workloads.sequence_parallel.modes.copy_engine import CopyEngine, sum_by_torch
from hpcprof.workloads.sequence_parallel.modes.row_groups import Schedule
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import UntimedPhases

ROWS, HIDDEN = 12, 16


class Shared:
    """Memory that the threads of all ranks see, and their barrier."""

    def __init__(self, ranks: int) -> None:
        self.waiting = threading.Barrier(ranks)
        self.tensors: list[list[torch.Tensor]] = [[] for _ in range(ranks)]

    def of_rank(self, rank: int) -> Any:
        """Return what stands in for PyTorch's module for symmetric memory."""

        def rendezvous(tensor: torch.Tensor, group: object) -> Any:
            self.tensors[rank].append(tensor)
            which = len(self.tensors[rank]) - 1
            self.waiting.wait()
            return SimpleNamespace(
                get_buffer=lambda peer, shape, dtype: self.tensors[peer][which].view(shape),
                barrier=lambda channel: self.waiting.wait(),
            )

        return SimpleNamespace(empty=torch.empty, rendezvous=rendezvous)


class Stream:
    """A stream of a device that has done all work when a call returns."""

    def __init__(self, priority: int = 0) -> None:
        pass

    def wait_stream(self, other: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def stream(_: Stream) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(copy_engine, "fastest", lambda world, run, variants: variants[0])
    monkeypatch.setattr(copy_engine, "_fastest_sum", lambda: sum_by_torch)


def on_all_ranks(ranks: int, run: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[Any]:
    """Return ``run(mode, buffers)`` of every rank."""
    shared = Shared(ranks)
    mine = threading.local()
    monkeypatch.setattr(copy_engine, "symmetric_memory", lambda world: mine.symmetric)
    parameters = PointParameters(ROWS * ranks, HIDDEN, mode="copy-engine", **changes)

    def one(rank: int) -> Any:
        mine.symmetric = shared.of_rank(rank)
        with torch.no_grad():
            buffers = allocate(parameters, rank, ranks, torch.device("cpu"))
            world = SimpleNamespace(rank=rank, size=ranks, device=torch.device("cpu"))
            mode = CopyEngine(parameters, world, buffers)  # type: ignore[arg-type]
            mode.poison()
            shared.waiting.wait()
            return run(mode, buffers)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


SCHEDULES = {
    1: [Schedule((), (), 12)],
    2: [
        Schedule((12,), (12,), 12),
        Schedule((5, 7), (7, 5), 12),
        Schedule((12,), (12,), 12, add=True),
        Schedule((10, 2), (3, 9), 5, add=True),
    ],
    3: [
        Schedule((12, 12), (12, 12), 12),
        Schedule((20, 4), (14, 10), 12),
        Schedule((24,), (24,), 12, add=True),
        Schedule((4, 20), (9, 15), 7, add=True),
    ],
}


@pytest.mark.parametrize(
    ("ranks", "schedule"),
    [(ranks, schedule) for ranks, some in SCHEDULES.items() for schedule in some],
    ids=str,
)
def test_every_schedule_computes_the_block_and_its_gradients(
    ranks: int, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(mode: CopyEngine, buffers: Buffers) -> Any:
        mode._schedule = mode._backward_schedule = schedule
        found = []
        # The second step meets what the first has left.
        for index in (1, 2):
            output = mode.forward(index, UntimedPhases()).clone()
            mode.poison_backward()
            mode._handle.barrier(channel=0)
            gradients = [one.clone() for one in mode.backward(index, UntimedPhases())]
            found.append((output, gradients))
        return buffers, found

    everyone = on_all_ranks(ranks, run, monkeypatch, direction="both")
    for step, index in enumerate((1, 2)):
        source = torch.cat([buffers.input(index) for buffers, _ in everyone])
        gradient = torch.cat([buffers.backward.source(index) for buffers, _ in everyone])
        inner = [source @ buffers.weight_1 for buffers, _ in everyone]
        output = sum(one @ buffers.weight_2 for one, (buffers, _) in zip(inner, everyone, strict=True))
        back = [gradient @ buffers.weight_2.t() for buffers, _ in everyone]
        upstream = sum(one @ buffers.weight_1.t() for one, (buffers, _) in zip(back, everyone, strict=True))
        for rank, (_, found) in enumerate(everyone):
            rows = slice(rank * ROWS, (rank + 1) * ROWS)
            expected = [output[rows], upstream[rows], source.t() @ back[rank], inner[rank].t() @ gradient]
            for mine, right in zip((found[step][0], *found[step][1]), expected, strict=True):
                torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)
