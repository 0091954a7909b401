"""Coverage of the intervals of `explain` over the steps: ``python benchmarks/intervals.py [TRIALS]``.

Draws the savings of some steps with noise of several kinds, and prints how many percent of the intervals of
90 % of their mean (`hpcprof.analysis.explain.intervals.half_width`) contain the mean of the noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.explain.intervals import half_width  # noqa: E402
from hpcprof.profiles.timeline import Floats  # noqa: E402

STEPS = (3, 4, 5, 6, 10, 20, 40)
Draw = Callable[[tuple[int, int]], Floats]


def correlated(draw: Draw, share: float) -> Draw:
    """Return noise in which neighbours have a correlation of ``share``."""

    def drawn(shape: tuple[int, int]) -> Floats:
        values = draw(shape)
        for step in range(1, shape[1]):
            values[:, step] = share * values[:, step - 1] + np.sqrt(1 - share**2) * values[:, step]
        return values

    return drawn


def noises(generator: np.random.Generator) -> dict[str, Draw]:
    """Return noise of each kind."""

    def normal(shape: tuple[int, int]) -> Floats:
        return generator.standard_normal(shape)

    return {
        "normal": normal,
        "lognormal": lambda shape: generator.lognormal(0, 0.7, shape),
        "Student, 3": lambda shape: generator.standard_t(3, shape),
        "10 % outliers": lambda shape: normal(shape) + 8 * (generator.random(shape) < 0.1),
        "two levels": lambda shape: normal(shape) - 8 * (generator.random(shape) < 0.3),
        "AR(0.5)": correlated(normal, 0.5),
        "AR(0.8)": correlated(normal, 0.8),
    }


def main() -> None:
    """Print the coverage for each kind of noise and number of steps."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    kinds = noises(np.random.default_rng(0))
    print(f"{'noise':14}" + "".join(f"{steps:>8}" for steps in STEPS) + "  steps")
    for name, draw in kinds.items():
        truth = float(np.mean(draw((1_000_000, 1))))
        figures = []
        for steps in STEPS:
            inside = [abs(np.mean(one) - truth) <= half_width(one) for one in draw((trials, steps))]
            figures.append(f"{100 * float(np.mean(inside)):8.1f}")
        print(f"{name:14}" + "".join(figures))


if __name__ == "__main__":
    main()
