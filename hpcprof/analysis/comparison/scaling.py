"""Scaling: the step time by the number of ranks, over runs of the same program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.scaling_series import (
    ScalingKind,
    ScalingSetup,
    Series,
    find_series,
    relevant,
)
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, RATIO_DIGITS, welch_interval
from hpcprof.workloads.catalogue import WORKLOADS

_WHERE = ("site", "GPU", "profiler")
"""The facts that the runs of a series have in common, beside the program."""
_NAMED = 3
"""So many runs of unknown programs are named."""


@dataclass(frozen=True)
class _Timed:
    """A run with its median step in ns; ``where`` holds the facts named `_WHERE` that are known."""

    program: str
    workload: str | None
    where: Mapping[str, str]
    setup: ScalingSetup
    step_ns: float


def scaling(runs: Sequence[RunData]) -> Outcome:
    """Return the median step for each number of ranks, with speedup and efficiency.

    A series consists of runs of one program at one site, on the same GPUs, with the same profiler and the
    same parameters but for those that scale with the ranks
    (`hpcprof.analysis.comparison.scaling_series.find_series`). The parameters are those that the workload
    recorded, else the options on the command line. ``kind`` is ``strong`` if the size of the whole problem
    stays the same, ``weak`` if the size per rank does, and ``unknown`` if the parameters do not tell: then
    speedup is that of a step, and there is no efficiency. Runs of unknown programs are left out.

    ``step_p50_ns`` is the geometric mean over the runs of the median step, by the workload's own clock or, if
    there is none, in the profiles. The reference is the smallest number of ranks. ``speedup`` is the work per
    time over that of the reference. ``efficiency`` is the speedup over the ratio of ranks, with a 95 %
    interval (Welch's t on logarithms) if both have two or more runs.
    """
    measured = [(run, step) for run in runs if (step := _step_ns(run)) is not None and run.ranks is not None]
    timed = [one for run, step in measured if (one := _timed(run, step)) is not None]
    rows = [row for group in _groups(timed) for row in _rows_of_program(group)]
    said = unnamed(runs)
    if not rows:
        why = (
            "scaling needs runs of one program at two or more rank counts; "
            f"runs with step times: {len(measured)} of {len(runs)}"
        )
        return no_rows("; ".join([why, *said]))
    if any(row["efficiency"] is None for row in rows):
        said.append("no efficiency where the parameters do not tell strong from weak scaling")
    if any(row["runs"] < 2 for row in rows):
        said.append("no interval where a rank count, or the reference, has only one run")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(said))


def unnamed(runs: Sequence[RunData]) -> list[str]:
    """Return a sentence about the runs with steps whose program is unknown; none if all are known."""
    nameless = [run for run in runs if run.facts["program"] is None and _step_ns(run) is not None]
    if not nameless:
        return []
    more = f" and {len(nameless) - _NAMED} more" if len(nameless) > _NAMED else ""
    return [
        f"left out, because the program is unknown: {', '.join(run.id for run in nameless[:_NAMED])}{more}; "
        f"{nameless[0].collect_command} --program NAME names it"
    ]


def _timed(run: RunData, step_ns: float) -> _Timed | None:
    """Return a run as series need it; None if its program is unknown."""
    program, workload, nodes = run.facts["program"], run.facts["workload"], run.facts["nodes"]
    if program is None or run.ranks is None:
        return None
    return _Timed(
        program=str(program),
        workload=None if workload is None else str(workload),
        where={fact: str(run.facts[fact]) for fact in _WHERE if run.facts[fact] is not None},
        setup=ScalingSetup(
            run.ranks, nodes if isinstance(nodes, int) else None, relevant(run.parameters or run.options)
        ),
        step_ns=step_ns,
    )


def _step_ns(run: RunData) -> float | None:
    if run.own_p50_ns is not None:
        return run.own_p50_ns
    summary = run.tables["steps_summary"]
    return float(summary["p50_ns"].iloc[0]) if len(summary) else None


def _groups(timed: Sequence[_Timed]) -> list[list[_Timed]]:
    """Return the runs of each program at each place, by their names."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[_Timed]] = {}
    for one in timed:
        groups.setdefault((one.program, tuple(one.where.items())), []).append(one)
    return [groups[key] for key in sorted(groups)]


def _rows_of_program(group: Sequence[_Timed]) -> list[dict[str, Any]]:
    """Return the rows of all series of a program at a place."""
    workload = WORKLOADS.get(group[0].program)
    found = find_series([one.setup for one in group], workload.size if workload else None)
    return [row for series in found for row in _rows(series, [group[i] for i in series.runs])]


def _text(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()) if value is not None)


def _rows(series: Series, runs: Sequence[_Timed]) -> list[dict[str, Any]]:
    """Return the rows of a series, the reference first."""
    same: dict[tuple[int, int], list[_Timed]] = {}
    for one in runs:
        same.setdefault((one.setup.ranks, one.setup.nodes or 0), []).append(one)
    reference = same[min(same)]
    return [_row(series, same[where], reference) for where in sorted(same)]


def _row(series: Series, runs: Sequence[_Timed], reference: Sequence[_Timed]) -> dict[str, Any]:
    first = runs[0]
    logs, of_reference = (np.log([one.step_ns for one in side]) for side in (runs, reference))
    faster = math.exp(of_reference.mean() - logs.mean())
    more = first.setup.ranks / reference[0].setup.ranks
    work = more if series.kind is ScalingKind.WEAK else 1.0
    names = dict.fromkeys(one.workload for one in runs if one.workload is not None)
    row: dict[str, Any] = {
        "program": first.program,
        "workload": ", ".join(names) or None,
        "kind": series.kind.value,
        "parameters": " ".join(filter(None, [series.size, _text(series.others), _text(first.where)])),
        "ranks": first.setup.ranks,
        "nodes": first.setup.nodes,
        "runs": len(runs),
        "step_p50_ns": round(math.exp(logs.mean())),
        "speedup": round(faster * work, RATIO_DIGITS),
        "efficiency": None,
        "ci_low": None,
        "ci_high": None,
    }
    if series.kind is not ScalingKind.UNKNOWN:
        row["efficiency"] = round(faster * work / more, RATIO_DIGITS)
        if runs is not reference and min(len(logs), len(of_reference)) > 1:
            low, high = map(math.exp, welch_interval(of_reference, logs, CONFIDENCE))
            row["ci_low"], row["ci_high"] = (round(end * work / more, RATIO_DIGITS) for end in (low, high))
    return row
