"""Waves of sound in a hall, half of it on each of two GPUs, Triton. Clean: nothing is planted.

Each rank first moves the layer of cells that its neighbour needs, exchanges it by NCCL while the other
cells are moved, and only then goes on; the kernel is limited by memory. The energy is summed on the GPU
and read every 25 steps. ``--fixed`` is the same program. Advice that it follows:
https://developer.nvidia.com/blog/multi-gpu-programming-with-standard-parallel-c-part-2/ and
https://developer.nvidia.com/blog/introduction-cuda-aware-mpi/.
"""

import steps
import torch
import torch.distributed as dist

try:
    import triton
    import triton.language as tl
except ImportError:  # without a GPU
    triton = None

DEV = steps.device()
LAYERS, SIDE, TURNS = (
    (4, 16, 2) if steps.SMALL else (256, 1024, 6)
)  # of a rank, without the two of its neighbours
SPEED = 0.3


if triton:

    @triton.jit
    def wave(now, before, first, speed, SIDE: tl.constexpr, COLUMNS: tl.constexpr):
        """One instant of a layer's row; what is written over is the instant before."""
        layer = tl.program_id(1) + first
        row = tl.program_id(0)
        columns = tl.arange(0, COLUMNS)
        at = layer.to(tl.int64) * SIDE * SIDE + row * SIDE + columns
        own = tl.load(now + at)
        total = -6.0 * own
        total += tl.load(now + at - 1, mask=columns > 0, other=0.0)
        total += tl.load(now + at + 1, mask=columns < SIDE - 1, other=0.0)
        total += tl.load(now + at - SIDE, mask=(columns >= 0) & (row > 0), other=0.0)
        total += tl.load(now + at + SIDE, mask=(columns >= 0) & (row < SIDE - 1), other=0.0)
        total += tl.load(now + at - SIDE * SIDE)
        total += tl.load(now + at + SIDE * SIDE)
        tl.store(before + at, 2.0 * own - tl.load(before + at) + speed * total)


def move(now, before, first, count):
    """The next instant of some layers, in place of the one before."""
    if DEV == "cuda":
        wave[(SIDE, count)](now, before, first, SPEED**2, SIDE, SIDE, num_warps=4)
        return
    own = now[first : first + count]
    total = now[first - 1 : first + count - 1] + now[first + 1 : first + count + 1] - 6 * own
    padded = torch.nn.functional.pad(own, (1, 1, 1, 1))
    total += padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:] + padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1]
    before[first : first + count] = 2 * own - before[first : first + count] + SPEED**2 * total


def build(fixed):
    me, ranks = steps.ranks()
    torch.manual_seed(0)
    fields = [torch.zeros(LAYERS + 2, SIDE, SIDE, device=DEV) for _ in range(2)]
    if me == 0:
        fields[0][LAYERS // 2, SIDE // 2, SIDE // 2] = 1.0
    edge, outside = (LAYERS, LAYERS + 1) if me == 0 else (1, 0)
    inner = 1 if me == 0 else 2
    energy = torch.zeros((), device=DEV)

    def step(i):
        """Some instants of the hall."""
        for _ in range(TURNS):
            now, before = fields
            move(now, before, edge, 1)
            works = []
            if ranks > 1:
                other = 1 - me
                send, receive = (
                    dist.P2POp(dist.isend, before[edge], other),
                    dist.P2POp(dist.irecv, before[outside], other),
                )
                works = dist.batch_isend_irecv([send, receive])
            move(now, before, inner, LAYERS - 1)
            for work in works:
                work.wait()
            fields.reverse()
        if i % 25 == 24:
            energy.copy_(fields[0][1:-1].square().sum())
            if ranks > 1:
                dist.all_reduce(energy)
            build.energy = energy.item()

    return step


if __name__ == "__main__":
    steps.main(build, 250)
