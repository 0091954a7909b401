"""Checks that the analyses of a rank agree with themselves and with each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcprof.analysis.gpu_time.breakdown import PARTS
from hpcprof.analysis.steps.phases import distribution
from hpcprof.analysis.steps.run_step import ended_steps

AnalysisColumns = Mapping[str, Sequence[Any]]

_TOTALS = ("instances", "total_ns")
_DOUBLE = 1 + 1e-12
_STATISTICS = ("p50_ns", "p95_ns", "p99_ns", "mean_ns")


def contradictions(results: Mapping[str, AnalysisColumns]) -> list[str]:
    """Return a sentence for each contradiction in the columns of the analyses of a rank."""
    checks = (_breakdown, _kernels, _phases, _step_parts, _idle_causes, _step_idle_causes)
    return [sentence for check in checks for sentence in check(results)]


def _rows(columns: AnalysisColumns) -> Iterator[dict[str, Any]]:
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _breakdown(results: Mapping[str, AnalysisColumns]) -> Iterator[str]:
    """Check that the parts are not negative and add up to the span, to the nanosecond."""
    for row in _rows(results["breakdown"]):
        yield from _parts(row, "breakdown", "span", row["span_ns"])


def _parts(row: dict[str, Any], subject: str, name: str, whole: int) -> Iterator[str]:
    parts = [row[f"{part}_ns"] for part in PARTS]
    if min(parts) < 0 or sum(parts) != whole:
        said = ", ".join(map(str, parts))
        yield f"the parts of {subject} ({said} ns) do not add up to its {name} of {whole} ns"


def _kernels(results: Mapping[str, AnalysisColumns]) -> Iterator[str]:
    """Check that both tables count and add up the same kernels."""
    for column in _TOTALS:
        totals = [sum(results[name][column]) for name in ("kernels", "kernels_by_shape")]
        if totals[0] != totals[1]:
            yield f"kernels and kernels_by_shape differ in {column} ({totals[0]} and {totals[1]})"


def _phases(results: Mapping[str, AnalysisColumns]) -> Iterator[str]:
    """Check that no phase takes longer than its step, and that the phases and the rest add up to the steps.

    The times of a phase in n steps cannot exceed those of the n longest steps, sorted by length, so neither
    can their percentiles and their mean. All are rounded to whole nanoseconds, and very long ones to the
    digits of a double.
    """
    times = np.sort(np.array(results["step_times"]["wall_ns"], np.int64))
    found = list(_rows(results["phases"]))
    for row in found:
        longest = times[-row["steps"] :]
        fits = row["steps"] <= len(times)
        limits = distribution(longest) if fits else {}
        if not fits or any(row[name] > limits[name] * _DOUBLE + 1 for name in _STATISTICS):
            yield f"the phase {row['phase']} takes longer than its steps"
    total, whole = sum(row["steps"] * row["mean_ns"] for row in found), int(times.sum())
    # Each mean is rounded to a whole nanosecond.
    if found and abs(total - whole) > sum(row["steps"] for row in found) + whole * (_DOUBLE - 1):
        yield f"the phases add up to {total} ns, the steps to {whole} ns"


def _step_parts(results: Mapping[str, AnalysisColumns]) -> Iterator[str]:
    """Check that the parts of each step are not negative and add up to its wall time, to the nanosecond."""
    for row in _rows(results["step_parts"]):
        yield from _parts(row, f"step {row['step']}", "wall time", row["wall_ns"])


def _idle_causes(results: Mapping[str, AnalysisColumns]) -> Iterator[str]:
    """Check that the causes of idle time add up to that of the steps with an end; each mean is rounded."""
    parts, per_step = results["step_parts"], results["idle_causes"]["idle_ns_per_step"]
    if not per_step:
        return
    start, wall = (np.array(parts[name], np.int64) for name in ("start_ns", "wall_ns"))
    steps = parts["idle_ns"][: ended_steps(start, wall)]
    total, whole = sum(per_step) * len(steps), sum(steps)
    if abs(total - whole) > len(per_step) * len(steps) + whole * (_DOUBLE - 1):
        yield f"the causes of idle time add up to {total} ns, the idle time of the steps to {whole} ns"


def _step_idle_causes(results: Mapping[str, AnalysisColumns]) -> Iterator[str]:
    """Check that the causes of the idle time of each step add up to it, to the nanosecond."""
    divided: dict[int, int] = defaultdict(int)
    for row in _rows(results["step_idle_causes"]):
        divided[row["step"]] += row["idle_ns"]
    for row in _rows(results["step_parts"]):
        if divided and divided[row["step"]] != row["idle_ns"]:
            yield (
                f"the causes of the idle time of step {row['step']} add up to {divided[row['step']]} ns, "
                f"its idle time is {row['idle_ns']} ns"
            )
