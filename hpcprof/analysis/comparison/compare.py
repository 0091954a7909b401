"""Comparison of runs: what became slower, with the run as the replicate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.kernel_difference import begun_steps
from hpcprof.analysis.comparison.run_differences import describe_differences
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.gpu_time.breakdown import PARTS
from hpcprof.analysis.statistics.confidence_intervals import (
    CONFIDENCE,
    RATIO_DIGITS,
    correlation_factor,
    error_of_difference,
)
from hpcprof.analysis.steps.run_step import account_of_all_steps, step_series
from hpcprof.analysis.steps.step_set import COUNTED, StepRule, step_set
from hpcprof.common.units import counted
from hpcprof.profiles.timeline import Floats
from hpcprof.runs.step_time import step_time

ELAPSED, OWN_ELAPSED = "elapsed_per_step_ns", "own_elapsed_per_step_ns"
STEP, OWN_STEP, _SPAN = "step_p50_ns", "own_step_p50_ns", "span_ns"
_PER_LAUNCH = "kernels_per_launch_ns"
_MEDIANS = {ELAPSED: STEP, OWN_ELAPSED: OWN_STEP}
_FILES = "time_in_files_ns"
_TIMES = (ELAPSED, OWN_ELAPSED, STEP, OWN_STEP, _SPAN, _PER_LAUNCH, _FILES)
"""The metrics that may decide, in order of preference."""

_MIN_RATIO_DIFFERENCE = 0.02
"""Minimum difference between the ratios of elapsed time and of medians for a sentence."""

_MAX_COUNT_RATIO = 1.02
"""Maximum ratio of the kernel counts of two captures of equal length."""

GATES = {
    "energy": ("energy_per_step_j",),
    "memory": ("memory_peak_bytes", "gpu_memory_peak_bytes"),
    "io": ("read_per_step_bytes", "written_per_step_bytes", "waiting_for_files_pct"),
}
"""The metrics that may decide beside the step, by the name of their gate."""

_CLOCKS = ("gpu_clock_mhz", "core_clock_mhz")
_MIN_CLOCK_DIFFERENCE = 0.03
"""Minimum relative difference of the mean clocks for a sentence."""

NOT_MEASURED = "no run has "
"""The beginning of the remark about a gate without figures."""

CLOCKS_DIFFER = ("the GPUs ran at", "the cores ran at")
"""The beginnings of the sentence about different clocks, which comes before all others."""
_OVERLAP = "overlap_pct"

REGRESSION, IMPROVEMENT = "regression", "improvement"
EQUIVALENT, INCONCLUSIVE = "equivalent", "inconclusive"
NO_STATISTICS = "no statistics"
MATERIAL_PCT = 1.0
"""Minimum change of a regression, in percent."""

_MIN_EARLIER = 3
"""Minimum number of earlier runs that count."""

_MAX_DETECTABLE_RATIO = 2.0
"""Maximum detectable ratio that a sentence gives as a figure."""


def compare(
    runs: Sequence[RunData],
    against: Sequence[RunData],
    earlier: Sequence[RunData] = (),
    margin_pct: float = MATERIAL_PCT,
    gates: Sequence[str] = (),
) -> Outcome:
    """Compare metrics of ``runs`` (side b, the candidate) with those of ``against`` (side a, the baseline).

    ``a`` and ``b`` are geometric means over the runs (0 if a run has 0), in the unit of the metric's suffix;
    ``ratio`` is b over a. Each run counts as one value, however many steps and ranks it has. With two or more
    runs on both sides, there is a 95 % interval from Student's t on logarithms.

    One metric decides, and its row is the first: the elapsed time per step in the profiles, without that the
    one by the workload's own clock, without both the GPU's span or, if captures without steps have different
    numbers of kernels, the mean time of a kernel, and of logs of Darshan alone the time of all ranks in
    files. Single long steps (`hpcprof.runs.step_time`) do not count.
    The median step is beside it, and a sentence says where both disagree, as in runs with rare long steps. A
    ``regression`` has an interval above 1 and a ratio of at least 1.01, an ``improvement`` is the opposite.
    Otherwise the sides are ``equivalent`` if the interval is within the margin, and the comparison is
    ``inconclusive`` if not. The other rows explain.

    ``earlier`` are runs of the baseline before it, oldest first. If the runs of both sides took turns, these
    count as pairs, and earlier runs only give the noise. Otherwise earlier runs become part of the baseline
    in the metric that decides, if they are like it and do not drift. ``margin_pct`` is the margin of
    equivalence. The metrics of ``gates`` (see `GATES`) decide too: they follow the first row, and are judged
    like it.
    """
    per_step = all(map(has_steps, (*runs, *against)))
    per_launch = not per_step and not _equally_long((*runs, *against))
    a, b = ([run_metrics(run, per_step, per_launch) for run in side] for side in (against, runs))
    metrics = dict.fromkeys(name for run in (*a, *b) for name in run)
    sides = {name: _Sides(*([run.get(name) for run in side] for side in (a, b))) for name in metrics}
    deciding = _deciding_metric(sides)
    if deciding is None:
        return no_rows("the sides have no time in common: neither steps nor GPU work")
    frequencies = {name: sides[name].known() for name in _CLOCKS if name in sides}
    clocks = other_clocks(frequencies, "in b", "in a")
    notes = [*filter(None, [clocks]), *describe_differences(against, runs)]
    gated = [name for gate in gates for name in GATES[gate] if name in sides]
    rows, deciders = [], dict.fromkeys((deciding, *gated))
    for name in deciders:
        widened, decided, how = _estimate_decider(name, sides[name], against, runs, earlier)
        rows.append(_row(name, widened, decided, True, margin_pct))
        if how:
            notes.append(how)
        if rows[-1]["verdict"] in (EQUIVALENT, INCONCLUSIVE) and decided is not None:
            notes.append(_detectable(decided, name))
    rows += [
        _row(name, side, side.estimate(), False, margin_pct)
        for name, side in sides.items()
        if name not in deciders and (any(side.a) or any(side.b))
    ]
    notes += [f"{NOT_MEASURED}{gate} of its steps" for gate in gates if not set(GATES[gate]) & set(sides)]
    notes += _rare_step_notes(rows)
    if per_launch:
        notes.append(
            "the profiles have no common step, and the captures have different numbers of kernels: times are "
            "per kernel, and whether the program takes longer is unknown"
        )
    elif not per_step and any(name == _SPAN for name in sides):
        notes.append("the profiles have no common step, so the GPU's times are those of whole profiles")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(notes))


def _rare_step_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence if the elapsed time per step and the median step change by different ratios."""
    ratios = {row["metric"]: row["ratio"] for row in rows if row["ratio"]}
    decisive = rows[0]["metric"]
    elapsed, median = ratios.get(decisive), ratios.get(_MEDIANS.get(decisive, ""))
    if elapsed is None or median is None or abs(elapsed - median) < _MIN_RATIO_DIFFERENCE:
        return []
    weight = "more" if elapsed > median else "less"
    return [
        f"the elapsed time per step changes by {100 * (elapsed - 1):+.1f} % and the median step by "
        f"{100 * (median - 1):+.1f} %: long steps or time between steps weigh {weight} in B"
    ]


class _Sides(msgspec.Struct, frozen=True):
    """A metric of the runs of both sides, in their order; None where a run does not have it."""

    a: Sequence[float | None]
    b: Sequence[float | None]

    def known(self) -> tuple[list[float], list[float]]:
        """Return the known values of both sides."""
        return [x for x in self.a if x is not None], [x for x in self.b if x is not None]

    def logs(self) -> tuple[Floats, Floats] | None:
        """Return the logarithms; None with fewer than two runs on a side, or a value that is 0."""
        a, b = self.known()
        if min(len(a), len(b)) < 2 or not all((*a, *b)):
            return None
        return np.log(a), np.log(b)

    def estimate(self) -> Estimate | None:
        """Return the estimate from independent runs; None as `logs`."""
        logs = self.logs()
        return None if logs is None else independent(*logs)


def other_clocks(clocks: Mapping[str, tuple[Sequence[float], Sequence[float]]], now: str, before: str) -> str:
    """Return a sentence if the clocks of some runs differ from those before by 3 %; empty otherwise.

    Such a difference comes before all other reasons. ``clocks`` has the clocks before and now, by metric.
    """
    for name, ran in zip(_CLOCKS, CLOCKS_DIFFER, strict=True):
        a, b = clocks.get(name, ((), ()))
        if a and b and abs(np.mean(b) / np.mean(a) - 1) >= _MIN_CLOCK_DIFFERENCE:
            return f"{ran} {np.mean(b):,.0f} MHz {now} and at {np.mean(a):,.0f} MHz {before}"
    return ""


def _deciding_metric(sides: Mapping[str, _Sides]) -> str | None:
    """Return the metric that decides: one that every run has, or else one that both sides have."""
    names = [name for name in _TIMES if name in sides and all(sides[name].known())]
    complete = [name for name in names if None not in (*sides[name].a, *sides[name].b)]
    return next(iter(complete or names), None)


def _estimate_decider(
    name: str, sides: _Sides, against: Sequence[RunData], runs: Sequence[RunData], earlier: Sequence[RunData]
) -> tuple[_Sides, Estimate | None, str]:
    """Return the values and the estimate of the metric that decides, and a sentence on the use of the runs.

    The first rule that applies counts:

    1. Runs that took turns are pairs; earlier runs only give the noise.
    2. In blocked runs with known times, earlier runs that continue into the baseline with a steady drift are
       part of it, without the drift.
    3. In blocked runs that drift within each side, the estimate is without the common slope.
    4. Earlier runs like the baseline, without a drift, are part of it.
    5. Otherwise earlier runs are left out.
    """
    logs = sides.logs()
    if logs is None:
        return sides, None, ""
    a, b = logs
    earlier_values = [
        (run, x) for run in earlier if (x := {**step_metrics(run), **_machine_metrics(run.tables)}.get(name))
    ]
    before = np.log([x for _, x in earlier_values])
    enough = len(before) >= _MIN_EARLIER
    submitted = [run.submitted for run in against], [run.submitted for run in runs]
    if (pairs := turns(*submitted)) and None not in (*sides.a, *sides.b):
        pos_a, pos_b = (np.array(places_of_side) for places_of_side in zip(*pairs, strict=True))
        notes = [f"the runs took turns, so they are {len(pairs)} pairs"]
        if enough:
            notes.append(f"{len(before)} earlier runs of the baseline tell only the noise")
        estimate = paired_estimate(a[pos_a], b[pos_b], noise_of(before) if enough else None)
        return sides, estimate, "; ".join([*notes, *_order_notes(order(*submitted))])
    time_order = order(*submitted)
    notes = _order_notes(time_order)
    measured = [*(run for run, _ in earlier_values), *against, *runs]
    times = [run.submitted.timestamp() for run in measured if run.submitted]
    if time_order is Order.BLOCKED and len(times) == len(before) + len(a) + len(b):
        places = np.argsort(np.argsort(times)).astype(np.float64)
        pos_before, pos_a, pos_b = np.split(places, np.cumsum([len(before), len(a)]))
        if enough and continues(before, pos_before, a, pos_a):
            level, estimate = extrapolate_drift(
                np.concatenate([before, a]), np.concatenate([pos_before, pos_a]), b, float(np.mean(pos_b))
            )
            drift = (
                f"{len(before)} earlier runs of the baseline are part of it in {name}, without the steady "
                "drift that they and the baseline show"
            )
            return _Sides(np.exp(level).tolist(), sides.b), estimate, drift
        blocks = [(a, pos_a), (b, pos_b)]
        if enough:
            blocks.insert(0, (before, pos_before))
        steady = with_common_slope(blocks)
        if steady is not None:
            drift = f"runs of one side drift in {name}, and the estimate is without this drift"
            return sides, steady, "; ".join([drift, *notes])
    if enough and alike(a, before) and not drifts(np.concatenate([before, a])):
        notes.insert(0, f"{len(before)} earlier runs of the baseline are part of it in {name}")
        widened = _Sides([*np.exp(before).tolist(), *sides.a], sides.b)
        return widened, independent(np.concatenate([before, a]), b), "; ".join(notes)
    if enough:
        notes.insert(
            0, f"{len(before)} earlier runs differ from the baseline in {name}, or drift, and are left out"
        )
    return sides, independent(a, b), "; ".join(notes)


def _order_notes(submission_order: Order) -> list[str]:
    """Return a sentence on the effect of a drift of the machine on runs in this order."""
    if submission_order is Order.BLOCKED:
        return [
            "all runs of one side were submitted before the other's, so a drift of the machine looks like a "
            "change, and the interval assumes that there is none: submit them in the order A B B A"
        ]
    if submission_order is Order.ONE_FIRST:
        return ["one side was the first of each pair, so a drift of the machine counts: A B B A cancels it"]
    return []


def _detectable(estimate: Estimate, name: str) -> str:
    ratio = max(estimate.detectable_ratio(), 1 + MATERIAL_PCT / 100)
    if not ratio <= _MAX_DETECTABLE_RATIO:
        if name not in _TIMES:
            return f"with so few and so different runs, only twice as much {name} would be noticed"
        return "with so few and so different runs, only a step more than twice as long would be noticed"
    change, power = 100 * (ratio - 1), 100 * POWER
    metric = "" if name in _TIMES else f" of {name}"
    return f"in runs like these, a change{metric} of {change:.1f} % is noticed {power:.0f} % of the time"


def _row(
    name: str, sides: _Sides, estimate: Estimate | None, decisive: bool, margin_pct: float
) -> dict[str, Any]:
    a, b = sides.known()
    row: dict[str, Any] = {"metric": name, "a": _mean(a), "b": _mean(b)}
    row |= dict.fromkeys(("ratio", "ci_low", "ci_high")) | {"n_a": len(a), "n_b": len(b)}
    if not a or not b:
        return row | {"verdict": f"only in {'a' if a else 'b'}"}
    if not row["a"] or not row["b"]:
        return row | {"verdict": "zero: no ratio"}
    if estimate is None:
        ratio = math.exp(float(np.mean(np.log(b)) - np.mean(np.log(a))))
        few = "one run each" if len(a) == len(b) else "one run on a side"
        return row | {"ratio": round(ratio, RATIO_DIGITS), "verdict": f"{few}: {NO_STATISTICS}"}
    low, high = estimate.interval()
    row |= {"ratio": estimate.ratio, "ci_low": low, "ci_high": high}
    row |= {key: round(row[key], RATIO_DIGITS) for key in ("ratio", "ci_low", "ci_high")}
    explaining = ("slower", "faster") if name.endswith("_ns") else ("higher", "lower")
    words = (REGRESSION, IMPROVEMENT) if decisive else explaining
    return row | {"verdict": _verdict(estimate.ratio, low, high, words, margin_pct / 100)}


def _mean(values: list[float]) -> float | None:
    if not values:
        return None
    return round(math.exp(float(np.mean(np.log(values)))), 1) if min(values) > 0 else 0.0


def _verdict(ratio: float, low: float, high: float, words: tuple[str, str], margin: float) -> str:
    material = 1 + MATERIAL_PCT / 100
    if low > 1 and ratio >= material:
        return words[0]
    if high < 1 and ratio <= 1 / material:
        return words[1]
    return EQUIVALENT if 1 - margin <= low and high <= 1 + margin else INCONCLUSIVE


def step_metrics(run: RunData) -> dict[str, float]:
    """Return the elapsed time per step and the median step of a run, as far as known, in ns.

    The workload's own clock and the profiles each have both.
    """
    metrics = {}
    summary, times, kinds = (run.tables[name] for name in STEP_TABLES)
    if len(summary):
        metrics[STEP] = float(summary["p50_ns"].iloc[0])
    elapsed = account_of_all_steps(kinds)["elapsed_ns"] if len(kinds) else 0.0
    if elapsed:
        metrics[ELAPSED] = elapsed
    elif profiled := step_time(step_series(times).wall.tolist()):
        metrics[ELAPSED] = profiled.elapsed_ns
    if undisturbed := step_time(run.own_step_ns.tolist()):
        metrics |= {OWN_ELAPSED: undisturbed.elapsed_ns, OWN_STEP: undisturbed.p50_ns}
    return metrics


def steps_behind(run: RunData, metric: str) -> str:
    """Return the steps behind a time of a step, such as ``19 of 20 profiled steps``; else empty."""
    if metric == OWN_STEP:
        return f"{counted(len(run.own_step_ns), 'step')} of the program"
    if metric == OWN_ELAPSED and (noted := step_time(run.own_step_ns.tolist())):
        return noted.words
    kinds = run.tables["step_kinds"]
    if metric not in (ELAPSED, STEP) or not len(kinds):
        return ""
    row = kinds[["steps", "counted_steps", "once_steps"]].iloc[0].dropna()
    rules = frozenset({StepRule.COMMON}) if metric == STEP else COUNTED
    steps = step_set({str(name): int(number) for name, number in row.items()}, rules)
    return steps.short.replace("step", "profiled step")


def steps_compared(run: RunData, metric: str) -> str:
    """Return the steps behind a metric, and the steps behind its median if they differ."""
    behind, steps_of_median = (steps_behind(run, name) for name in (metric, _MEDIANS.get(metric, metric)))
    return behind if steps_of_median in ("", behind) else f"{behind}; median of {steps_of_median}"


STEP_TABLES = ("steps_summary", "step_times", "step_kinds")
"""The analyses that the times of a step are read from."""


def _machine_metrics(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return energy, peaks of memory, data and clocks of a run whose nodes were sampled."""
    metrics: dict[str, float] = {}
    if not len(tables["telemetry"]):
        return metrics
    energy, io = tables["energy"], tables["io"]
    node_energy = energy[energy["gpu"].isna() & energy["joule_per_step"].notna()]
    if len(node_energy):
        metrics["energy_per_step_j"] = float(node_energy["joule_per_step"].iloc[0])
    samples = tables["telemetry"]
    for kind, metric, device in (("memory", "resident", "rank"), ("gpu_memory", "used", "gpu")):
        rows = samples[(samples["metric"] == metric) & samples["device"].str.startswith(device)]
        if len(rows):
            # The fullest rank or GPU decides.
            metrics[f"{kind}_peak_bytes"] = float(rows["max"].astype(float).max())
    steps = io[io["first_step"].notna()]
    if len(steps):
        sampled = (steps["last_step"] - steps["first_step"] + 1).astype(float)
        count = sampled.groupby(steps["rank"]).sum().max()
        for kind in ("read", "written"):
            moved = steps[f"{kind}_bytes"].astype(float)
            if moved.notna().any():
                metrics[f"{kind}_per_step_bytes"] = float(moved.sum() / count)
    waiting = samples[(samples["metric"] == "blocked") & (samples["phase"] == "step")]
    if len(waiting):
        weights = waiting["samples"].astype(float)
        metrics["waiting_for_files_pct"] = float(np.average(waiting["mean"].astype(float), weights=weights))
    return metrics | clocks_of(tables)


def clocks_of(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return the mean clock of GPUs and cores in the steps of a run, as far as they were sampled."""
    means, clocks, samples = {}, tables["clocks"], tables["telemetry"]
    cores = samples[(samples["metric"] == "frequency") & samples["phase"].isin(("step", "run"))]
    gpu_clocks = clocks[clocks["first_step"].notna()] if clocks["first_step"].notna().any() else clocks
    for name, rows, column in zip(_CLOCKS, (gpu_clocks, cores), ("sm_mhz_mean", "mean"), strict=True):
        if len(rows):
            means[name] = float(np.average(rows[column].astype(float), weights=rows["samples"].astype(float)))
    return means


def _equally_long(runs: Sequence[RunData]) -> bool:
    """Return whether the captures of runs with kernels have about the same number of them on each rank."""
    tables = [run.tables["kernels"] for run in runs if len(run.tables["kernels"])]
    counts = [float(table.groupby("rank")["instances"].sum().mean()) for table in tables]
    return not counts or max(counts) <= _MAX_COUNT_RATIO * min(counts)


def run_metrics(run: RunData, per_step: bool, per_launch: bool = False) -> dict[str, float]:
    """Return the known metrics of a run.

    ``elapsed_per_step_ns`` is the elapsed time per step in the profiles and ``step_p50_ns`` their median
    step, ``own_elapsed_per_step_ns`` and ``own_step_p50_ns`` the same by the workload's own clock; a step
    takes as long as on its slowest rank. The others are means over ranks: the median of each phase,
    the sum of all kernels, and the percentage of communication that is overlapped. MPI programs add the
    efficiencies of the step, else of the run; sampled nodes add energy, memory, data and clocks. With
    ``per_step``, the elapsed time of a step and its parts come from ``step_kinds``, and the kernels are
    divided by the number of steps of the rank. With ``per_launch``, the only time of the GPU is the mean of
    a kernel. Otherwise the GPU's span and its parts come from ``breakdown``.
    """
    result, tables = step_metrics(run), run.tables
    if len(tables["phases"]):
        for phase, values in tables["phases"].groupby("phase", sort=False)["p50_ns"]:
            result[f"phase {phase} p50_ns"] = float(values.mean())
    return (
        result
        | _efficiencies(tables["pop"])
        | _gpu_times(tables, per_step, per_launch)
        | _machine_metrics(tables)
        | _file_metrics(tables["darshan_files"])
    )


def _file_metrics(files: pd.DataFrame) -> dict[str, float]:
    """Return what Darshan recorded, summed over ranks and files: data by module, and the longest time of one.

    MPI-IO calls POSIX, so that times of modules do not add up.
    """
    if not len(files):
        return {}
    times = ["read_s", "write_s", "meta_s"]
    sums = files.groupby("module")[["read_bytes", "written_bytes", *times]].sum().astype(float)
    moved = {
        f"{module.lower()}_{kind}_bytes": float(sums.loc[module, f"{kind}_bytes"])
        for module in sums.index
        for kind in ("read", "written")
    }
    return {_FILES: 1e9 * float(sums[times].sum(axis=1).max()), **moved}


def _efficiencies(pop: pd.DataFrame) -> dict[str, float]:
    """Return POP's factors of the step, else of the run, in percent; none without MPI."""
    if not len(pop):
        return {}
    row = pop.iloc[(pop["scope"] == "step").argmax()]
    return {str(name): float(x) for name, x in row.items() if str(name).endswith("_pct") and pd.notna(x)}


def _gpu_times(tables: Mapping[str, pd.DataFrame], per_step: bool, per_launch: bool) -> dict[str, float]:
    times: dict[str, float] = {}
    if not len(tables["breakdown"]) and not len(tables["kernels"]):
        return times
    if per_launch:
        if len(kernels := tables["kernels"]):
            times[_PER_LAUNCH] = float(kernels["total_ns"].sum() / kernels["instances"].sum())
        return times
    steps = begun_steps(tables) if per_step else 1
    suffix = "_per_step_ns" if per_step else "_ns"
    if per_step and len(tables["step_kinds"]):
        for name, time in account_of_all_steps(tables["step_kinds"]).items():
            if name != "elapsed_ns":
                times[f"{name.removesuffix('_ns')}{suffix}"] = time
    elif len(tables["breakdown"]):
        breakdown = tables["breakdown"].set_index("rank")
        for part in ("span", *PARTS):
            times[f"{part}{suffix}"] = float((breakdown[f"{part}_ns"] / steps).mean())
    if len(tables["kernels"]):
        total = tables["kernels"].groupby("rank")["total_ns"].sum()
        times[f"kernels{suffix}"] = float((total / steps).mean())
    overlap = tables["overlap"]["overlap_pct"].dropna()
    if len(overlap):
        times[_OVERLAP] = float(overlap.astype(float).mean())
    return times


def has_steps(run: RunData) -> bool:
    """Return whether every rank with GPU work has steps."""
    breakdown, steps = run.tables["breakdown"], run.tables["step_times"]
    return not len(breakdown) or set(breakdown["rank"]) <= set(steps["rank"])


POWER = 0.8
"""Share of comparisons in which a detectable change is found (statistical power)."""

_DIFFERENCE_LEVEL = 0.01
"""Significance level of a test that two samples have different distributions."""

_MIN_FOR_SLOPE = 6
"""Minimum number of degrees of freedom for the test of a slope."""

_TREND_LEVEL = 0.1
"""Significance level of a test that a series has a trend."""

_LARGEST_LOG = 700.0
"""Maximum logarithm whose exponential does not overflow."""


@dataclass(frozen=True)
class Estimate:
    """A difference of means that follows Student's t; the means are those of logarithms."""

    difference: float
    error: float
    """The difference, and its standard error."""
    freedom: float
    """The degrees of freedom of the standard error."""

    @property
    def ratio(self) -> float:
        """The ratio of the geometric means."""
        return _ratio(self.difference)

    def interval(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the ratio."""
        half = self._quantile() * self.error
        return _ratio(self.difference - half), _ratio(self.difference + half)

    def detectable_ratio(self) -> float:
        """Return the ratio whose interval lies above 1 in 80 % of comparisons with as much noise."""
        # Only commands that compare runs need scipy, and its import takes longer than most commands.
        from scipy.special import nctdtrinc

        # A noncentral t exceeds the quantile with that probability.
        away = float(nctdtrinc(self.freedom, 1 - POWER, self._quantile()))
        return _ratio(away * self.error)

    def _quantile(self) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2))


def _ratio(logarithm: float) -> float:
    return math.exp(max(-_LARGEST_LOG, min(logarithm, _LARGEST_LOG)))


def independent(a: Floats, b: Floats) -> Estimate:
    """Return the estimate of ``mean(b) - mean(a)`` from independent values, at least two a side.

    With equal numbers of values the variance is pooled (Student's t): few values say little about two
    variances, and a difference between these does no harm. Otherwise each side has its own (Welch's t), and
    the side with fewer values is shrunk towards the other's (`_shrunken_variance`).
    """
    n, m = len(a), len(b)
    difference = float(np.mean(b) - np.mean(a))
    variance_a, variance_b = float(np.var(a, ddof=1)), float(np.var(b, ddof=1))
    if n == m:
        return Estimate(difference, math.sqrt((variance_a + variance_b) / n), float(2 * n - 2))
    many, few = ((variance_a, n), (variance_b, m)) if n > m else ((variance_b, m), (variance_a, n))
    return _welch_estimate(difference, (many[0], 1 / many[1], many[1] - 1), few)


def extrapolate_drift(
    values: Floats, places: Floats, other_values: Floats, place: float
) -> tuple[Floats, Estimate]:
    """Return a series without its steady drift, and the estimate of ``mean(others)`` less its level.

    The series then has the level that it would have at ``place``. ``values`` and ``places`` are at least
    three values and their places in time, both of shape (n,); ``other_values`` are at least two values, whose
    mean place is ``place``.
    """
    apart = places - np.mean(places)
    level = values + _Line.of([(values, places)]).slope * (place - places)
    noise = float(np.sum((level - np.mean(level)) ** 2)) / (len(values) - 2)
    leverage = 1 / len(values) + float((place - np.mean(places)) ** 2 / (apart @ apart))
    few = float(np.var(other_values, ddof=1)), len(other_values)
    estimate = _welch_estimate(
        float(np.mean(other_values) - np.mean(level)), (noise, leverage, len(values) - 2), few
    )
    # Correlated runs hold less information than independent runs.
    wider = correlation_factor(level - np.mean(level))
    return level, replace(estimate, error=estimate.error * wider)


def _welch_estimate(difference: float, many: tuple[float, float, float], few: tuple[float, int]) -> Estimate:
    """Return the estimate of a difference whose sides have a noise of their own (Welch's t).

    ``many`` has the variance of a value, the share of it that the mean has (leverage), and its degrees of
    freedom; ``few`` has the variance and the number of values.
    """
    variance, freedom = _shrunken_variance(*few, many[0])
    error = error_of_difference((variance / few[1], freedom), (many[0] * many[1], many[2]))
    return Estimate(difference, *error)


def paired_estimate(a: Floats, b: Floats, noise: float | None = None) -> Estimate:
    """Return the estimate of the mean of ``b - a`` from at least two pairs of values.

    ``noise`` is the standard deviation of such values as far as it is known from others.
    """
    change = b - a
    count = len(change)
    variance, freedom = float(np.var(change, ddof=1)), float(count - 1)
    if noise is not None:
        variance, freedom = _shrunken_variance(variance, count, 2 * noise**2)
    return Estimate(float(np.mean(change)), math.sqrt(variance / count), freedom)


def _shrunken_variance(variance: float, count: int, usual: float) -> tuple[float, float]:
    """Return the variance of a few values, pooled with the usual variance, and its degrees of freedom.

    The usual variance counts as one more value, but never makes the variance smaller: the values may vary
    more than usual, and few of them would not show it.
    """
    return max(variance, (usual + (count - 1) * variance) / count), float(count)


def noise_of(values: Floats) -> float:
    """Return the standard deviation of a series from its neighbouring values, so that a drift adds little."""
    return math.sqrt(float(np.mean(np.diff(values) ** 2)) / 2)


def drifts(values: Floats) -> bool:
    """Return whether a series of at least three values may have a trend (t test of the slope)."""
    return _Line.of([(values, np.arange(len(values), dtype=np.float64))]).rises()


def alike(a: Floats, b: Floats) -> bool:
    """Return whether two samples may be of one distribution: their variances (F test) and means (t test)."""
    return _variances_alike(a, b) and _is_insignificant(independent(a, b))


def continues(before: Floats, places: Floats, values: Floats, value_places: Floats) -> bool:
    """Return whether values may continue a series with a steady drift; both have their places in time."""
    place = float(np.mean(value_places))
    level, estimate = extrapolate_drift(before, places, values, place)
    # The same drift is within the values.
    apart = values - _Line.of([(before, places)]).slope * (value_places - place)
    return _variances_alike(apart, level) and _is_insignificant(estimate)


def with_common_slope(blocks: Sequence[tuple[Floats, Floats]]) -> Estimate | None:
    """Return the difference of the levels of the last two blocks, if all drift (analysis of covariance).

    Each of ``blocks`` has values, at least two in all blocks but one, and their places in time, both of shape
    (n,). The result is the level of the last block minus the level of the block before it, at the same place;
    None if the slope within the blocks is insignificant, or there are too few values.
    """
    if sum(len(values) for values, _ in blocks) - len(blocks) - 1 < _MIN_FOR_SLOPE:
        return None
    line = _Line.of(blocks)
    if not line.rises(line.wider):
        return None
    (a, places_a), (b, places_b) = blocks[-2:]
    apart = float(np.mean(places_b) - np.mean(places_a))
    leverage = 1 / len(a) + 1 / len(b) + apart**2 / line.inside
    difference = float(np.mean(b) - np.mean(a)) - line.slope * apart
    return Estimate(difference, line.wider * math.sqrt(line.noise * leverage), float(line.freedom))


class _Line(msgspec.Struct, frozen=True):
    """The slope that blocks with levels of their own have in common, by least squares."""

    slope: float
    inside: float
    """The sum of the squared distances of the places from their mean in the block."""
    noise: float
    """The variance of a value around the line."""
    wider: float
    """Factor by which the correlation of consecutive runs widens the interval."""
    freedom: int

    @classmethod
    def of(cls, blocks: Sequence[tuple[Floats, Floats]]) -> _Line:
        """Fit the slope of blocks of values and their places."""
        apart = [(values, places - np.mean(places)) for values, places in blocks]
        inside = sum(float(x @ x) for _, x in apart)
        slope = sum(float(x @ values) for values, x in apart) / inside
        residuals = np.concatenate([values - np.mean(values) - slope * x for values, x in apart])
        freedom = len(residuals) - len(blocks) - 1
        return cls(
            slope, inside, float(residuals @ residuals) / freedom, correlation_factor(residuals), freedom
        )

    def rises(self, wider: float = 1.0) -> bool:
        """Return whether there may be a slope (Student's t), with its standard error times ``wider``."""
        return _differs(self.slope, wider * math.sqrt(self.noise / self.inside), self.freedom, _TREND_LEVEL)


def _differs(value: float, error: float, freedom: float, level: float) -> bool:
    """Return whether a value with this standard error differs from 0 (two-sided t test)."""
    from scipy.special import stdtr

    return bool(2 * stdtr(freedom, -abs(value) / error) < level) if error else value != 0


def _is_insignificant(estimate: Estimate) -> bool:
    return not _differs(estimate.difference, estimate.error, estimate.freedom, _DIFFERENCE_LEVEL)


def _variances_alike(a: Floats, b: Floats) -> bool:
    from scipy.special import fdtr

    variance_a, variance_b = float(np.var(a, ddof=1)), float(np.var(b, ddof=1))
    if not variance_a or not variance_b:
        return variance_a == variance_b
    below = float(fdtr(len(a) - 1, len(b) - 1, variance_a / variance_b))
    return 2 * min(below, 1 - below) >= _DIFFERENCE_LEVEL


class Order(Enum):
    """The order in which the replicates of two sides were taken, by its sensitivity to drift."""

    BALANCED = "balanced"
    ONE_FIRST = "one side is the first of each pair"
    BLOCKED = "one side is before the other"
    OTHER = "other, or unknown"


def order(a: Sequence[datetime | None], b: Sequence[datetime | None]) -> Order:
    """Return the order of the replicates; see `Order`."""
    if pairs := turns(a, b):
        first = [bool((x := a[i]) and (y := b[j]) and x < y) for i, j in pairs]
        return Order.ONE_FIRST if all(first) or not any(first) else Order.BALANCED
    known_a, known_b = ([when for when in side if when] for side in (a, b))
    if len(known_a) < len(a) or len(known_b) < len(b) or not known_a or not known_b:
        return Order.OTHER
    apart = max(known_a) < min(known_b) or max(known_b) < min(known_a)
    return Order.BLOCKED if apart else Order.OTHER


def turns(a: Sequence[datetime | None], b: Sequence[datetime | None]) -> list[tuple[int, int]]:
    """Return the pairs of replicates that took turns, as indices into ``a`` and ``b``.

    In the order of time, the first two are one of each side, the next two as well, and so on. There are no
    pairs if that is not so, or if times are unknown or equal.
    """
    dates = [(when, side, i) for side, times in enumerate((a, b)) for i, when in enumerate(times) if when]
    if len(a) != len(b) or len(dates) != len(a) + len(b) or len({when for when, _, _ in dates}) < len(dates):
        return []
    ordered = sorted(dates)
    # Within a pair, side a comes first.
    pairs = [sorted(ordered[i : i + 2], key=lambda run: run[1]) for i in range(0, len(ordered), 2)]
    if any((first[1], second[1]) != (0, 1) for first, second in pairs):
        return []
    return [(first[2], second[2]) for first, second in pairs]
