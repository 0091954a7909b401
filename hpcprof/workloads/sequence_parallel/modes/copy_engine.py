"""The copy-engine mode: peers' rows are copied by the GPUs' copy engines, and no SM communicates.

Each rank multiplies its own rows first, while it pulls the peers' from symmetric memory one after the other;
then the peers' rows, whose products it pushes to their owners as they are ready; and its own rows last,
while the last push is under way. At the end each rank adds up the N parts that it was sent. Backward the same
is done with the gradients, and the gradients of the weights come before the own rows: they need no peer.
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
# Matmuls compute tiles of so many rows or a multiple of it; into so many parts the rows are cut at most.
_TILE, _CUTS = 128, 32

RowGroups = tuple[int, ...]
"""How many of the peers' rows are multiplied at once: ``(a, b)`` for the first a rows, then b rows."""

Grouping = tuple[RowGroups, RowGroups]
"""The groups of the first matmul and those of the second.

Large groups make efficient matmuls; small ones can begin before all rows are there, and be sent before all
are done.
"""

Multiply = Callable[[torch.Tensor, torch.Tensor], object]
"""``f(rows, out)``: one of the matmuls of a step."""


Sum = Callable[[torch.Tensor, torch.Tensor], object]
"""``f(parts, output)``: the sum of parts [N, R/N, h] over the first dimension into output [R/N, h]."""


def candidate_groups(peers: int, rows: int) -> list[RowGroups]:
    """Return the ways to group the rows of so many peers, ``rows`` each, that are worth a trial.

    All at once, peer by peer, and two groups, which need not end where a peer's rows do: then they can fill
    the GPU's multiprocessors where the rows of one peer leave many idle.
    """
    total = peers * rows
    if not total:
        return [()]
    step = _TILE * math.ceil(total / (_TILE * _CUTS))
    cuts = [(cut, total - cut) for cut in range(step, total, step)]
    return list(dict.fromkeys([(rows,) * peers, (total,), *cuts]))


def matmul_order(grouping: Grouping) -> list[tuple[int, slice]]:
    """Return the matmuls of a grouping in their order: 0 for the first or 1 for the second, and which rows.

    A second matmul comes as soon as the first ones have made its rows.
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
    """Cut a part of the peers' rows where one peer's end.

    Returns
    -------
    list of (int, slice, slice)
        Which peer, which of its rows, and where these are among all.
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
    """All-gather and reduce-scatter by peer copies."""

    def __init__(self, parameters: Parameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        symmetric = symmetric_memory(world)
        self._rank, self._size = world.rank, world.size
        rows, hidden = buffers.output.shape
        dtype = buffers.output.dtype
        # Peers in the order of their ranks after this one, so that no two ranks pull from the same one.
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
        self.note = f"copy-engine multiplies its peers' rows in groups of {_said(self._grouping)}"
        if buffers.backward is not None:
            self._backward_grouping = self._best_grouping(world, self._run_backward)
            self.note += f", backward {_said(self._backward_grouping)}"
        self.note += ", the fastest here"

    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run one step forward."""
        self._run_forward(index, self._grouping)
        return self._buffers.output

    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Run one step backward."""
        self._run_backward(index, self._backward_grouping)
        return self._backward.gradients

    def poison(self) -> None:
        """Fill also what the peers write."""
        super().poison()
        self._received.fill_(math.nan)

    def poison_backward(self) -> None:
        """Fill also what the peers write."""
        super().poison_backward()
        self._received.fill_(math.nan)

    def _of_peers(self, symmetric: Any, rotating: torch.Tensor) -> list[torch.Tensor]:
        """Return the peers' part of a tensor in symmetric memory."""
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
            # The weights' gradients sum over all rows: they need the own ones beside the peers'.
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
        """Copy the peers' rows, and return the event of each group by the row at which it ends."""
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            # Every rank's shard is there, and the parts of the step before have been added up.
            self._handle.barrier(channel=0)
            return self._copy_shards(shards, index, into, groups)

    def _copy_shards(
        self, shards: list[torch.Tensor], index: int, into: torch.Tensor, groups: RowGroups
    ) -> dict[int, Any]:
        arrived = {}
        # The first rows are this rank's own.
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
        """Multiply the peers' rows twice and push each product to its owner."""
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
        """Add up the parts once every rank has sent its own."""
        with torch.cuda.stream(self._copies):
            self._handle.barrier(channel=1)
        torch.cuda.current_stream().wait_stream(self._copies)
        self._sum(self._received, output)

    def _best_grouping(self, world: World, run: Callable[[int, Grouping], None]) -> Grouping:
        """Return a good grouping, the same on every rank: the best first groups, then the best second."""
        groups = candidate_groups(world.size - 1, self._rows)
        first, _ = self._fastest(world, run, [(first, groups[0]) for first in groups])
        return self._fastest(world, run, [(first, second) for second in groups])

    def _fastest(
        self, world: World, run: Callable[[int, Grouping], None], candidates: list[Grouping]
    ) -> Grouping:
        """Return the grouping whose slowest rank is the fastest."""
        trials: list[list[tuple[Any, Any]]] = [[] for _ in candidates]
        # In turns and without a wait between them, as in the steps to come: an idle GPU is cool and fast.
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
    """Return the fastest sum of the ranks' parts: Triton's where it is installed, else PyTorch's.

    On an H200, 4 parts of 1152 x 9216 in bfloat16 take 28 us (3.8 TB/s) by the one and 45 us by the other.
    """
    try:
        return cast(Sum, import_module(f"{__package__}.triton_sum").add_parts)
    except ImportError:
        return sum_by_torch


def sum_by_torch(parts: torch.Tensor, output: torch.Tensor) -> None:
    """Add up the parts by PyTorch; see `Sum`."""
    torch.sum(parts, 0, out=output)


def _said(grouping: Grouping) -> str:
    return " and then ".join(" + ".join(map(str, groups)) or "none" for groups in grouping)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
