"""Kinds of steps in simulated series: ``python benchmarks/step_kinds.py [RUNS]``.

Prints how often `kinds_of_steps` finds several kinds in series of steps that are of one kind, for each noise
and number of steps, and how often it finds exactly two where every Nth step does more work. The interval is
that of the simulation (95 %, Wilson). The noise is a third of the mean step, so that the least distance of
kinds, a tenth of it, excludes little.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.steps.run_step import PARTS, kinds_of_steps  # noqa: E402
from hpcprof.profiles.timeline import Floats, Ints  # noqa: E402

STEP, SPREAD = 1e8, 0.3
STEPS = (6, 10, 20, 40, 100, 200)
PERIODS, EXCESS, OWN = (2, 4, 8), 0.3, (0.02, 0.05, 0.1)

Noise = Callable[[np.random.Generator, int], Floats]


def correlated(noise: np.random.Generator, count: int, with_next: float) -> Floats:
    """Return an autoregressive series with variance 1."""
    values = noise.normal(size=count)
    for place in range(1, count):
        values[place] = with_next * values[place - 1] + (1 - with_next**2) ** 0.5 * values[place]
    return values


NOISES: dict[str, Noise] = {
    "normal": lambda noise, count: noise.normal(size=count),
    "uniform": lambda noise, count: (noise.random(count) - 0.5) * 12**0.5,
    "exponential": lambda noise, count: noise.exponential(size=count) - 1,
    "lognormal": lambda noise, count: noise.lognormal(0, 1, count) - 1.6,
    "Student's t, 3": lambda noise, count: noise.standard_t(3, count),
    "AR 0.8": lambda noise, count: correlated(noise, count, 0.8),
    "trend": lambda noise, count: np.linspace(-1.7, 1.7, count) + 0.1 * noise.normal(size=count),
}


def account(wall: Floats) -> pd.DataFrame:
    """Return the rows of ``step_account`` of one rank that computes all the time."""
    times = np.rint(np.maximum(wall, 1e6)).astype(np.int64)
    columns: dict[str, Ints | int] = dict.fromkeys(PARTS, 0)
    table: pd.DataFrame = pd.DataFrame(
        {**columns, "rank": 0, "step": range(len(times)), "wall_ns": times, "compute_ns": times}
    )
    return table


def share(hits: int, runs: int) -> str:
    """Return a share in percent with its interval."""
    p, z = hits / runs, 1.96
    middle = (p + z * z / (2 * runs)) / (1 + z * z / runs)
    half = z * (p * (1 - p) / runs + z * z / (4 * runs * runs)) ** 0.5 / (1 + z * z / runs)
    return f"{100 * p:5.1f} ({100 * max(0, middle - half):4.1f} to {100 * (middle + half):5.1f})"


def main() -> None:
    """Print both tables."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    noise = np.random.default_rng(1)
    print(f"Several kinds in series of one kind, % of {runs}")
    print(f"{'noise':16}" + "".join(f"{count:>7} steps       " for count in STEPS))
    for name, values in NOISES.items():
        found = [
            sum(
                kinds_of_steps(account(STEP * (1 + SPREAD * values(noise, count)))).max() > 1
                for _ in range(runs)
            )
            for count in STEPS
        ]
        print(f"{name:16}" + "".join(f"{share(hits, runs):20}" for hits in found))
    print(f"\nExactly the two kinds, where every Nth step takes {100 * EXCESS:.0f} % longer, % of {runs}")
    print(f"{'N, spread':16}" + "".join(f"{count:>7} steps       " for count in STEPS))
    for period in PERIODS:
        for own in OWN:
            found = []
            for count in STEPS:
                long = np.arange(count) % period == 0
                hits = 0
                for _ in range(runs):
                    wall = STEP * (1 + EXCESS * long + own * noise.normal(size=count))
                    kind = kinds_of_steps(account(wall))
                    hits += int(
                        kind.max() == 2 and len(set(zip(kind.tolist(), long.tolist(), strict=True))) == 2
                    )
                found.append(hits)
            label = f"{period}, {100 * own:.0f} %"
            print(f"{label:16}" + "".join(f"{share(hits, runs):20}" for hits in found))


if __name__ == "__main__":
    main()
