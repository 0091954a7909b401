"""The loop of the e programs: one variant, or blocks without (A) and with (B) the cause in turns."""

import json
import os
import sys
import time
from pathlib import Path

SMALL = bool(os.environ.get("SMALL"))


def device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def sync():
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ranks():
    """Join the other processes of mpiexec or torchrun; return the rank and their number."""
    import torch
    import torch.distributed as dist

    env = os.environ
    me, n = (int(env.get(f"OMPI_COMM_WORLD_{k}", env.get(k, d))) for k, d in (("RANK", 0), ("SIZE", 1)))
    n = int(env.get("WORLD_SIZE", n))
    env.setdefault("MASTER_ADDR", "127.0.0.1")
    env.setdefault("MASTER_PORT", "29871")
    if torch.cuda.is_available():
        torch.cuda.set_device(me % torch.cuda.device_count())
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", rank=me, world_size=n)
    return me, n


def turns(step, steps, warm, finish=sync, order="ABBA"):
    i = 0
    for cause in (False, True):
        if cause and order == "A" or not cause and order == "B":
            continue
        for _ in range(warm):
            step(cause, i)
            i += 1
        finish()
    blocks = []
    for letter in order:
        cause = letter == "B"
        for _ in range(2):
            step(cause, i)
            i += 1
        while i % 10:
            step(cause, i)
            i += 1
        finish()
        t = time.perf_counter()
        for _ in range(steps):
            step(cause, i)
            i += 1
        finish()
        blocks.append([letter, (time.perf_counter() - t) / steps * 1e3])
    return blocks


def main(build, argv=None, finish=sync):
    """Run ``turns STEPS WARM_UP ORDER FILE``, ``with STEPS`` or ``without STEPS``."""
    argv = argv or sys.argv[1:]
    step = build()
    if argv[0] == "turns":
        blocks = turns(step, int(argv[1]), int(argv[2]), finish, argv[3])
        if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")) != "0":
            return
        with Path(argv[4]).open("a") as f:
            for b in blocks:
                f.write(json.dumps(b) + "\n")
    else:
        for i in range(int(argv[1])):
            step(argv[0] == "with", i)
        finish()
