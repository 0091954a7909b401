"""The loop of the d programs: one variant, or both in turns in one process."""

import argparse
import json
import statistics
import time

ROUND = ("planted", "mended", "mended", "planted") * 2


def run(program, steps, build, wait):
    """Time steps of ``build(variant, device)`` between waits for the GPU, and print them as JSON."""
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=steps)
    ap.add_argument("--variant", choices=["planted", "mended", "turns"], default="planted")
    ap.add_argument("--device", default="cuda")
    args = ap.parse_args()
    blocks = ROUND if args.variant == "turns" else [args.variant] * 10
    step = {variant: build(variant, args.device) for variant in dict.fromkeys(blocks)}
    for variant in step:
        for _ in range(8 if args.device == "cuda" else 1):
            step[variant]()
        wait()
    each = args.steps if args.variant == "turns" else max(args.steps // len(blocks), 1)
    times = []
    for block, variant in enumerate(blocks):
        if args.variant == "turns":
            step[variant]()
            wait()
        began = time.perf_counter()
        for _ in range(each):
            step[variant]()
        wait()
        times.append((time.perf_counter() - began) / each * 1e3)
        print(f"block {block} ended", flush=True)
    shown = [round(ms, 4) for ms in times]
    figures = {"program": program, "variant": args.variant, "steps": each * len(blocks), "blocks_ms": shown}
    figures["step_ms_mean"] = round(statistics.mean(times), 4)
    print(json.dumps({"step_ms_median": round(statistics.median(times), 4), **figures}))
