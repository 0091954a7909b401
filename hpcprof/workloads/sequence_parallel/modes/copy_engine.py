"""The copy-engine mode: the copy engines of the GPUs move the rows, and no SM communicates.

Each rank starts with the first matmul of its own rows while it pulls the rows of its peers, one peer after
the other, from symmetric memory. Then it multiplies the rows of the peers and pushes each product to its
owner as soon as it is ready. The second matmul of its own rows comes last, during the last push. Finally
each rank sums the N parts that it has received. The backward does the same with the gradients; the gradients
of the weights, which need no peer, come before the last matmul of its own rows.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.sequence_parallel.buffers import Buffers, Gradients
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.parameters import Parameters
from hpcprof.workloads.timing import PhaseTimer

_TRIALS, _WARM = 12, 4
# The rows of a matmul tile, and the largest number of places where the rows may be divided.
_TILE, _CUTS = 128, 32

RowGroups = tuple[int, ...]
"""The numbers of peer rows that are multiplied at once: ``(a, b)`` is the first a rows, then b rows."""

Grouping = tuple[RowGroups, RowGroups]
"""The row groups of the first matmul and of the second.

Large groups make matmuls efficient. Small groups start before all rows have arrived, and are sent before all
products are done.
"""

Multiply = Callable[[torch.Tensor, torch.Tensor], object]
"""``f(rows, out)``: one of the matmuls of a step."""


Sum = Callable[[torch.Tensor, torch.Tensor], object]
"""``f(parts, output)``: the sum of parts [N, R/N, h] over the first dimension into output [R/N, h]."""


def candidate_groups(peers: int, rows: int) -> list[RowGroups]:
    """Return the ways to group ``rows`` rows of each of ``peers`` peers that are worth trying.

    These are: peer by peer, all at once, and any two groups that end at a tile. Groups need not end where the
    rows of a peer end, so they can fill all multiprocessors where the rows of one peer would leave many idle.
    """
    total = peers * rows
    if not total:
        return [()]
    step = _TILE * math.ceil(total / (_TILE * _CUTS))
    cuts = [(cut, total - cut) for cut in range(step, total, step)]
    return list(dict.fromkeys([(rows,) * peers, (total,), *cuts]))


def matmul_order(grouping: Grouping) -> list[tuple[int, slice]]:
    """Return the matmuls of a grouping in order, each as 0 (first) or 1 (second) and its rows.

    A second matmul follows as soon as the first matmuls have computed its rows.
    """
    matmuls: list[tuple[int, slice]] = []
    ready, done = 0, 0
    second = list(grouping[1])
    for count in grouping[0]:
        matmuls.append((0, slice(ready, ready + count)))
        ready += count
        while second and done + second[0] <= ready:
            matmuls.append((1, slice(done, done + second[0])))
            done += second.pop(0)
    return matmuls


def split_by_peer(part: slice, rows: int) -> list[tuple[int, slice, slice]]:
    """Divide a part of the rows of all peers at the borders between peers.

    Returns
    -------
    list of (int, slice, slice)
        The peer, the rows in its own numbering, and the rows in the numbering over all peers.
    """
    found = []
    start = part.start
    while start < part.stop:
        peer = start // rows
        stop = min(part.stop, (peer + 1) * rows)
        found.append((peer, slice(start - peer * rows, stop - peer * rows), slice(start, stop)))
        start = stop
    return found


class CopyEngine(Mode):
    """Implements all-gather and reduce-scatter by copies between peers."""

    def __init__(self, parameters: Parameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        symmetric = symmetric_memory(world)
        self._rank, self._size = world.rank, world.size
        rows, hidden = buffers.output.shape
        dtype = buffers.output.dtype
        # Start with the next rank, so that no two ranks pull from the same peer at once.
        self._peers = [(world.rank + distance) % world.size for distance in range(1, world.size)]
        self._received = symmetric.empty(world.size, rows, hidden, dtype=dtype, device=world.device)
        try:
            self._handle: Any = symmetric.rendezvous(self._received, torch.distributed.group.WORLD)
            self._shards = self._of_peers(symmetric, buffers.inputs)
            if buffers.backward is not None:
                self._grad_shards = self._of_peers(symmetric, buffers.backward.sources)
        except RuntimeError as error:
            raise Unavailable(f"the GPUs cannot map each other's memory ({_first_line(error)})") from None
        shape = (world.size, rows, hidden)
        self._slots = [self._handle.get_buffer(p, shape, dtype)[world.rank] for p in self._peers]
        self._rows = rows
        self._copies = torch.cuda.Stream(priority=-1)
        self._sum = _fastest_sum()
        self._grouping = self._best_grouping(world, self._run_forward)
        self.note = f"copy-engine multiplies the rows of its peers in groups of {_said(self._grouping)}"
        if buffers.backward is not None:
            self._backward_grouping = self._best_grouping(world, self._run_backward)
            self.note += f", backward {_said(self._backward_grouping)}"
        self.note += ", the fastest grouping here"

    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run one step forward."""
        self._run_forward(index, self._grouping)
        return self._buffers.output

    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Run one step backward."""
        self._run_backward(index, self._backward_grouping)
        return self._backward.gradients

    def poison(self) -> None:
        """Also fill what the peers write."""
        super().poison()
        self._received.fill_(math.nan)

    def poison_backward(self) -> None:
        """Also fill what the peers write."""
        super().poison_backward()
        self._received.fill_(math.nan)

    def _of_peers(self, symmetric: Any, rotating: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of the peers that correspond to one in symmetric memory."""
        handle = symmetric.rendezvous(rotating, torch.distributed.group.WORLD)
        return [handle.get_buffer(peer, rotating.shape, rotating.dtype) for peer in self._peers]

    def _run_forward(self, index: int, grouping: Grouping) -> None:
        buffers, rows = self._buffers, self._rows
        self._index = index
        arrived = self._pull(self._shards, index, buffers.gathered, grouping[0])
        buffers.multiply_1(buffers.input(index), buffers.inner[:rows])
        by = buffers.multiply_1, buffers.multiply_2
        self._multiply(buffers.gathered, buffers.inner, by, grouping, arrived)
        buffers.multiply_2(buffers.inner[:rows], self._received[self._rank])
        self._add(buffers.output)

    def _run_backward(self, index: int, grouping: Grouping) -> None:
        buffers, backward, rows, copies = self._buffers, self._backward, self._rows, self._copies
        source = backward.source(index)

        def first(part: torch.Tensor, out: torch.Tensor) -> None:
            torch.mm(part, buffers.weight_2.t(), out=out)

        def second(part: torch.Tensor, out: torch.Tensor) -> None:
            torch.mm(part, buffers.weight_1.t(), out=out)

        arrived = self._pull(self._grad_shards, index, backward.gathered, grouping[0])
        with torch.cuda.stream(copies):
            # The gradients of the weights sum over all rows, including this rank's own.
            backward.gathered[:rows].copy_(source, non_blocking=True)
            buffers.gathered[:rows].copy_(buffers.input(self._index), non_blocking=True)
            if self._regather:
                self._copy_shards(self._shards, self._index, buffers.gathered, grouping[0])
            complete = copies.record_event()
        first(source, backward.inner[:rows])
        self._multiply(backward.gathered, backward.inner, (first, second), grouping, arrived)
        torch.cuda.current_stream().wait_event(complete)
        torch.mm(buffers.inner.t(), backward.gathered, out=backward.gradients.weight_2)
        torch.mm(buffers.gathered.t(), backward.inner, out=backward.gradients.weight_1)
        second(backward.inner[:rows], self._received[self._rank])
        self._add(backward.gradients.input)

    def _pull(
        self, shards: list[torch.Tensor], index: int, into: torch.Tensor, groups: RowGroups
    ) -> dict[int, Any]:
        """Copy the rows of the peers; return the event of each group, by the row at which it ends."""
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            # After the barrier all shards are ready, and the parts of the previous step have been summed.
            self._handle.barrier(channel=0)
            return self._copy_shards(shards, index, into, groups)

    def _copy_shards(
        self, shards: list[torch.Tensor], index: int, into: torch.Tensor, groups: RowGroups
    ) -> dict[int, Any]:
        arrived = {}
        # This rank's own rows come first.
        gathered = into[self._rows :]
        for stop, count in zip(itertools.accumulate(groups), groups, strict=True):
            for peer, theirs, here in split_by_peer(slice(stop - count, stop), self._rows):
                shard = shards[peer][index % len(shards[peer])]
                gathered[here].copy_(shard[theirs], non_blocking=True)
            arrived[stop] = self._copies.record_event()
        return arrived

    def _multiply(
        self,
        gathered: torch.Tensor,
        inner: torch.Tensor,
        by: tuple[Multiply, Multiply],
        grouping: Grouping,
        arrived: dict[int, Any],
    ) -> None:
        """Run both matmuls on the rows of the peers, and push each product to its owner."""
        compute, copies = torch.cuda.current_stream(), self._copies
        gathered, inner = gathered[self._rows :], inner[self._rows :]
        partial = self._buffers.partial[self._rows :]
        for which, part in matmul_order(grouping):
            if which == 0:
                compute.wait_event(arrived[part.stop])
                by[0](gathered[part], inner[part])
                continue
            by[1](inner[part], partial[part])
            copies.wait_event(compute.record_event())
            with torch.cuda.stream(copies):
                for peer, theirs, here in split_by_peer(part, self._rows):
                    self._slots[peer][theirs].copy_(partial[here], non_blocking=True)

    def _add(self, output: torch.Tensor) -> None:
        """Sum the parts once every rank has sent its own."""
        with torch.cuda.stream(self._copies):
            self._handle.barrier(channel=1)
        torch.cuda.current_stream().wait_stream(self._copies)
        self._sum(self._received, output)

    def _best_grouping(self, world: World, run: Callable[[int, Grouping], None]) -> Grouping:
        """Return a fast grouping, the same on every rank: tune the first matmul, then the second."""
        groups = candidate_groups(world.size - 1, self._rows)
        first, _ = self._fastest(world, run, [(first, groups[0]) for first in groups])
        return self._fastest(world, run, [(first, second) for second in groups])

    def _fastest(
        self, world: World, run: Callable[[int, Grouping], None], candidates: list[Grouping]
    ) -> Grouping:
        """Return the grouping with the shortest time on its slowest rank."""
        trials: list[list[tuple[Any, Any]]] = [[] for _ in candidates]
        # In turns and without waiting in between, as in later steps: an idle GPU is cool and fast.
        for index in range(_TRIALS * len(candidates)):
            which = index % len(candidates)
            self._buffers.weights.use(index)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run(index, candidates[which])
            end.record()
            trials[which].append((start, end))
        torch.cuda.synchronize()
        medians = [statistics.median(a.elapsed_time(b) for a, b in mine[_WARM:]) for mine in trials]
        slowest = [max(ranks) for ranks in zip(*world.comm.allgather(medians), strict=True)]
        return candidates[slowest.index(min(slowest))]


def _fastest_sum() -> Sum:
    """Return the fastest sum of the ranks' parts: with Triton if it is installed, else with PyTorch.

    On an H200, 4 parts of 1152 x 9216 in bfloat16 take 28 us (3.8 TB/s) with Triton, 45 us with PyTorch.
    """
    try:
        return cast(Sum, import_module(f"{__package__}.triton_sum").add_parts)
    except ImportError:
        return sum_by_torch


def sum_by_torch(parts: torch.Tensor, output: torch.Tensor) -> None:
    """Sum the parts with PyTorch; see `Sum`."""
    torch.sum(parts, 0, out=output)


def _said(grouping: Grouping) -> str:
    return " and then ".join(" + ".join(map(str, groups)) or "none" for groups in grouping)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
