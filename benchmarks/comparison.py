"""Rate at which ``hpcprof compare`` finds a change: ``python benchmarks/comparison.py [TRIALS]``.

Each trial draws the median steps of the runs of both sides and of earlier runs of the baseline, in the order
of time, and takes the verdict of the analysis. Logarithms of the steps vary by 1 % with the noise of
`benchmarks.noise`, so that runs of AR(0.5) resemble the run before, be it of the other side. A trend makes
each run slower than the one before. A day effect is a part that all runs of one comparison share, and that is
another one for each earlier run. Figures are percent of the trials with the 95 % interval of the simulation.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.noise import KINDS, share  # noqa: E402
from hpcprof.analysis.comparison.compare import REGRESSION, compare  # noqa: E402
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES  # noqa: E402
from hpcprof.analysis.framework.run_data import RunData  # noqa: E402
from hpcprof.profiles.timeline import Floats  # noqa: E402

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
STEP_NS = 100_000_000
TABLES = {
    name: pd.DataFrame(columns=[column.name for column in ANALYSES[name].columns])
    for name in ACROSS_RUNS["compare"].needs
}
NOISE = 0.01
BLOCKS, TURNS, ABBA = "AAABBB", "ABABAB", "ABBAAB"


@dataclass(frozen=True)
class Case:
    """The conditions of a trial; relative sizes as shares (0.01 is 1 %).

    ``noise_of_b`` is the noise of the candidate over that of the baseline.
    """

    order: str = BLOCKS
    earlier: int = 0
    kind: str = "normal"
    noise_of_b: float = 1.0
    day: float = 0.0
    trend: float = 0.0


CASES = {
    "3 runs a side": Case(),
    "5 runs a side": Case("AAAAABBBBB"),
    "3 runs a side, 10 earlier": Case(earlier=10),
    "3 runs a side, 10 earlier, day effect 0.5 %": Case(earlier=10, day=0.005),
    "3 runs a side, noise of B 2 %": Case(noise_of_b=2),
    "3 runs a side, 10 earlier, noise of B 2 %": Case(earlier=10, noise_of_b=2),
    "3 pairs (A B A B A B)": Case(TURNS),
    "4 pairs (A B B A A B B A)": Case("ABBAABBA"),
    "3 pairs (A B B A A B), 10 earlier": Case(ABBA, 10),
    "3 pairs (A B B A A B), 10 earlier, noise of B 2 %": Case(ABBA, 10, noise_of_b=2),
    "trend 0.2 %, 3 runs a side in blocks": Case(trend=0.002),
    "trend 0.2 %, 3 runs a side in blocks, 10 earlier": Case(earlier=10, trend=0.002),
    "trend 0.5 %, 10 runs a side in blocks": Case(10 * "A" + 10 * "B", trend=0.005),
    "trend 0.5 %, 10 runs a side in blocks, 10 earlier": Case(10 * "A" + 10 * "B", 10, trend=0.005),
    "trend 0.2 %, 3 pairs (A B A B A B)": Case(TURNS, trend=0.002),
    "trend 0.2 %, 3 pairs (A B A B A B), 10 earlier": Case(TURNS, 10, trend=0.002),
    "trend 0.2 %, 4 pairs (A B B A A B B A)": Case("ABBAABBA", trend=0.002),
    "trend 0.2 %, 4 pairs (A B B A A B B A), 10 earlier": Case("ABBAABBA", 10, trend=0.002),
} | {
    f"{kind}, {words}": Case(*conditions, kind)
    for kind in ("lognormal", "heavy tails", "outliers", "AR(0.5)", "AR(0.8)")
    for words, conditions in {
        "3 runs a side": (BLOCKS, 0),
        "3 runs a side, 10 earlier": (BLOCKS, 10),
        "3 pairs (A B B A A B), 10 earlier": (ABBA, 10),
    }.items()
}


def runs(logarithms: Floats, places: list[int]) -> list[RunData]:
    """Return runs with these steps, submitted at these places in time."""
    return [
        RunData(
            id=str(place),
            facts={},
            parameters={},
            own_step_ns=np.array([round(STEP_NS * np.exp(value))], np.int64),
            tables=TABLES,
            timeline_ranks=(),
            read=dict[int, object]().__getitem__,  # type: ignore[arg-type]
            submitted=BEGIN + timedelta(minutes=place),
        )
        for value, place in zip(logarithms, places, strict=True)
    ]


def verdict(case: Case, change: float, random: np.random.Generator) -> str:
    """Return the verdict of one trial."""
    sides = np.array([" "] * case.earlier + [*case.order])
    noise = NOISE * KINDS[case.kind]((len(sides),), random)
    day = random.normal(0, case.day, len(sides))
    day[case.earlier :] = day[-1]
    values = noise + day + case.trend * np.arange(len(sides))
    values[sides == "B"] += np.log1p(change) + (case.noise_of_b - 1) * noise[sides == "B"]
    before, a, b = (runs(values[sides == side], np.flatnonzero(sides == side).tolist()) for side in " AB")
    return str(compare(b, a, before).rows["verdict"].iloc[0])


def main() -> None:
    """Simulate, and print a table."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    print(f"| regressions in percent of {trials} trials | no change | 2 % slower |\n|---|---|---|")
    for name, case in CASES.items():
        random = np.random.default_rng(1)
        found = [
            share(Counter(verdict(case, change, random) for _ in range(trials))[REGRESSION], trials)
            for change in (0.0, 0.02)
        ]
        print(f"| {name} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
