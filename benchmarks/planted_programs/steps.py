"""The loop of the p and q programs: ``--fixed`` takes the cause away; prints the median step in ms."""

import argparse
import json
import os
import statistics
import sys
import time

SMALL = bool(os.environ.get("SMALL"))  # tiny sizes, to try a program without a GPU


def device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def wait():
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ranks():
    """Join the other processes of mpirun or torchrun; return the rank and their number."""
    import torch
    import torch.distributed as dist

    def of(names, otherwise):
        return int(next((os.environ[n] for n in names if n in os.environ), otherwise))

    me = of(("OMPI_COMM_WORLD_RANK", "RANK", "PMI_RANK", "SLURM_PROCID"), 0)
    n = of(("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"), 1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29873")
    if torch.cuda.is_available():
        torch.cuda.set_device(me % torch.cuda.device_count())
        dist.init_process_group(
            "nccl", rank=me, world_size=n, device_id=torch.device("cuda", torch.cuda.current_device())
        )
    else:
        dist.init_process_group("gloo", rank=me, world_size=n)
    return me, n


def main(build, steps, warm_up=20, block=25, finish=wait):
    """Run ``build(fixed)``'s function for ``steps`` steps; log every ``block`` steps, as programs do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=4 if SMALL else steps)
    args = parser.parse_args()
    block = min(block, args.steps)
    step = build(args.fixed)
    for i in range(2 if SMALL else warm_up):
        step(i)
    finish()
    times = []
    for first in range(0, args.steps, block):
        began = time.perf_counter()
        for i in range(first, first + block):
            step(i)
        finish()
        times.append((time.perf_counter() - began) / block * 1e3)
    if sys.modules.get("torch") and sys.modules["torch"].distributed.is_initialized():
        dist = sys.modules["torch"].distributed
        me = dist.get_rank()
        dist.barrier()
        dist.destroy_process_group()
        if me:
            return
    figures = {"median_ms": round(statistics.median(times), 4), "fixed": args.fixed}
    print(json.dumps({**figures, "blocks_ms": [round(each, 3) for each in times]}), flush=True)
