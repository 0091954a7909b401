"""Accuracy of `scaling_models` at twice the largest size: ``python benchmarks/scaling_models.py [DRAWS]``.

Times follow a known law with normal noise; the figures are the share of draws, in percent, that are predicted
within 5 % at twice the largest number of ranks. The second table is the coverage of the 90 % interval of
``dominates_from`` where divided work meets a part that grows, with 2 % noise, and an eighth of the draws.
The third has published rates beside those that the smaller sizes predict.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.comparison.scaling import dominance_thresholds, fit  # noqa: E402
from hpcprof.profiles.timeline import Floats  # noqa: E402

Law = Callable[[Floats], Floats]

LAWS: dict[str, Law] = {
    "constant": lambda p: 5 + 0 * p,
    "100/p": lambda p: 100 / p,
    "200/p + p": lambda p: 200 / p + p,
    "1/p + 0.3 p": lambda p: 1 / p + 0.3 * p,
    "100/p + 3 log2(p)": lambda p: 100 / p + 3 * np.log2(p),
    "log2(p)": np.log2,
    "p^0.5": np.sqrt,
    "1 + 0.01 p": lambda p: 1 + 0.01 * p,
    "3 + 0.05 p^1.5": lambda p: 3 + 0.05 * p**1.5,
}
SIZES = {
    "2 to 16": [2, 4, 8, 16],
    "2 to 64": [2, 4, 8, 16, 32, 64],
    "2 to 256": [2, 4, 8, 16, 32, 64, 128, 256],
}
CROSSINGS: dict[str, tuple[Law, Law]] = {
    "640/p, 0.4 log2(p)": (lambda p: 640 / p, lambda p: 0.4 * np.log2(p)),
    "6400/p, 1 + 0.02 p": (lambda p: 6400 / p, lambda p: 1 + 0.02 * p),
    "640/p, 0.3 p^0.5": (lambda p: 640 / p, lambda p: 0.3 * np.sqrt(p)),
}


# Tokens a second and GPU of a data-parallel model, from 8 GPUs on, of the Ultra-Scale Playbook (Nanotron).
PUBLISHED = {8: 40149.94, 16: 37609.69, 32: 35367.61, 64: 31112.23, 128: 26446.44, 256: 15700.38}


def noisy(law: Law, sizes: list[int], noise: float, random: np.random.Generator) -> list[float]:
    """Return times in ns that follow a law in ms with normal noise, its relative size given."""
    times = law(np.array(sizes, float)) * np.exp(noise * random.standard_normal(len(sizes)))
    return [float(time) for time in 1e6 * times]


def predicted(law: Law, sizes: list[int], noise: float, draws: int) -> float:
    """Return the percentage of draws that predict twice the largest size within 5 %."""
    random, twice = np.random.default_rng(1), np.array([2.0 * sizes[-1]])
    models = [fit(sizes, noisy(law, sizes, noise, random)) for _ in range(draws)]
    truth = 1e6 * float(law(twice)[0])
    close = [model is not None and abs(float(model.at(twice)[0]) / truth - 1) <= 0.05 for model in models]
    return 100 * close.count(True) / len(models)


def covered(laws: tuple[Law, Law], sizes: list[int], draws: int) -> float:
    """Return the percentage of draws whose interval, widened by 5 %, holds the crossing of two laws."""
    random, ranks = np.random.default_rng(2), np.arange(2.0, 1e5)
    crossing = ranks[np.flatnonzero(laws[1](ranks) > laws[0](ranks))[0]]
    hits = 0
    for _ in range(draws):
        dominance = dominance_thresholds(sizes, [noisy(law, sizes, 0.02, random) for law in laws])[1]
        if dominance is not None and (dominance.low or np.inf) <= 1.05 * crossing:
            hits += (dominance.high or np.inf) >= crossing / 1.05
    return 100 * hits / draws


def published() -> None:
    """Print what the model of the smaller sizes says of the published larger ones."""
    sizes, rates = [*PUBLISHED], [*PUBLISHED.values()]
    print("| measured to | model | published | a + b log2 p |\n|---|---|---|---|")
    for count in range(3, len(sizes)):
        model = fit(sizes[:count], [1e12 / rate for rate in rates[:count]])
        slope, level = np.polyfit(np.log2(sizes[:count]), [1 / rate for rate in rates[:count]], 1)
        larger = np.array(sizes[count:], float)
        said = "none" if model is None else ", ".join(f"{1e12 / time:,.0f}" for time in model.at(larger))
        line = ", ".join(f"{1 / time:,.0f}" for time in level + slope * np.log2(larger))
        print(
            f"| {sizes[count - 1]} | {said} | {', '.join(f'{one:,.0f}' for one in rates[count:])} | {line} |"
        )


def main() -> None:
    """Print the three tables."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print("| times | " + " | ".join(f"{name}, {noise} %" for name in SIZES for noise in (1, 5)) + " |")
    print("|---|" + "---|" * 2 * len(SIZES))
    for name, law in LAWS.items():
        shares = [predicted(law, sizes, noise / 100, draws) for sizes in SIZES.values() for noise in (1, 5)]
        print(f"| {name} | " + " | ".join(f"{share:.0f}" for share in shares) + " |", flush=True)
    print("\n| parts | " + " | ".join(SIZES) + " |\n|---|" + "---|" * len(SIZES))
    for name, laws in CROSSINGS.items():
        shares = [covered(laws, sizes, max(1, draws // 8)) for sizes in SIZES.values()]
        print(f"| {name} | " + " | ".join(f"{share:.0f}" for share in shares) + " |", flush=True)
    print()
    published()


if __name__ == "__main__":
    main()
