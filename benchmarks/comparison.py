"""How often ``hpcprof compare`` finds a change: ``python benchmarks/comparison.py [TRIALS]``.

Each trial draws the median steps of the runs of both sides and of earlier runs of the baseline, and takes the
verdict of the analysis. Logarithms of the steps are normal with a standard deviation of 1 % unless the table
says otherwise. A day effect is a part that all runs of one comparison share, and that is another one for each
earlier run; a drift is one that the two runs of a pair share.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.compare import compare
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.grouped import Floats

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
STEP_NS = 100_000_000
NEEDS = ("steps_summary", "step_times", "phases", "breakdown", "overlap", "kernels")
TABLES = {name: pd.DataFrame(columns=["rank", "overlap_pct"]) for name in NEEDS}


@dataclass(frozen=True)
class Case:
    """The conditions of a trial; relative sizes as shares (0.01 is 1 %)."""

    runs: int = 3
    earlier: int = 0
    noise: float = 0.01
    noise_of_b: float = 0.01
    day: float = 0.0
    drift: float = 0.0
    in_turns: bool = False


CASES = {
    "3 runs a side": Case(),
    "3 runs a side, 10 earlier": Case(earlier=10),
    "3 runs a side, 10 earlier, day effect 0.5 %": Case(earlier=10, day=0.005),
    "3 runs a side, 10 earlier, day effect 1 %": Case(earlier=10, day=0.01),
    "3 runs a side, 10 earlier, noise 5 %": Case(earlier=10, noise=0.05, noise_of_b=0.05),
    "3 runs a side, 10 earlier, noise of B 2 %": Case(earlier=10, noise_of_b=0.02),
    "3 runs a side, noise of B 2 %": Case(noise_of_b=0.02),
    "5 runs a side": Case(runs=5),
    "3 pairs": Case(in_turns=True),
    "5 pairs": Case(runs=5, in_turns=True),
    "5 runs a side, drift 2 %": Case(runs=5, drift=0.02),
    "5 pairs, drift 2 %": Case(runs=5, drift=0.02, in_turns=True),
}


def runs(logarithms: Floats, second: int | None = None) -> list[RunData]:
    """Return runs with these steps; the first is submitted in a given second, the others each two later."""
    return [
        RunData(
            id=str(i),
            facts={},
            parameters={},
            own_step_ns=np.array([round(STEP_NS * np.exp(value))], np.int64),
            tables=TABLES,
            timeline_ranks=(),
            read=dict[int, object]().__getitem__,  # type: ignore[arg-type]
            submitted=None if second is None else BEGIN + timedelta(seconds=second + 2 * i),
        )
        for i, value in enumerate(logarithms)
    ]


def verdict(case: Case, change: float, random: np.random.Generator) -> str:
    """Return the verdict of one trial."""
    shared = random.normal(0, case.day) + random.normal(0, case.drift, case.runs)
    a = random.normal(0, case.noise, case.runs) + shared
    b = random.normal(np.log1p(change), case.noise_of_b, case.runs) + shared
    before = random.normal(0, case.noise, case.earlier) + random.normal(0, case.day, case.earlier)
    seconds = (0, 1) if case.in_turns else (None, None)
    rows = compare(runs(b, seconds[1]), runs(a, seconds[0]), runs(before)).rows
    return str(rows["verdict"].iloc[0])


def main() -> None:
    """Simulate, and print a table."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
    print(f"{'regressions in percent of ' + str(trials) + ' trials':44} {'no change':>9} {'2 % slower':>10}")
    for name, case in CASES.items():
        random = np.random.default_rng(1)
        found = [
            Counter(verdict(case, change, random) for _ in range(trials))["regression"] / trials
            for change in (0.0, 0.02)
        ]
        print(f"{name:44} {100 * found[0]:9.1f} {100 * found[1]:10.1f}", flush=True)


if __name__ == "__main__":
    main()
