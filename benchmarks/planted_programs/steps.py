"""The loop of the p programs: ``--fixed`` takes the cause away; prints the median time of a step in ms."""

import argparse
import json
import os
import statistics
import time

SMALL = bool(os.environ.get("SMALL"))  # tiny sizes, to try a program without a GPU


def device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def wait():
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
    figures = {"median_ms": round(statistics.median(times), 4), "fixed": args.fixed}
    print(json.dumps({**figures, "blocks_ms": [round(each, 3) for each in times]}), flush=True)
