"""The cost of PyTorch's timed collectives (``TORCH_NCCL_ENABLE_TIMING``), in one process in turns.

``mpiexec -n 2 python benchmarks/nccl_timing.py FILE`` needs two GPUs. Two groups of all ranks differ only in
that one has timed collectives. Blocks take turns between the groups (A B B A, eight times): all-reduces of
8 bytes and of 25 MiB one after the other, and steps of a small transformer with DistributedDataParallel,
which its host limits. Rank 0 writes the microseconds of a call or a step of each block as JSON, and prints
the medians.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

TURNS = (False, True, True, False) * 8
CALLS = {"8 B": (2, 200), "25 MiB": (25 << 18, 100)}
STEPS = 10


def blocks(torch: Any, bodies: Mapping[bool, Callable[[], object]], repeats: int) -> list[tuple[bool, float]]:
    """Return whether collectives were timed, and the microseconds of a repeat, of each block."""
    taken = []
    for timed in TURNS:
        bodies[timed]()
        torch.distributed.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            bodies[timed]()
        torch.cuda.synchronize()
        taken.append((timed, (time.perf_counter() - began) * 1e6 / repeats))
    return taken


def main() -> None:
    """Measure on all ranks; rank 0 prints and writes."""
    import torch
    import torch.distributed as dist
    from torch import nn

    rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    torch.cuda.set_device(rank)
    written, device = Path(sys.argv[1]).resolve(), torch.device("cuda", rank)
    meeting = f"file://{written}.meeting"
    dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=ranks, device_id=device)
    groups = {}
    for timed in (False, True):
        os.environ["TORCH_NCCL_ENABLE_TIMING"] = str(int(timed))
        groups[timed] = dist.new_group()
    figures = {}
    for name, (count, repeats) in CALLS.items():
        buffer = torch.ones(count, device=device)
        calls = {timed: partial(dist.all_reduce, buffer, group=group) for timed, group in groups.items()}
        figures[name] = blocks(torch, calls, repeats)
    data = torch.randn(16, 256, 512, device=device)
    steps = {}
    for timed, group in groups.items():
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
        model = nn.parallel.DistributedDataParallel(
            nn.TransformerEncoder(layer, 8).to(device),
            device_ids=[rank],
            bucket_cap_mb=5,
            process_group=group,
        )
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(model: Any = model, optimizer: Any = optimizer) -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(data).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(10):
            step()
        steps[timed] = step
    figures["step"] = blocks(torch, steps, STEPS)
    if rank == 0:
        written.write_text(json.dumps(figures))
        for name, series in figures.items():
            plain = [us for is_timed, us in series if not is_timed]
            marked = [us for is_timed, us in series if is_timed]
            more = median(after - before for before, after in zip(plain, marked, strict=True))
            print(f"{name}: {median(plain):.2f} us, timed {median(marked):.2f}, difference {more:+.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
