"""False alarms and power of coincidences: ``python benchmarks/coincidences.py [TRIALS] [UNITS,…]``.

Prints in how many percent of runs one of ten metrics that have nothing to do with the steps is said to move
with them, by the nature of the steps and of the metrics (AR(φ): each value resembles the one before), then in
how many percent a metric is named that rises by so many of its standard deviations in the steps. Then in how
many percent of runs of 2 or 8 ranks, whose GPUs differ by 1 % (standard deviation) by nature and vary over
time, one is said to have a lower clock. By default there are 300 runs of each kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.telemetry.coincidences import (  # noqa: E402
    LEVEL,
    RunSteps,
    chance,
    coincidences,
)
from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series  # noqa: E402

Floats = NDArray[np.float64]
Make = Callable[[int, np.random.Generator], Floats]
METRICS = 10


def correlated(phi: float) -> Make:
    """Return what makes series of which each value resembles the one before."""

    def make(count: int, draw: np.random.Generator) -> Floats:
        spectrum = np.fft.rfft(draw.standard_normal(2 * count))
        turns = np.exp(-2j * np.pi * np.fft.rfftfreq(2 * count))
        found: Floats = np.fft.irfft(spectrum / (1 - phi * turns), 2 * count)[:count]
        return found / max(float(found.std()), 1e-12)

    return make


def _periodic(count: int, draw: np.random.Generator) -> Floats:
    turn = 2 * np.pi * np.arange(count) / draw.uniform(7, 60) + draw.uniform(0, 7)
    return np.asarray(np.sin(turn) + 0.3 * draw.standard_normal(count))


def _bursts(count: int, draw: np.random.Generator) -> Floats:
    return np.asarray((correlated(0.8)(count, draw) > 1.8) * draw.random(count))


def _rising(count: int, draw: np.random.Generator) -> Floats:
    return np.asarray(4 * np.arange(count) / count + draw.standard_normal(count))


SAMPLES: dict[str, Make] = {
    "AR(0)": correlated(0.0),
    "AR(0.9)": correlated(0.9),
    "AR(0.99)": correlated(0.99),
    "walk": lambda count, draw: np.cumsum(draw.standard_normal(count)),
    "periodic": _periodic,
    "bursts": _bursts,
    "rising": _rising,
}
LONG: dict[str, Make] = {
    "at random": lambda count, draw: (draw.random(count) < 0.06).astype(float),
    "every 5th": lambda count, draw: ((np.arange(count) + draw.integers(5)) % 5 == 0).astype(float),
    "clustered": lambda count, draw: (correlated(0.8)(count, draw) > 1.6).astype(float),
    "later more": lambda count, draw: (draw.random(count) < 0.2 * np.arange(count) / count).astype(float),
}
LEVELS: dict[str, Make] = {
    "level": lambda count, draw: (
        (np.arange(count) > draw.uniform(0.2, 0.8) * count) + 0.3 * correlated(0.5)(count, draw)
    ),
    "drift": lambda count, draw: 3 * np.arange(count) / count + correlated(0.5)(count, draw),
    "levels": lambda count, draw: np.sign(correlated(0.95)(count, draw)) + 0.3 * draw.standard_normal(count),
}


def named(steps: Make, samples: Make, count: int, trials: int, local: bool, rise: float = 0.0) -> float:
    """Return in how many percent of the runs a metric is named; with a rise, the first one."""
    draw, found = np.random.default_rng(0), 0
    for _ in range(trials):
        weights = steps(count, draw)
        values = np.array([samples(count, draw) for _ in range(METRICS)])
        values[0] += rise * values[0].std() * (weights - weights.min()) / max(np.ptp(weights), 1e-12)
        chances = chance(weights, values, local)
        found += (chances[0] if rise else chances.min()) <= LEVEL
    return 100 * found / trials


def slow_clocks(ranks: int, trials: int, lower: float = 0.0) -> float:
    """Return in how many percent of the runs a rank is said to have a lower clock; with `lower`, rank 0."""
    draw, found = np.random.default_rng(0), 0
    times = np.arange(0.0, 60.0, 0.5)
    wall = np.full(60, 10**9)
    steps = RunSteps(np.arange(61.0) * 0.98, np.arange(60), np.ones(60, np.int64), wall, wall)
    for _ in range(trials):
        clock = 1755 * (1 + 0.01 * draw.standard_normal(ranks))
        clock[0] *= 1 - lower
        series = {
            (f"gpu{gpu}", "sm_mhz"): Series(times, clock[gpu] + 20 * correlated(0.9)(len(times), draw))
            for gpu in range(ranks)
        }
        places = {rank: RankPlace((), (rank,)) for rank in range(ranks)}
        node = NodeTelemetry("n", series, places, tuple("A" * ranks))
        rows = [row for row in coincidences([node], steps) if row["beyond_chance"]]
        found += any(row["device"] == "gpu0" for row in rows) if lower else bool(rows)
    return 100 * found / trials


def main() -> None:
    """Print false alarms, then power."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    units = [int(text) for text in sys.argv[2].split(",")] if len(sys.argv) > 2 else [40, 120, 400]
    print("Nothing moves with the steps. Runs in which something is said to, in percent:")
    print(f"{'units':>5} {'long steps':12}" + "".join(f"{name:>10}" for name in SAMPLES))
    for count in units:
        for local, kinds in ((True, LONG), (False, LEVELS)):
            for name, steps in kinds.items():
                rates = [named(steps, one, count, trials, local) for one in SAMPLES.values()]
                print(f"{count:5} {name:12}" + "".join(f"{rate:10.1f}" for rate in rates), flush=True)
    print("A metric (AR(0.9)) rises by standard deviations in long steps. It is named in percent of runs:")
    for count in units:
        for name, steps, local in (
            ("at random", LONG["at random"], True),
            ("every 5th", LONG["every 5th"], True),
            ("levels", LEVELS["levels"], False),
        ):
            rates = [
                named(steps, SAMPLES["AR(0.9)"], count, max(1, trials // 3), local, rise)
                for rise in (1, 2, 4)
            ]
            print(f"{count:5} {name:12}" + "".join(f"{rate:10.0f}" for rate in rates), flush=True)
    for ranks in (2, 8):
        false, right = slow_clocks(ranks, trials), slow_clocks(ranks, max(1, trials // 3), 0.1)
        print(f"{ranks} ranks: a lower clock is claimed in {false:.1f} %, one 10 % lower in {right:.0f} %")


if __name__ == "__main__":
    main()
