"""How often a change point is marked where nothing changes, and how often a change is found.

    python benchmarks/history.py [SERIES]

Independent runs whose logarithms vary by 1 %: normal, Student's t with 3 degrees of freedom, or normal with
one run in 20 that takes 30 % longer. A change is found if one is marked at its place or one run beside it.
"""

from __future__ import annotations

import sys

import numpy as np

from hpcprof.analysis.comparison.change_points import change_points
from hpcprof.analysis.statistics.grouped import Floats

NOISE = 0.01
LENGTHS = (6, 10, 20, 50, 100)
AFTER = (2, 3, 5, 10)


def noise(kind: str, length: int, random: np.random.Generator) -> Floats:
    """Return the noise of a series, as logarithms."""
    if kind == "heavy tails":
        return NOISE * random.standard_t(3, length)
    values: Floats = NOISE * random.standard_normal(length)
    if kind == "outliers":
        values += 0.3 * (random.random(length) < 0.05)
    return values


def main() -> None:
    """Print both tables."""
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    random = np.random.default_rng(1)
    kinds = ("normal", "heavy tails", "outliers")
    print("| no change, runs |", " | ".join(map(str, LENGTHS)), "|")
    for kind in kinds:
        shares = [
            sum(bool(change_points(np.exp(noise(kind, n, random)).tolist())) for _ in range(series)) / series
            for n in LENGTHS
        ]
        print(f"| {kind} |", " | ".join(f"{100 * share:.1f} %" for share in shares), "|")
    print("| 20 runs before, runs after |", " | ".join(map(str, AFTER)), "|")
    for kind in kinds:
        for change in (0.01, 0.02, 0.05):
            found = []
            for after in AFTER:
                values = [
                    np.exp(noise(kind, 20 + after, random) + np.log1p(change) * (np.arange(20 + after) >= 20))
                    for _ in range(series)
                ]
                hits = [any(abs(one.position - 20) <= 1 for one in change_points(v.tolist())) for v in values]
                found.append(f"{100 * sum(hits) / series:.1f} %")
            print(f"| {kind}, {100 * change:.0f} % |", " | ".join(found), "|")


if __name__ == "__main__":
    main()
