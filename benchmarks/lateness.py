"""False alarms and power of the verdicts on late ranks: ``python benchmarks/lateness.py [TRIALS]``.

Ranks arrive at a collective of each step at times that vary, and each rank's lateness against the median of
the others is judged by the intervals of `hpcprof.analysis.collectives.step_costs`, as a collect does. The
clocks are exact, because their uncertainty only widens the intervals. The noise is that of each rank and step
alone, or also resembles that of the step before (an autoregressive series of first order), or is in part the
same for all ranks in a step, or has a long tail (lognormal). In the first table no rank is late, in the
second one is. By default there are 4000 programs of each kind, and a quarter as many of 64 ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.collectives.clock_alignment import later_than_others  # noqa: E402
from hpcprof.analysis.collectives.step_costs import rank_intervals  # noqa: E402

RANKS = {2: 1.0, 8: 1.0, 64: 0.25}
"""The numbers of ranks, and their shares of the trials."""

STEPS = (6, 20, 100)
LATE = (0.01, 0.03, 0.05)
NOISES = (0.001, 0.002, 0.005, 0.01, 0.02)
PART = 1_000_000
"""How many values are drawn at a time."""

Values = NDArray[np.float64]


class Noise(NamedTuple):
    """A kind of noise: the correlation of neighbouring steps, the share that all ranks have in common."""

    name: str
    correlation: float = 0.0
    common: float = 0.0
    tail: bool = False


KINDS = (
    Noise("independent"),
    Noise("steps 0.3", 0.3),
    Noise("steps 0.6", 0.6),
    Noise("ranks 0.6", common=0.6),
    Noise("both 0.6", 0.6, 0.6),
    Noise("tail, steps 0.6", 0.6, tail=True),
)


def varied(shape: tuple[int, int, int], kind: Noise, draw: np.random.Generator) -> Values:
    """Return series of shape (programs, ranks, steps) with mean 0 and variance 1."""
    # Of a lognormal variable with these parameters the mean is exp(1/2), and the variance e (e - 1).
    new = draw.lognormal(0, 1, shape) if kind.tail else draw.standard_normal(shape)
    if kind.tail:
        new = (new - np.exp(0.5)) / np.sqrt(np.e * (np.e - 1))
    for step in range(1, shape[2]):
        new[..., step] *= np.sqrt(1 - kind.correlation**2)
        new[..., step] += kind.correlation * new[..., step - 1]
    series: Values = new
    return series


def arrivals(shape: tuple[int, int, int], kind: Noise, draw: np.random.Generator) -> Values:
    """Return arrivals of ranks that share a part of their noise in each step."""
    own = varied(shape, kind, draw)
    shared = varied((shape[0], 1, shape[2]), kind, draw)
    both: Values = np.sqrt(kind.common) * shared + np.sqrt(1 - kind.common) * own
    return both


def named(arrival: Values) -> NDArray[np.bool_]:
    """Return which ranks are called late by their arrivals of shape (programs, ranks, steps)."""
    programs, ranks, steps = arrival.shape
    by_step = np.moveaxis(arrival, 1, 2).reshape(-1, ranks)
    late = np.moveaxis(later_than_others(by_step).reshape(programs, steps, ranks), 2, 1)
    # As in the product, the other half of the steps tells whether the collective counts.
    second = 2 * np.arange(steps) >= steps
    first_half, second_half = (np.median(late[..., half], axis=-1) for half in (~second, second))
    usual = np.where(second, first_half[..., None], second_half[..., None])
    cost = late * (usual > 0)
    low, _ = rank_intervals(cost, late, ranks)
    found: NDArray[np.bool_] = np.minimum(low, np.median(cost, axis=-1)) > 0
    return found


def shares(
    ranks: int, steps: int, kind: Noise, late: float, trials: int, draw: np.random.Generator
) -> tuple[float, float]:
    """Return in how many percent of programs any rank, and the last one, is called late.

    The last rank is late by ``late`` standard deviations of the noise.
    """
    part = max(1, PART // (ranks * steps))
    anyone, last = [], []
    for at in range(0, trials, part):
        arrival = arrivals((min(part, trials - at), ranks, steps), kind, draw)
        arrival[:, -1] += late
        found = named(arrival)
        anyone.append(found.any(axis=1))
        last.append(found[:, -1])
    return 100 * float(np.mean(np.concatenate(anyone))), 100 * float(np.mean(np.concatenate(last)))


def false_alarms(trials: int) -> None:
    """Print how often any rank of a program is called late where none is."""
    print("No rank is late. Programs in which a rank is called late, in percent:")
    print("ranks  noise            trials" + "".join(f" {steps:5} steps" for steps in STEPS))
    for ranks, share in RANKS.items():
        draw, number = np.random.default_rng(ranks), max(1, round(trials * share))
        for kind in KINDS:
            found = [shares(ranks, steps, kind, 0.0, number, draw)[0] for steps in STEPS]
            print(
                f"{ranks:5}  {kind.name:16} {number:6}" + "".join(f" {one:11.2f}" for one in found),
                flush=True,
            )


def power(trials: int) -> None:
    """Print how often the late rank is called late, by its lateness and the noise in percent of a step."""
    print("One rank is late (noise: steps 0.3). It is called late in percent of programs of 6/20/100 steps:")
    print("ranks  late " + "".join(f"  noise {100 * noise:3.1f} %" for noise in NOISES))
    for ranks, share in RANKS.items():
        draw, number = np.random.default_rng(ranks), max(1, round(trials * share / 4))
        for late in LATE:
            line = f"{ranks:5}  {100 * late:2.0f} %"
            for noise in NOISES:
                found = [shares(ranks, n, KINDS[1], late / noise, number, draw)[1] for n in STEPS]
                line += f"{'/'.join(f'{one:.0f}' for one in found):>13}"
            print(line, flush=True)


def main() -> None:
    """Print both tables."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    false_alarms(trials)
    power(trials)


if __name__ == "__main__":
    main()
