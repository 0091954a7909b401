"""Impossible durations on queues that keep no order: ``python benchmarks/overruns.py [CAPTURES]``.

Simulates kernels of 1 to 8 queues that share a GPU: at c kernels at once each runs 1/c as fast, and up to
twice as slowly where they share caches badly. Durations vary by 5 to 30 %, and stamps are rounded to 10 ns to
10 us. Prints the share of clean captures in which a kernel is left out, and the share of planted durations,
up to the end of a stall, that are found, by the ratio to the usual duration.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.possible_times import with_possible_times
from tests.unit.analysis.timelines import COMP, timeline

KERNELS, KINDS = 240, 4
RATIOS = (3, 5, 10, 30, 100)


def simulate(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Return the kernels of a capture as rows of start, end, category, launch, kind, device and queue."""
    queues, noise = int(rng.integers(1, 9)), rng.uniform(0.05, 0.3)
    usual, contention = rng.uniform(20_000, 400_000, KINDS), rng.uniform(1, 2)
    resolution = int(10 ** rng.uniform(1, 4))
    kind, queue = rng.integers(0, KINDS, KERNELS), rng.integers(0, queues, KERNELS)
    arrival = np.cumsum(rng.exponential(usual.mean() / rng.uniform(0.3, 1.2), KERNELS))
    work = usual[kind] * rng.lognormal(0, noise, KERNELS)
    # Two kernels of a queue may run at once; the others wait.
    waiting, running, rows, now, at = list[int](), dict[int, float](), list[tuple[int, ...]](), 0.0, 0
    begun = np.zeros(KERNELS)
    while at < KERNELS or running or waiting:
        for one in [*waiting]:
            if sum(queue[other] == queue[one] for other in running) < 2:
                waiting.remove(one)
                running[one], begun[one] = work[one], now
        rate = 1 / (len(running) * (contention if len(running) > 1 else 1)) if running else 1.0
        shortest = min(running.values(), default=np.inf) / rate
        until = arrival[at] - now if at < KERNELS else np.inf
        step = min(shortest, until)
        now += step
        running = {one: left - step * rate for one, left in running.items()}
        if until <= shortest:
            waiting.append(at)
            at += 1
        for one in [one for one, left in running.items() if left <= 1e-6]:
            del running[one]
            start, end = (1_000_000 + round(x / resolution) * resolution for x in (begun[one], now))
            launch = 1_000_000 + int(arrival[one]) - 10_000 - resolution
            rows.append((start, end, COMP, launch, int(kind[one]), 0, int(queue[one])))
    return sorted(rows)


def left_out(rows: list[tuple[int, ...]]) -> int:
    """Return the number of kernels that run over what follows, as the check of all readers finds them."""
    recorded = timeline([(*row[:4], 0, *row[5:]) for row in rows])
    grid = np.ones((len(rows), 3), np.int64)
    grid[:, 0] += [row[4] for row in rows]
    recorded = replace(recorded, kernels=replace(recorded.kernels, grid=grid))
    found = with_possible_times(recorded).origin.losses
    return sum(loss.count for loss in found if loss.kind is LossKind.OVERRUN)


def main() -> None:
    """Simulate and print."""
    captures = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    clean = 0
    hits = dict.fromkeys(RATIOS, 0)
    for seed in range(captures):
        rng = np.random.default_rng(seed)
        rows = simulate(rng)
        clean += left_out(rows) > 0
        for ratio in RATIOS:
            planted = [*rows]
            at = int(rng.integers(20, KERNELS - 60))
            alike = [end - start for start, end, _, _, kind, *_ in rows if kind == rows[at][4]]
            start, _, *rest = rows[at]
            planted[at] = (start, start + int(ratio * np.median(alike)), *rest)
            hits[ratio] += left_out(planted) > left_out(rows)
    print(f"{captures} captures, {clean} with a false alarm ({100 * clean / captures:.1f} %)")
    print(", ".join(f"{ratio} x: {100 * n / captures:.0f} % found" for ratio, n in hits.items()))


if __name__ == "__main__":
    main()
