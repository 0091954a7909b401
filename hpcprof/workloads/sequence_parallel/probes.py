"""The parts of a step alone, measured alternately with the modes: lower bounds of every mode's time."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from hpcprof.workloads.distributed import World, all_gather
from hpcprof.workloads.sequence_parallel.buffers import Buffers
from hpcprof.workloads.sequence_parallel.efficiency import LINKS, MATMULS
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.row_groups import RowGroups, matmul_order
from hpcprof.workloads.sequence_parallel.modes.symmetric import symmetric_memory
from hpcprof.workloads.sequence_parallel.modes.tuning import fastest
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer

Groups = tuple[RowGroups, RowGroups, bool]
"""The groups of rows of both matmuls, and True if the second adds its last group to the buffer's content."""


class Matmuls:
    """The matmuls of one direction without communication; modes differ in the rows multiplied at once."""

    phases: tuple[str, ...] = ()

    def __init__(self, buffers: Buffers, groups: Groups, *, backward: bool) -> None:
        self._buffers, self._groups, self._backward = buffers, groups, backward

    def __call__(self, index: int, timer: PhaseTimer) -> None:
        """Run the matmuls of step ``index``."""
        buffers, backward = self._buffers, self._buffers.backward if self._backward else None
        buffers.weights.use(index)
        first, second, weight = buffers.multiply_1, buffers.multiply_2, buffers.weight_2
        source, inner = buffers.gathered, buffers.inner
        if backward is not None:
            first, second, weight = buffers.multiply_back_2, buffers.multiply_back_1, buffers.weight_1.t()
            source, inner = backward.gathered, backward.inner
        first_groups, second_groups, adds = self._groups
        for which, rows in matmul_order(first_groups, second_groups):
            if which == 0:
                first(source[rows], inner[rows])
            elif adds and rows.stop == len(inner):
                buffers.partial[rows].addmm_(inner[rows], weight)
            else:
                second(inner[rows], buffers.partial[rows])
        if backward is not None:
            torch.mm(buffers.inner.t(), backward.gathered, out=backward.gradients.weight_2)
            torch.mm(buffers.gathered.t(), backward.inner, out=backward.gradients.weight_1)


class Links:
    """A plain copy of the rows of all peers, by all ranks at once: the bytes of one all-gather."""

    phases = ("ready", LINKS)

    def __init__(self, world: World, shards: torch.Tensor, into: torch.Tensor) -> None:
        symmetric = symmetric_memory(world)
        try:
            self._handle: Any = symmetric.rendezvous(shards, torch.distributed.group.WORLD)
        except RuntimeError as error:
            raise Unavailable(str(error)) from None
        peers = [(world.rank + distance) % world.size for distance in range(1, world.size)]
        self._shards = [self._handle.get_buffer(peer, shards.shape, shards.dtype) for peer in peers]
        self._into = into.chunk(world.size)[1:]
        self._side = torch.cuda.Stream()
        self._streams = fastest(world, self._copy, [1, 2])

    def __call__(self, index: int, timer: PhaseTimer) -> None:
        """Copy the input of step ``index`` of all peers."""
        with timer.phase("ready"):
            # All ranks copy at the same time, so the links carry both directions.
            self._handle.barrier(channel=0)
        with timer.phase(LINKS):
            self._copy(index, self._streams)

    def _copy(self, index: int, streams: int) -> None:
        """Copy with one stream, or half of each peer's rows with another one."""
        here = torch.cuda.current_stream()
        if streams == 2:
            self._side.wait_stream(here)
        for shard, into in zip(self._shards, self._into, strict=True):
            source = shard[index % len(shard)]
            halves = zip(source.chunk(streams), into.chunk(streams), strict=True)
            for stream, (rows, to) in zip((here, self._side), halves, strict=False):
                with torch.cuda.stream(stream):
                    to.copy_(rows, non_blocking=True)
        if streams == 2:
            here.wait_stream(self._side)


def probes(
    parameters: PointParameters, world: World, buffers: Buffers, modes: Iterable[Mode]
) -> Iterator[tuple[str, Matmuls | Links]]:
    """Create the probes of a shape, with their names; a collective call after the creation of the modes.

    The matmuls are measured with all rows at once, rank by rank, and as the modes group them. Where the GPUs
    cannot read each other's memory, there is no probe of the links.
    """
    shards = (parameters.rows // world.size,) * world.size
    whole = (parameters.rows,)
    groups: dict[Groups, None] = dict.fromkeys([(whole, whole, False), (shards, shards, False)])
    groups |= dict.fromkeys((*mode.row_groups, mode.adds) for mode in modes if mode.row_groups is not None)
    backward = buffers.backward
    # The operands are data like those of a step, since a GPU multiplies zeros faster.
    if parameters.forward:
        all_gather(buffers.gathered, buffers.input(0))
        for which, group in enumerate(groups):
            yield f"{MATMULS['forward']}, grouping {which}", Matmuls(buffers, group, backward=False)
    if backward is not None:
        all_gather(backward.gathered, backward.source(0))
        for which, group in enumerate(groups):
            yield f"{MATMULS['backward']}, grouping {which}", Matmuls(buffers, group, backward=True)
    if "copy-engine" in parameters.modes and world.size > 1:
        with suppress(Unavailable):
            yield LINKS, Links(world, buffers.inputs, backward.gathered if backward else buffers.gathered)
