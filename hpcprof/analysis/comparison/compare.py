"""Runs against other runs: what became slower, with the run as the replicate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.run_differences import describe_differences
from hpcprof.analysis.comparison.run_metrics import DECISIVE, OVERLAP, SPAN, has_steps, metrics
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, RATIO_DIGITS, welch_interval

REGRESSION = "regression"
NO_STATISTICS = "no statistics"
MATERIAL_PCT = 1
"""A smaller change than this, in percent, is none, however sure it is."""


def compare(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compare figures of runs (side b) with those of the runs that they are compared with (side a).

    ``a`` and ``b`` are geometric means over the runs (0 if a run has 0), in the unit of the metric's suffix;
    ``ratio`` is b over a. A run is one value, however many steps and ranks it has. With two or more runs on
    both sides there is an interval: Welch's t interval of the difference of the mean logarithms.

    The median steps decide, by the workload's own clock and in the profiles (where there is neither, the
    GPU's span). With two of them each interval has 97.5 %, so that both together hold with 95 % (Bonferroni).
    A regression is a decisive metric whose interval lies above 1 and whose ratio is at least 1 % above it.
    The other rows explain it, each with a 95 % interval of its own.
    """
    per_step = all(map(has_steps, (*runs, *against)))
    a, b = ([metrics(run, per_step) for run in side] for side in (against, runs))
    every = dict.fromkeys(name for run in (*a, *b) for name in run)
    sides = {name: tuple([run[name] for run in side if name in run] for side in (a, b)) for name in every}
    decisive = [name for name in DECISIVE if name in sides and all(sides[name])] or [SPAN]
    if not all(sides.get(decisive[0], ((), ()))):
        return no_rows("there is no time that both sides have: no steps and no GPU work")
    rows = [
        _row(name, of_a, of_b, len(decisive) if name in decisive else 0)
        for name, (of_a, of_b) in sides.items()
        if any(of_a) or any(of_b)
    ]
    said = describe_differences(against, runs)
    if not per_step and any(name == SPAN for name in sides):
        said.append("not every profile has steps: the GPU's times are those of whole profiles")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


def _row(name: str, a: list[float], b: list[float], decisive: int) -> dict[str, Any]:
    """Return a metric's row; ``decisive`` is the number of decisive metrics if this is one, else 0."""
    row: dict[str, Any] = {"metric": name, "a": _mean(a), "b": _mean(b)}
    row |= dict.fromkeys(("ratio", "ci_low", "ci_high")) | {"n_a": len(a), "n_b": len(b)}
    if not a or not b:
        return row | {"verdict": f"only in {'a' if a else 'b'}"}
    if not row["a"] or not row["b"]:
        return row | {"verdict": "zero: no ratio"}
    of_a, of_b = np.log(a), np.log(b)
    ratio = math.exp(float(of_b.mean() - of_a.mean()))
    row["ratio"] = round(ratio, RATIO_DIGITS)
    if min(len(a), len(b)) < 2:
        few = "one run each" if len(a) == len(b) else "one run on a side"
        return row | {"verdict": f"{few}: {NO_STATISTICS}"}
    low, high = map(math.exp, welch_interval(of_b, of_a, 1 - (1 - CONFIDENCE) / max(decisive, 1)))
    row |= {"ci_low": round(low, RATIO_DIGITS), "ci_high": round(high, RATIO_DIGITS)}
    words = ("higher", "lower") if name == OVERLAP else ("slower", "faster")
    return row | {"verdict": _verdict(ratio, low, high, (REGRESSION, "improvement") if decisive else words)}


def _mean(values: list[float]) -> float | None:
    """Return the geometric mean, 0 if one value is 0."""
    if not values:
        return None
    return round(math.exp(float(np.mean(np.log(values)))), 1) if min(values) > 0 else 0.0


def _verdict(ratio: float, low: float, high: float, words: tuple[str, str]) -> str:
    material = 1 + MATERIAL_PCT / 100
    if low > 1 and ratio >= material:
        return words[0]
    if high < 1 and ratio <= 1 / material:
        return words[1]
    return "no difference"
