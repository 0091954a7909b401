"""Collectives of NCCL by size, as nccl-tests defines them.

``mpiexec -n N python benchmarks/network.py FILE`` prints and writes a row (CSV) for each operation and size
from 8 B to 1 GB: ``bytes`` is the whole buffer (of messages what one rank sends to the next), ``time_us``
the mean over the ranks and a batch of calls, the median of five batches; ``graph_us`` the same where the
batch is one CUDA graph, so without the host; ``busbw_gbps`` is bytes over the shorter of both times, by the
factor of nccl-tests. The all-reduce is in place.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

LARGEST = 1 << 30
BATCHES = 5
COLUMNS = ("op", "ranks", "bytes", "time_us", "graph_us", "busbw_gbps")


def operations(torch: Any, dist: Any, rank: int, ranks: int, size: int) -> dict[str, Callable[[], Any]]:
    """Return the operations on buffers of ``size`` bytes."""
    count = max(size // 4 // ranks, 1) * ranks
    sent = torch.rand(count, device="cuda")
    received = torch.empty_like(sent)
    part, taken = sent[: count // ranks], received[: count // ranks]

    def exchange() -> None:
        messages = [
            dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    return {
        "AllReduce": lambda: dist.all_reduce(sent),
        "AllGather": lambda: dist.all_gather_into_tensor(received, part),
        "ReduceScatter": lambda: dist.reduce_scatter_tensor(taken, sent),
        "AlltoAll": lambda: dist.all_to_all_single(received, sent),
        "Send": exchange,
    }


def factor(op: str, ranks: int) -> float:
    """Return nccl-tests' bus bandwidth over bytes per time."""
    return {"AllReduce": 2 * (ranks - 1) / ranks, "Send": 1.0}.get(op, (ranks - 1) / ranks)


def timed(torch: Any, call: Callable[[], Any], calls: int, ranks: int) -> float:
    """Return the microseconds of a call: the mean over the ranks, the median of the batches."""
    dist = torch.distributed
    times = []
    for batch in range(BATCHES + 1):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        mean = torch.tensor(begin.elapsed_time(end) * 1e3 / calls, device="cuda")
        dist.all_reduce(mean)
        if batch:
            times.append(float(mean) / ranks)
    return median(times)


def main() -> None:
    """Measure on all ranks; rank 0 prints and writes."""
    import torch
    import torch.distributed as dist

    rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    torch.cuda.set_device(rank)
    written = Path(sys.argv[1]).resolve()
    meeting = f"file://{written}.meeting"
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=ranks, device_id=device)
    rows = []
    size = 8
    while size <= LARGEST:
        calls = 20 if size <= 1 << 25 else 4
        for op, call in operations(torch, dist, rank, ranks, size).items():

            def batch(call: Callable[[], Any] = call, calls: int = calls) -> None:
                for _ in range(calls):
                    call()

            eager = timed(torch, batch, calls, ranks)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                batch()
            replayed = timed(torch, graph.replay, calls, ranks)
            whole = max(size // 4 // ranks, 1) * ranks * 4
            bandwidth = whole / min(eager, replayed) / 1e3 * factor(op, ranks)
            rows.append((op, ranks, whole, round(eager, 2), round(replayed, 2), round(bandwidth, 2)))
            del graph
        size *= 2
    if rank == 0:
        with written.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)
        for row in rows:
            print(*row)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
