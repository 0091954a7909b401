"""Rates of change points marked where nothing changes, and of changes found.

    python benchmarks/history.py [SERIES [once]]

The logarithms of the runs vary by 1 % with the noise of `benchmarks.noise` and some more. The first table is
for a single look at a series and for looks after each run up to 100, the second for an outlier as the last of
20 runs, and the third for changes: one is found if it is marked at its place or one run beside it. With
``once`` there are no looks after each run, which take most of the time. Figures are percent of the series
with the 95 % interval of the simulation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.noise import KINDS, Shape, Values, share  # noqa: E402
from hpcprof.analysis.comparison.change_points import (  # noqa: E402
    FEWEST,
    change_probabilities,
    level_changes,
)
from hpcprof.profiles.timeline import Floats  # noqa: E402

NOISE = 0.01
LENGTHS = (10, 20, 50, 100)
AFTER = (2, 3, 4, 5, 10)
CHANGES = (0.02, 0.03, 0.05, 0.1)
AT_ONCE = 50
"""The series whose probabilities are computed at a time."""


def _slightly_skewed(shape: Shape, draw: np.random.Generator) -> Values:
    # The mean is exp(1/8), and the variance exp(1/4) (exp(1/4) - 1).
    values: Values = (draw.lognormal(0, 0.5, shape) - np.exp(0.125)) / np.sqrt(np.exp(0.25) * np.expm1(0.25))
    return values


def _exponential(shape: Shape, draw: np.random.Generator) -> Values:
    values: Values = draw.exponential(1, shape) - 1
    return values


def _far_outliers(shape: Shape, draw: np.random.Generator) -> Values:
    # 20 % longer.
    values: Values = draw.standard_normal(shape) + np.log(1.2) / NOISE * (draw.random(shape) < 0.05)
    return values


STATIONARY = {kind: noise for kind, noise in KINDS.items() if kind != "drift"} | {
    "lognormal (0.5)": _slightly_skewed,
    "exponential": _exponential,
    "outliers of 20 %": _far_outliers,
}


def marked(logarithms: Floats) -> list[list[int]]:
    """Return the places of the changes of each series."""
    probability = np.concatenate(
        [change_probabilities(logarithms[at : at + AT_ONCE]) for at in range(0, len(logarithms), AT_ONCE)]
    )
    return [[*level_changes(one, found)] for one, found in zip(logarithms, probability, strict=True)]


def after_each_run(logarithms: Floats) -> int:
    """Return the number of series of which a look after each run shows a change at any time."""
    calm = logarithms
    for end in range(FEWEST, logarithms.shape[1] + 1):
        calm = calm[[not places for places in marked(calm[:, :end])]]
    return len(logarithms) - len(calm)


def main() -> None:
    """Print the tables."""
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    once = sys.argv[2:] == ["once"]
    random = np.random.default_rng(1)
    repeated = [] if once else ["after each of 100"]
    print(f"| no change, {series} series | {' | '.join([*map(str, LENGTHS), *repeated])} |")
    for kind, noise in STATIONARY.items():
        cells = []
        for length in LENGTHS:
            values = NOISE * noise((series, length), random)
            cells.append(share(sum(map(bool, marked(values))), series))
        if repeated:
            values = NOISE * noise((series, LENGTHS[-1]), random)
            cells.append(share(after_each_run(values), series))
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)
    print("| the last of 20 runs is longer by | any mark |")
    for off in (0.03, 0.05, 0.1, 0.3):
        values = NOISE * KINDS["normal"]((series, 20), random)
        values[:, -1] += np.log1p(off)
        print(f"| {100 * off:.0f} % | {share(sum(map(bool, marked(values))), series)} |", flush=True)
    print(f"| 20 runs before, runs after | {' | '.join(map(str, AFTER))} |")
    for kind, noise in STATIONARY.items():
        for change in CHANGES:
            cells = []
            for after in AFTER:
                values = NOISE * noise((series, 20 + after), random)
                values[:, 20:] += np.log1p(change)
                hits = sum(any(abs(place - 20) <= 1 for place in places) for places in marked(values))
                cells.append(share(hits, series))
            print(f"| {kind}, {100 * change:.0f} % | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
