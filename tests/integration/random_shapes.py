"""Run every mode on shapes that hypothesis chooses, on all ranks of one job.

Rank 0 draws a shape and sends it to the others; all check their results and rank 0 asserts.
"""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from hpcprof.workloads.distributed import World, connect, disconnect
from hpcprof.workloads.sequence_parallel import buffers as memory
from hpcprof.workloads.sequence_parallel import correctness
from hpcprof.workloads.sequence_parallel.buffers import allocate
from hpcprof.workloads.sequence_parallel.cost_model import Rotation
from hpcprof.workloads.sequence_parallel.modes import MODES
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.steps import Step
from hpcprof.workloads.timing import UntimedPhases

EXAMPLES = 25


def wrong(parameters: PointParameters, world: World) -> list[str]:
    """Return the first error of any mode on any rank."""
    found = []
    for name in parameters.modes:
        buffers = allocate(parameters, world.rank, world.size, world.device)
        step = Step(parameters, buffers, MODES[name](parameters, world, buffers))
        # The second step runs on the memory of the first, with other weights.
        for index in (0, 1):
            step.poison()
            outputs = step(index, UntimedPhases())
            forward = index if parameters.forward else 0
            check = correctness.check(parameters, buffers, outputs, world.comm, index, forward)
            sentence = correctness.error_message(world.comm.allgather(check))
            if sentence:
                found.append(f"{name}, step {index}: {sentence}")
    return found


def main() -> None:
    """Run as one rank."""
    comm = MPI.COMM_WORLD
    world = connect(comm, device="cpu", backend="gloo")
    # As on a GPU, where steps rotate through several copies of small weights.
    memory.rotation_on = lambda *_: Rotation(inputs=2, weights=2)
    examples = 0

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        chunks=st.integers(1, 3),
        rows=st.integers(1, 20),
        hidden=st.integers(16, 48),
        inner=st.integers(16, 40),
        batch=st.integers(1, 2),
        dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
        direction=st.sampled_from(["forward", "backward", "both"]),
        keep_gathered=st.booleans(),
        seed=st.integers(0, 5),
    )
    def draw(
        chunks: int,
        rows: int,
        hidden: int,
        inner: int,
        batch: int,
        dtype: str,
        direction: str,
        keep_gathered: bool,
        seed: int,
    ) -> None:
        nonlocal examples
        examples += 1
        parameters = PointParameters(
            sequence_length=chunks * rows * comm.size,
            hidden_size=hidden,
            ffn_size=inner * comm.size,
            batch_size=batch,
            dtype=dtype,
            direction=direction,
            keep_gathered=keep_gathered,
            seed=seed,
            mode="serial,chunked",
            chunks=chunks,
        )
        comm.bcast(parameters)
        assert wrong(parameters, world) == []

    with torch.no_grad():
        if comm.rank == 0:
            try:
                draw()
            finally:
                comm.bcast(None)
            print(f"right: {examples} shapes on {comm.size} ranks")
        else:
            while (parameters := comm.bcast(None)) is not None:
                wrong(parameters, world)
    disconnect(world)


if __name__ == "__main__":
    main()
