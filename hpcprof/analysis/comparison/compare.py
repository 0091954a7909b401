"""Comparison of runs: what became slower, with the run as the replicate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.run_differences import describe_differences
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.gpu_time.breakdown import PARTS
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, RATIO_DIGITS, welch_interval

_OWN_STEP, _STEP, _SPAN, _OVERLAP = "own_step_p50_ns", "step_p50_ns", "span_ns", "overlap_pct"
_DECISIVE = (_OWN_STEP, _STEP)
"""The metrics that decide whether a run is slower; the other metrics explain why."""

REGRESSION = "regression"
NO_STATISTICS = "no statistics"
MATERIAL_PCT = 1
"""A change of less than this percentage does not count, however certain it is."""


def compare(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Compare metrics of ``runs`` (side b, the candidate) with those of ``against`` (side a, the baseline).

    ``a`` and ``b`` are geometric means over the runs (0 if a run has 0), in the unit of the metric's suffix;
    ``ratio`` is b over a. Each run counts as one value, however many steps and ranks it has. With two or more
    runs on both sides, the interval is Welch's t interval of the difference of the mean logarithms.

    The median steps decide, by the workload's own clock and in the profiles; without both, the GPU's span
    does. If two metrics decide, each has a 97.5 % interval, so that both together hold with 95 %
    (Bonferroni). A regression is a decisive metric whose interval lies above 1 and whose ratio is at least
    1.01. The other rows explain it, each with a 95 % interval of its own.
    """
    per_step = all(map(_has_steps, (*runs, *against)))
    a, b = ([_metrics(run, per_step) for run in side] for side in (against, runs))
    every = dict.fromkeys(name for run in (*a, *b) for name in run)
    sides = {name: tuple([run[name] for run in side if name in run] for side in (a, b)) for name in every}
    decisive = [name for name in _DECISIVE if name in sides and all(sides[name])] or [_SPAN]
    if not all(sides.get(decisive[0], ((), ()))):
        return no_rows("the sides have no time in common: neither steps nor GPU work")
    rows = [
        _row(name, of_a, of_b, len(decisive) if name in decisive else 0)
        for name, (of_a, of_b) in sides.items()
        if any(of_a) or any(of_b)
    ]
    said = describe_differences(against, runs)
    if not per_step and any(name == _SPAN for name in sides):
        said.append("not every profile has steps, so the GPU's times are those of whole profiles")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


def _row(name: str, a: list[float], b: list[float], decisive: int) -> dict[str, Any]:
    """Return the row of a metric; ``decisive`` is the number of decisive metrics if it is one, or 0."""
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
    words = ("higher", "lower") if name == _OVERLAP else ("slower", "faster")
    return row | {"verdict": _verdict(ratio, low, high, (REGRESSION, "improvement") if decisive else words)}


def _mean(values: list[float]) -> float | None:
    """Return the geometric mean, which is 0 if any value is 0; None without values."""
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


def _metrics(run: RunData, per_step: bool) -> dict[str, float]:
    """Return the known metrics of a run.

    ``own_step_p50_ns`` is the median step by the workload's own clock, ``step_p50_ns`` that of the profiles;
    the time of a step is that of its slowest rank. The others are means over ranks: the median of each phase,
    the GPU's span, its parts, the sum of all kernels, and the percentage of communication that is overlapped.
    With ``per_step``, the GPU's times are divided by the number of steps of the rank.
    """
    found: dict[str, float] = {}
    if run.own_p50_ns is not None:
        found[_OWN_STEP] = run.own_p50_ns
    tables = run.tables
    if len(tables["steps_summary"]):
        found[_STEP] = float(tables["steps_summary"]["p50_ns"].iloc[0])
    if len(tables["phases"]):
        for phase, values in tables["phases"].groupby("phase", sort=False)["p50_ns"]:
            found[f"phase {phase} p50_ns"] = float(values.mean())
    steps = tables["step_times"].groupby("rank").size() if per_step else 1
    suffix = "_per_step_ns" if per_step else "_ns"
    if len(tables["breakdown"]):
        whole = tables["breakdown"].set_index("rank")
        for part in ("span", *PARTS):
            found[f"{part}{suffix}"] = float((whole[f"{part}_ns"] / steps).mean())
    if len(tables["kernels"]):
        total = tables["kernels"].groupby("rank")["total_ns"].sum()
        found[f"kernels{suffix}"] = float((total / steps).mean())
    overlap = tables["overlap"]["overlap_pct"].dropna()
    if len(overlap):
        found[_OVERLAP] = float(overlap.astype(float).mean())
    return found


def _has_steps(run: RunData) -> bool:
    """Return whether every rank with GPU work has steps."""
    whole, steps = run.tables["breakdown"], run.tables["step_times"]
    return set(whole["rank"]) <= set(steps["rank"])
