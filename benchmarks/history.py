"""How often a change point is marked where nothing changes, and how often a change is found.

    python benchmarks/history.py [SERIES [once]]

The logarithms of the runs vary by 1 % with the noise of `benchmarks.noise`. The first table is for a single
look at a series and for looks after each run up to 100 (for half as many series), the second for an outlier
as the last of 20 runs, and the third for changes: one is found if it is marked at its place or one run beside
it. With ``once`` there are no looks after each run, which take most of the time. Figures are percent of the
series with the 95 % interval of the simulation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.noise import KINDS, share  # noqa: E402
from hpcprof.analysis.comparison.change_points import FEWEST, change_points  # noqa: E402
from hpcprof.analysis.statistics.grouped import Floats  # noqa: E402

NOISE = 0.01
LENGTHS = (10, 20, 50, 100)
AFTER = (2, 3, 5, 10)
STATIONARY = [kind for kind in KINDS if kind != "drift"]


def marked(logarithms: Floats) -> list[int]:
    """Return the places of the changes."""
    return [one.position for one in change_points(np.exp(logarithms).tolist())]


def after_each_run(logarithms: Floats) -> bool:
    """Return whether a look after each run shows a change at any time."""
    return any(marked(logarithms[:end]) for end in range(FEWEST, len(logarithms) + 1))


def main() -> None:
    """Print the tables."""
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    once = sys.argv[2:] == ["once"]
    random = np.random.default_rng(1)
    repeated = [] if once else ["after each of 100"]
    print(f"| no change, {series} series | {' | '.join([*map(str, LENGTHS), *repeated])} |")
    for kind in STATIONARY:
        cells = []
        for length in LENGTHS:
            values = NOISE * KINDS[kind]((series, length), random)
            cells.append(share(sum(bool(marked(one)) for one in values), series))
        if repeated:
            values = NOISE * KINDS[kind]((series // 2, LENGTHS[-1]), random)
            cells.append(share(sum(map(after_each_run, values)), series // 2))
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)
    print("| the last of 20 runs is longer by | any mark |")
    for off in (0.03, 0.05, 0.1, 0.3):
        values = NOISE * KINDS["normal"]((series, 20), random)
        values[:, -1] += np.log1p(off)
        print(
            f"| {100 * off:.0f} % | {share(sum(bool(marked(one)) for one in values), series)} |", flush=True
        )
    print(f"| 20 runs before, runs after | {' | '.join(map(str, AFTER))} |")
    for kind in STATIONARY:
        for change in (0.02, 0.03, 0.05):
            cells = []
            for after in AFTER:
                values = NOISE * KINDS[kind]((series // 2, 20 + after), random)
                values[:, 20:] += np.log1p(change)
                hits = sum(any(abs(place - 20) <= 1 for place in marked(one)) for one in values)
                cells.append(share(hits, series // 2))
            print(f"| {kind}, {100 * change:.0f} % | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
