"""False alarms and power of the verdicts on late ranks: ``python benchmarks/lateness.py [TRIALS]``.

Ranks arrive at a collective of each step at times that vary, and each rank's lateness against the median of
the others is judged by the intervals of `hpcprof.analysis.collectives.waiting_balance`, as a collect does.
The clocks are exact, because their uncertainty only widens the intervals. The kinds of noise are those of
`benchmarks.noise`; a drift and half of "common" are the same for all ranks in a step, "one AR(0.8)" has one
such rank beside independent ones, and "unequal" ranks whose AR(0.5) differs in size. In the first table no
rank is late, in the second one is, by 1.5 standard deviations: 3 % of a step where a step varies by 2 %.
In the third table a rank is late by 3 or 16 % of a step whose arrivals vary by 0.2 or 2 % of it; its lateness
may jump or drift by 45 %. Figures are percent of programs, with the 95 % interval of the simulation in the
first two tables. By default there are 4000 programs of each kind, and a quarter as many in the other tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.noise import KINDS, Values, autoregressive, share  # noqa: E402
from hpcprof.analysis.collectives.clock_alignment import later_than_others  # noqa: E402
from hpcprof.analysis.collectives.waiting_balance import rank_intervals  # noqa: E402

RANKS = (2, 16, 64)
STEPS = (6, 20, 100)
LATE = 1.5
GROWTH = 0.45
CHANGES = ("normal", "AR(0.5)", "AR(0.9)", "jump", "own drift")
PART = 1_000_000
"""The number of values drawn at a time."""

Shape = tuple[int, ...]


def _drift(shape: Shape, draw: np.random.Generator) -> Values:
    return KINDS["normal"](shape, draw) + KINDS["drift"]((shape[0], 1, shape[2]), draw)


def _common(shape: Shape, draw: np.random.Generator) -> Values:
    return KINDS["AR(0.5)"](shape, draw) + KINDS["AR(0.5)"]((shape[0], 1, shape[2]), draw)


def _one(shape: Shape, draw: np.random.Generator) -> Values:
    values = KINDS["normal"](shape, draw)
    values[:, :1] = KINDS["AR(0.8)"]((shape[0], 1, shape[2]), draw)
    return values


def _unequal(shape: Shape, draw: np.random.Generator) -> Values:
    return KINDS["AR(0.5)"](shape, draw) * draw.lognormal(0, 1, (*shape[:2], 1))


NOISE: dict[str, Callable[[Shape, np.random.Generator], Values]] = KINDS | {
    "AR(0.9)": autoregressive(0.9),
    "drift": _drift,
    "common": _common,
    "one AR(0.8)": _one,
    "unequal": _unequal,
}
"""Arrivals of shape (programs, ranks, steps)."""


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


def counts(ranks: int, steps: int, kind: str, late: float, trials: int) -> tuple[int, int]:
    """Return in how many programs any rank, and the last one, is called late.

    The last rank is late by ``late`` standard deviations of the noise.
    """
    draw = np.random.default_rng([ranks, steps])
    part = max(1, PART // (ranks * steps))
    anyone = last = 0
    for at in range(0, trials, part):
        arrival = NOISE[kind]((min(part, trials - at), ranks, steps), draw)
        arrival[:, -1] += late
        found = named(arrival)
        anyone += int(found.any(axis=1).sum())
        last += int(found[:, -1].sum())
    return anyone, last


def table(title: str, late: float, trials: int) -> None:
    """Print in how many programs any rank (none is late) or the late one is called late."""
    print(f"{title}, {trials} programs each\n")
    print("| ranks | noise |" + "".join(f" {steps} steps |" for steps in STEPS) + "\n|---|---|" + "---|" * 3)
    for ranks in RANKS:
        for kind in NOISE:
            found = [counts(ranks, steps, kind, late, trials)[late > 0] for steps in STEPS]
            cells = "".join(f" {share(hits, trials)} |" for hits in found)
            print(f"| {ranks} | {kind} |{cells}", flush=True)


def changing(ranks: int, steps: int, kind: str, spread: float, late: float, trials: int) -> float:
    """Return the share in % of programs in which any rank (none is late), or the late one, is called late.

    ``spread`` and ``late`` are in percent of a step.
    """
    draw = np.random.default_rng([ranks, steps, round(10 * spread)])
    noise = kind if kind in NOISE else "normal"
    arrival = spread * NOISE[noise]((trials, ranks, steps), draw)
    growth = np.zeros((trials, steps))
    if kind == "jump":
        growth += np.arange(steps) >= draw.integers(steps // 5, steps - steps // 5, (trials, 1))
    elif kind == "own drift":
        growth += np.linspace(0, 1, steps)
    arrival[:, -1] += late * (1 + GROWTH * growth)
    calls = named(arrival)
    return 100 * float((calls[:, -1] if late else calls.any(axis=1)).mean())


def changing_table(trials: int) -> None:
    """Print the shares of programs of even ranks, of a rank late by 3 % and of one late by 16 %."""
    print(f"Called late: even / late by 3 % / late by 16 % of a step, {trials} programs each\n")
    print("| ranks | steps | vary by |" + "".join(f" {kind} |" for kind in CHANGES))
    print("|---|---|---|" + "---|" * len(CHANGES))
    for ranks, steps, spread in product((4, 16), (20, 43, 200), (0.2, 2.0)):
        cells = [
            " / ".join(f"{changing(ranks, steps, kind, spread, late, trials):.3g}" for late in (0, 3, 16))
            for kind in CHANGES
        ]
        print(f"| {ranks} | {steps} | {spread} % | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print all tables."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    table("No rank is late: any rank is called late", 0.0, trials)
    table(f"One rank is late by {LATE} standard deviations: it is called late", LATE, max(1, trials // 4))
    print()
    changing_table(max(1, trials // 4))


if __name__ == "__main__":
    main()
