"""The copy-engine mode: peers' rows are copied by the GPUs' copy engines, and no SM communicates.

Each rank multiplies its own rows first, while it pulls the peers' from symmetric memory one after the other;
then the peers' rows, whose products it pushes to their owners as they are ready; and its own rows last,
while the last push is under way. At the end each rank adds up the N parts that it was sent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.sequence_parallel.buffers import Buffers
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.summation import summation
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.timing import Timer

_TRIALS, _WARM = 16, 6

Plan = tuple[int, ...]
"""How many peers' rows are multiplied at once, group by group: ``(1, 2)`` for the first, then two together.

Large groups make efficient matmuls; small ones can begin before all rows are there.
"""


def plans(peers: int) -> list[Plan]:
    """Return the plans that are worth a trial for so many peers."""
    if peers < 1:
        return [()]
    candidates = [(peers,), (1,) * peers]
    if peers > 1:
        candidates += [(1, peers - 1), (peers - 1, 1)]
    return list(dict.fromkeys(candidates))


class CopyEngine(Mode):
    """All-gather and reduce-scatter by peer copies."""

    def __init__(self, parameters: Parameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        symmetric = symmetric_memory(world)
        self._rank, self._size = world.rank, world.size
        rows, hidden = buffers.output.shape
        dtype = buffers.output.dtype

        self._received = symmetric.empty(world.size, rows, hidden, dtype=dtype, device=world.device)
        group = torch.distributed.group.WORLD
        try:
            shards: Any = symmetric.rendezvous(buffers.inputs, group)
            self._handle: Any = symmetric.rendezvous(self._received, group)
        except RuntimeError as error:
            raise Unavailable(f"the GPUs cannot map each other's memory ({_first_line(error)})") from None
        # Peers in the order of their ranks after this one, so that no two ranks pull from the same one.
        peers = [(world.rank + distance) % world.size for distance in range(1, world.size)]
        self._shards = [shards.get_buffer(peer, buffers.inputs.shape, dtype) for peer in peers]
        shape = (world.size, rows, hidden)
        self._slots = [self._handle.get_buffer(p, shape, dtype)[world.rank] for p in peers]
        self._weights = buffers.weight_1, buffers.weight_2
        self._gathered = buffers.gathered[rows:]
        self._own_inner, self._inner = buffers.inner[:rows], buffers.inner[rows:]
        self._partial = buffers.partial[rows:]
        self._output = buffers.output
        self._rows = rows
        self._copies = torch.cuda.Stream(priority=-1)
        self._sum = summation()
        self._plan = self._best_plan(world)
        groups = " + ".join(map(str, self._plan)) or "none"
        self.note = f"copy-engine multiplies its peers' rows in groups of {groups}, the fastest here"

    def step(self, index: int, timer: Timer) -> torch.Tensor:
        """Run one step."""
        self._run(index, self._plan)
        return self._output

    def poison(self) -> None:
        """Fill also what the peers write."""
        super().poison()
        self._received.fill_(math.nan)

    def _run(self, step: int, plan: Sequence[int]) -> None:
        compute, copies = torch.cuda.current_stream(), self._copies
        weight_1, weight_2 = self._weights
        rows, which = self._rows, step % len(self._buffers.inputs)
        copies.wait_stream(compute)
        arrived = []
        with torch.cuda.stream(copies):
            # Every rank's shard is there, and the parts of the step before have been added up.
            self._handle.barrier(channel=0)
            for index, shards in enumerate(self._shards):
                self._gathered[index * rows : (index + 1) * rows].copy_(shards[which], non_blocking=True)
                arrived.append(copies.record_event())
        torch.mm(self._buffers.input(step), weight_1, out=self._own_inner)
        first = 0
        for count in plan:
            part = slice(first * rows, (first + count) * rows)
            compute.wait_event(arrived[first + count - 1])
            torch.mm(self._gathered[part], weight_1, out=self._inner[part])
            torch.mm(self._inner[part], weight_2, out=self._partial[part])
            copies.wait_event(compute.record_event())
            with torch.cuda.stream(copies):
                for index in range(first, first + count):
                    self._slots[index].copy_(
                        self._partial[index * rows : (index + 1) * rows], non_blocking=True
                    )
            first += count
        torch.mm(self._own_inner, weight_2, out=self._received[self._rank])
        with torch.cuda.stream(copies):
            # Every part has been sent.
            self._handle.barrier(channel=1)
        compute.wait_stream(copies)
        self._sum(self._received, self._output)

    def _best_plan(self, world: World) -> Plan:
        """Return the plan whose slowest rank is the fastest; every rank finds the same."""
        candidates = plans(world.size - 1)
        trials: list[list[tuple[Any, Any]]] = [[] for _ in candidates]
        # In turns and without a wait between them, as in the steps to come: an idle GPU is cool and fast.
        for trial in range(_TRIALS):
            for plan, mine in zip(candidates, trials, strict=True):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                self._run(trial, plan)
                end.record()
                mine.append((start, end))
        torch.cuda.synchronize()
        medians = [statistics.median(a.elapsed_time(b) for a, b in mine[_WARM:]) for mine in trials]
        slowest = [max(ranks) for ranks in zip(*world.comm.allgather(medians), strict=True)]
        return candidates[slowest.index(min(slowest))]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
