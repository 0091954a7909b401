"""Scaling: the step time by the number of ranks, over runs of the same program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, RATIO_DIGITS, welch_interval
from hpcprof.workloads.catalogue import WORKLOADS

# Parameters that do not change how long a step takes.
_IRRELEVANT = ("steps", "warmup", "seed")


class _Kind(Enum):
    STRONG = "strong"
    WEAK = "weak"
    UNKNOWN = "strong or weak unknown"


@dataclass(frozen=True)
class _Series:
    """Runs that differ only in their ranks and, in a weak series, in the size of the whole problem."""

    kind: _Kind
    parameters: str
    runs: pd.DataFrame


def scaling(runs: Sequence[RunData]) -> Outcome:
    """Return the median step for each number of ranks, with speedup and efficiency.

    A series consists of runs of one workload at one site, on the same GPUs, with the same parameters and
    profiler. Scaling is strong if the size of the whole problem stays the same, and weak if the size per rank
    does. The workload declares which parameter is its size (`hpcprof.workloads.catalogue.Size`). There may be
    several series of both kinds; ``parameters`` begins with the kind. For a program that declares no size the
    kind is unknown: its speedup is that of a step, and it has no efficiency.

    ``step_p50_ns`` is the geometric mean over the runs of the median step, by the workload's own clock or, if
    there is none, in the profiles. The reference is the smallest number of ranks. ``speedup`` is the work per
    time over that of the reference. ``efficiency`` is the speedup over the ratio of ranks, with a 95 %
    interval (Welch's t on logarithms) if both have two or more runs.
    """
    timed = pd.DataFrame([row for run in runs if (row := _described(run))])
    rows = [row for series in _series(timed) for row in _rows(series)]
    if not rows:
        return no_rows(
            "scaling needs runs of one program at two or more rank counts; "
            f"runs with step times: {len(timed)} of {len(runs)}"
        )
    said = []
    if any(row["efficiency"] is None for row in rows):
        said.append("no efficiency where the workload does not declare its problem size")
    if any(row["runs"] < 2 for row in rows):
        said.append("no interval where a rank count, or the reference, has only one run")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


def _described(run: RunData) -> dict[str, Any] | None:
    """Return the values that assign a run to its series; None without steps or with unknown ranks.

    ``work`` is the size of the whole problem by the parameter named ``size``; NaN if it is unknown.
    """
    step, ranks = _step_ns(run), run.ranks
    if step is None or ranks is None:
        return None
    name = run.facts["workload"]
    workload = WORKLOADS.get(str(name))
    size = workload.size if workload else None
    value = run.parameters.get(size.parameter) if size else None
    others = {key: value for key, value in run.parameters.items() if key not in _IRRELEVANT}
    work = math.nan
    if size is not None and isinstance(value, (int, float)):
        del others[size.parameter]
        work = value * (ranks if size.per_rank else 1)
    where = {key: run.facts[key] for key in ("site", "GPU", "profiler")}
    if not run.parameters:
        where["arguments"] = run.facts["arguments"]
    return {
        "workload": name,
        "others": _text(others | where),
        "size": "" if size is None or math.isnan(work) else size.parameter,
        "work": work,
        "ranks": ranks,
        "nodes": run.facts["nodes"],
        "step_ns": step,
    }


def _step_ns(run: RunData) -> float | None:
    if run.own_p50_ns is not None:
        return run.own_p50_ns
    summary = run.tables["steps_summary"]
    return float(summary["p50_ns"].iloc[0]) if len(summary) else None


def _series(timed: pd.DataFrame) -> Iterator[_Series]:
    if timed.empty:
        return
    for _, alike in timed.groupby(["workload", "others", "size"], dropna=False):
        others, size = alike["others"].iloc[0], alike["size"].iloc[0]
        if not size:
            yield _Series(_Kind.UNKNOWN, others, alike)
            continue
        for whole, runs in alike.groupby("work"):
            yield _Series(_Kind.STRONG, f"{size}={_number(whole)} in all {others}", runs)
        for part, runs in alike.groupby(alike["work"] / alike["ranks"]):
            yield _Series(_Kind.WEAK, f"{size}={_number(part)} a rank {others}", runs)


def _text(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()) if value is not None)


def _number(value: Any) -> str:
    return f"{value:.10g}"


def _rows(series: _Series) -> list[dict[str, Any]]:
    """Return the rows of a series, the reference first; none if all runs have the same number of ranks."""
    if series.runs["ranks"].nunique() < 2:
        return []
    groups = [runs for _, runs in series.runs.groupby(["ranks", "nodes"], dropna=False)]
    return [_row(series, runs, groups[0]) for runs in groups]


def _row(series: _Series, runs: pd.DataFrame, reference: pd.DataFrame) -> dict[str, Any]:
    first, nodes = runs.iloc[0], runs["nodes"].iloc[0]
    logs, of_reference = (np.log(side["step_ns"].to_numpy(float)) for side in (runs, reference))
    faster = math.exp(of_reference.mean() - logs.mean())
    more = int(first["ranks"]) / int(reference["ranks"].iloc[0])
    work = more if series.kind is _Kind.WEAK else 1.0
    row: dict[str, Any] = {
        "workload": first["workload"],
        "parameters": f"{series.kind.value}: {series.parameters}",
        "ranks": int(first["ranks"]),
        "nodes": None if pd.isna(nodes) else int(nodes),
        "runs": len(runs),
        "step_p50_ns": round(math.exp(logs.mean())),
        "speedup": round(faster * work, RATIO_DIGITS),
        "efficiency": None,
        "ci_low": None,
        "ci_high": None,
    }
    if series.kind is not _Kind.UNKNOWN:
        row["efficiency"] = round(faster * work / more, RATIO_DIGITS)
        if runs is not reference and min(len(logs), len(of_reference)) > 1:
            low, high = map(math.exp, welch_interval(of_reference, logs, CONFIDENCE))
            row["ci_low"], row["ci_high"] = (round(end * work / more, RATIO_DIGITS) for end in (low, high))
    return row
