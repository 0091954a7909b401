"""The stencil of stencil.c in Python, with mpi4py and NumPy: ``mpirun -n 4 python stencil.py [RANK]``."""

import sys

import numpy as np
from mpi4py import MPI

CELLS, STEPS = 2_000_000, 200

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
left, right = (rank - 1) % ranks, (rank + 1) % ranks
cells = CELLS * 3 // 2 if sys.argv[1:] == [str(rank)] else CELLS
old, new = np.zeros(cells + 2), np.zeros(cells + 2)
if rank == 0:
    old[1] = 1e6

computed, begin = 0.0, MPI.Wtime()
for _ in range(STEPS):
    requests = [
        world.Irecv(old[:1], source=left, tag=0),
        world.Irecv(old[-1:], source=right, tag=1),
        world.Isend(old[-2:-1], dest=right, tag=0),
        world.Isend(old[1:2], dest=left, tag=1),
    ]
    MPI.Request.Waitall(requests)
    start = MPI.Wtime()
    new[1:-1] = old[1:-1] + 0.25 * (old[:-2] - 2 * old[1:-1] + old[2:])
    change = np.abs(new[1:-1] - old[1:-1]).sum()
    computed += MPI.Wtime() - start
    world.allreduce(change)
    old, new = new, old
wall = MPI.Wtime() - begin

for number, (own, own_computed) in enumerate(world.gather((wall, computed)) or ()):
    took, computing = 1e3 * own / STEPS, 1e3 * own_computed / STEPS
    print(f"rank {number}: {took:.3f} ms a step, {computing:.3f} ms of it computing")
