"""False alarms and power of the drift of the step time: ``python benchmarks/drift.py [TRIALS]``.

Step times vary by a normal noise, on its own or resembling that of the step before (an autoregressive series
of first order), or with a long tail; others wander during the run. Prints in how many percent of the series a
drift is found where there is none, and where the level drifts or changes by some percent. By default there
are 2000 series of each kind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.explain.step_series import drift  # noqa: E402
from hpcprof.analysis.steps.run_step import StepSeries  # noqa: E402

STEPS = (12, 20, 60)
WANDERING = ("a tenth", "half", "walk", "walk, steps", "levels")
NOISES = (0.005, 0.02, 0.05)
KINDS = (("independent", 0.0), ("steps 0.5", 0.5), ("steps 0.8", 0.8), ("tail", 0.0))
CHANGES = (0.05, 0.1, 0.2)
STEP_NS = 50e6


def noise(kind: str, correlation: float, steps: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return a series with mean 0 and variance 1."""
    new = draw.standard_t(3, steps) / np.sqrt(3) if kind == "tail" else draw.standard_normal(steps)
    for step in range(1, steps):
        new[step] = np.sqrt(1 - correlation**2) * new[step] + correlation * new[step - 1]
    return new


def wandering(kind: str, steps: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return a series that resembles itself for some part of the run, or changes between two levels."""
    if kind.startswith("walk"):
        walk = np.cumsum(draw.standard_normal(steps))
        own = walk / walk.std() + draw.standard_normal(steps) * (kind != "walk")
        return np.asarray(own, np.float64)
    part = {"half": 2, "a tenth": 10, "levels": 10}[kind]
    series = noise("steps", np.exp(-part / steps), 2 * steps, draw)[steps:]
    return np.sign(series) + 0.3 * draw.standard_normal(steps) if kind == "levels" else series


def found(kind: str, correlation: float, level: NDArray[np.float64], sd: float, trials: int) -> float:
    """Return in how many percent of series around a level a drift is found."""
    draw, count = np.random.default_rng(0), 0
    every = np.arange(len(level))
    for _ in range(trials):
        make = wandering(kind, len(level), draw) if kind in WANDERING else None
        wall = (
            STEP_NS
            * level
            * (1 + sd * (noise(kind, correlation, len(level), draw) if make is None else make))
        )
        count += drift(StepSeries(every, wall.astype(np.int64), every)) is not None
    return 100 * count / trials


def main() -> None:
    """Print false alarms, then power."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("No drift. Series in which one is found, in percent:")
    print(f"{'noise':14}" + "".join(f"{f'{100 * sd:g} %, {n} steps':>17}" for sd in NOISES for n in STEPS))
    for kind, correlation in KINDS:
        rates = [found(kind, correlation, np.ones(n), sd, trials) for sd in NOISES for n in STEPS]
        print(f"{kind:14}" + "".join(f"{rate:17.2f}" for rate in rates), flush=True)
    print(
        "The level wanders: it is alike for a part of the run, walks, or changes between two. A drift "
        "is found in percent of series of 60, 150 steps:"
    )
    for kind in WANDERING:
        rates = [found(kind, 0.0, np.ones(n), 0.05, max(1, trials // 10)) for n in (60, 150)]
        print(f"{kind:14}" + "".join(f"{rate:17.1f}" for rate in rates), flush=True)
    print(
        "A drift, or a change in the middle, of some percent (independent). It is found in percent of series:"
    )
    for change in CHANGES:
        for name in ("drift", "change"):
            line = f"{name:7} {100 * change:3.0f} % "
            for sd in NOISES:
                for n in STEPS:
                    at = np.arange(n) / (n - 1)
                    level = 1 + change * (at if name == "drift" else (at > 0.5).astype(float))
                    line += f"{found('independent', 0.0, level, sd, max(1, trials // 10)):17.0f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
