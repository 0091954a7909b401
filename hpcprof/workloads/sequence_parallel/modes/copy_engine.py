"""The copy-engine mode: the copy engines of the GPUs move the rows, and no SM communicates.

Each rank starts with the first matmul of its own rows while it pulls the rows of its peers, one peer after
the other, from symmetric memory. Then it multiplies the rows of the peers and pushes each product to its
owner as soon as it is ready. The second matmul of its own rows comes last, during the last push. Finally
each rank sums the N parts that it has received. Where it is faster, only some of its own rows come at the
start and the others during the last push; the second matmul then adds its product to a part that has arrived,
which saves one part. The backward does the same with the gradients; the gradients of the weights, which need
no peer, come before the last matmul of its own rows.
"""

import itertools
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.sequence_parallel.buffers import Buffers, Gradients, Multiply
from hpcprof.workloads.sequence_parallel.modes import row_groups
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.row_groups import RowGroups, Schedule
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.modes.tuning import fastest
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer

MultiplyAdd = Callable[[torch.Tensor, torch.Tensor], object]
"""``f(rows, part)``: the second matmul, whose product is added to ``part`` in place."""

Sum = Callable[[torch.Tensor, torch.Tensor], object]
"""``f(parts, output)``: the sum of parts [N, R/N, h] over the first dimension into output [R/N, h]."""


class CopyEngine(Mode):
    """Implements all-gather and reduce-scatter by copies between peers."""

    def __init__(self, parameters: PointParameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        symmetric = symmetric_memory(world)
        rows, hidden = buffers.output.shape
        dtype = buffers.output.dtype
        # Start with the next rank, so that no two ranks pull from the same peer at once.
        self._peers = [(world.rank + distance) % world.size for distance in range(1, world.size)]
        empty = symmetric.empty
        self._received: torch.Tensor = empty(world.size, rows, hidden, dtype=dtype, device=world.device)
        try:
            self._handle: Any = symmetric.rendezvous(self._received, torch.distributed.group.WORLD)
            self._shards = self._of_peers(symmetric, buffers.inputs)
            if buffers.backward is not None:
                self._grad_shards = self._of_peers(symmetric, buffers.backward.sources)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise Unavailable(f"the GPUs cannot map each other's memory ({reason})") from None
        shape = (world.size, rows, hidden)
        # The own part is the first, and the part of a peer at distance d is at -d: the last arrives first.
        self._slots = [
            self._handle.get_buffer(peer, shape, dtype)[-distance]
            for distance, peer in enumerate(self._peers, start=1)
        ]
        self._rows = rows
        self._copies = torch.cuda.Stream(priority=-1)
        self._sum = _fastest_sum()
        self._schedule = self._best_schedule(world, self._run_forward)
        remainder = (rows - self._schedule.head,) * (self._schedule.head < rows)
        first = (self._schedule.head, *self._schedule.first, *remainder)
        self.row_groups = (first, (*self._schedule.second, rows))
        self.adds = self._schedule.add
        self.note = f"copy-engine multiplies the rows of its peers in groups of {self._schedule}"
        if buffers.backward is not None:
            self._backward_schedule = self._best_schedule(world, self._run_backward, late=False)
            self.note += f", backward {self._backward_schedule}"
        self.note += ", the fastest here"

    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run one step forward."""
        return self._run_forward(index, self._schedule)

    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Run one step backward."""
        return self._run_backward(index, self._backward_schedule)

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

    def _run_forward(self, index: int, schedule: Schedule) -> torch.Tensor:
        buffers, rows, head = self._buffers, self._rows, schedule.head
        self._index = index
        source, inner = buffers.input(index), buffers.inner

        def add(part: torch.Tensor, to: torch.Tensor) -> None:
            to.addmm_(part, buffers.weight_2)

        arrived = self._pull(self._shards, index, buffers.gathered, schedule.first)
        buffers.multiply_1(source[:head], inner[:head])
        by = buffers.multiply_1, buffers.multiply_2
        self._multiply(buffers.gathered, inner, by, schedule, arrived)
        if head < rows:
            buffers.multiply_1(source[head:], inner[head:rows])
        return self._finish(inner[:rows], (buffers.multiply_2, add), schedule, buffers.output)

    def _run_backward(self, index: int, schedule: Schedule) -> Gradients:
        buffers, backward, rows, copies = self._buffers, self._backward, self._rows, self._copies
        source = backward.source(index)

        first, second = buffers.multiply_back_2, buffers.multiply_back_1

        def add(part: torch.Tensor, to: torch.Tensor) -> None:
            to.addmm_(part, buffers.weight_1.t())

        arrived = self._pull(self._grad_shards, index, backward.gathered, schedule.first)
        with torch.cuda.stream(copies):
            # The gradients of the weights sum over all rows, including this rank's own.
            backward.gathered[:rows].copy_(source, non_blocking=True)
            buffers.gathered[:rows].copy_(buffers.input(self._index), non_blocking=True)
            if self._regather:
                self._copy_shards(self._shards, self._index, buffers.gathered, schedule.first)
            complete = copies.record_event()
        first(source, backward.inner[:rows])
        self._multiply(backward.gathered, backward.inner, (first, second), schedule, arrived)
        torch.cuda.current_stream().wait_event(complete)
        torch.mm(buffers.inner.t(), backward.gathered, out=backward.gradients.weight_2)
        torch.mm(buffers.gathered.t(), backward.inner, out=backward.gradients.weight_1)
        finish = self._finish(backward.inner[:rows], (second, add), schedule, backward.gradients.input)
        return Gradients(finish, backward.gradients.weight_1, backward.gradients.weight_2)

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
            for peer, theirs, here in row_groups.split_by_peer(slice(stop - count, stop), self._rows):
                shard = shards[peer][index % len(shards[peer])]
                gathered[here].copy_(shard[theirs], non_blocking=True)
            arrived[stop] = self._copies.record_event()
        return arrived

    def _multiply(
        self,
        gathered: torch.Tensor,
        inner: torch.Tensor,
        by: tuple[Multiply, Multiply],
        schedule: Schedule,
        arrived: dict[int, Any],
    ) -> None:
        """Run both matmuls on the rows of the peers, and push each product to its owner."""
        compute, copies = torch.cuda.current_stream(), self._copies
        gathered, inner = gathered[self._rows :], inner[self._rows :]
        partial = self._buffers.partial[self._rows :]
        for which, part in row_groups.matmul_order(schedule.first, schedule.second):
            if which == 0:
                compute.wait_event(arrived[part.stop])
                by[0](gathered[part], inner[part])
                continue
            by[1](inner[part], partial[part])
            copies.wait_event(compute.record_event())
            with torch.cuda.stream(copies):
                for peer, theirs, here in row_groups.split_by_peer(part, self._rows):
                    self._slots[peer][theirs].copy_(partial[here], non_blocking=True)

    def _finish(
        self, inner: torch.Tensor, by: tuple[Multiply, MultiplyAdd], schedule: Schedule, output: torch.Tensor
    ) -> torch.Tensor:
        """Multiply the own rows, then sum the parts of all ranks; return the output, [R/N, h]."""
        received = self._received
        if not schedule.add:
            by[0](inner, received[0])
        with torch.cuda.stream(self._copies):
            self._handle.barrier(channel=1)
        torch.cuda.current_stream().wait_stream(self._copies)
        if schedule.add:
            by[1](inner, received[-1])
            received = received[1:]
        if len(received) == 1:
            return received[0]
        self._sum(received, output)
        return output

    def _best_schedule(
        self, world: World, run: Callable[[int, Schedule], object], *, late: bool = True
    ) -> Schedule:
        """Return a fast schedule, tuned part by part; unless ``late``, all own rows come at the start."""

        def trial(index: int, schedule: Schedule) -> None:
            self._buffers.weights.use(index)
            run(index, schedule)

        rows = self._rows
        best = fastest(world, trial, row_groups.first_schedules(world.size, rows))
        best = fastest(world, trial, row_groups.second_schedules(best, world.size, rows))
        # A scaled matmul adds nothing, and a single rank receives nothing.
        if self._buffers.scales is not None or world.size == 1:
            return best
        adding = row_groups.adding_schedules(best, rows)
        return fastest(world, trial, [schedule for schedule in adding if late or schedule.head == rows])


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
