"""The data of the charts of step times: of a profile, and of the modes of a benchmark."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hpcprof.analysis.framework.outcome import Row
from hpcprof.common.robust import MAD_TO_DEVIATION
from hpcprof.common.units import counted, format_ns
from hpcprof.report.contents import Contents
from hpcprof.report.many_ranks import quantile
from hpcprof.workloads.schema import RankResult, summarize

Chart = dict[str, Any]

MAX_STEP_POINTS = 1_000
"""Maximum steps with a point each; of more, a point stands for several."""

_MAX_NAMED_STEPS = 4
_MIN_OUTLIER_SD = 5
"""Minimum robust standard deviations above the median for a step to be named."""

_FEW_STEPS = 5
"""Maximum steps for twice that limit: the spread of few steps is often found too small."""

_MIN_OUTLIER_RATIO = 1.05

# Results of earlier versions and of profiled runs have no parts.
_BOUND_MEANINGS = {
    True: "the fastest matmuls and of the bytes over the links, each measured alone in turns with the modes",
    False: "the serial mode's matmuls and collectives",
}


def bars(
    name: str, title: str, note: str, rows: Sequence[Row], *, unit: str = "ns", stacked: bool = False
) -> Chart:
    """Return a chart of bars; each row has a ``label``, and the name and length of its ``parts``."""
    return {
        "kind": "bars",
        "id": name,
        "title": title,
        "note": note,
        "unit": unit,
        "stacked": stacked,
        "rows": rows,
    }


def modes_chart(result: RankResult) -> Chart:
    """Return the chart of the modes of a benchmark, with the bound that none of them beats."""
    steps = [summarize(mode.latency_ns) for mode in result.modes.values()]
    bound = result.bound_ns
    note = (
        "Median, with whiskers up to the 95th percentile. "
        f"n = {counted(steps[0].n, 'step')} per mode; the modes take turns."
    )
    if bound:
        note += f" The bound is the larger of {_BOUND_MEANINGS[bool(result.bound_parts_ns)]}."
    title = f"Step time by mode, {result.point}" if result.point else "Step time by mode"
    if len(steps) > 1:
        fastest = min(zip(result.modes, steps, strict=True), key=lambda pair: pair[1].p50_ns)
        share = f", {100 * bound / fastest[1].p50_ns:.1f} % of the bound" if bound else ""
        title += f": {fastest[0]} is the fastest with {format_ns(fastest[1].p50_ns)}{share}"
    return {
        "kind": "modes",
        "title": title,
        "note": note,
        "modes": list(result.modes),
        "p50_ns": [step.p50_ns for step in steps],
        "p95_ns": [step.p95_ns for step in steps],
        "bound_ns": bound,
    }


def steps_chart(contents: Contents) -> Chart | None:
    """Return the chart of the steps: a band over the ranks, and the steps that stand out."""
    times: dict[int, list[tuple[int, int]]] = defaultdict(list)
    columns = contents.table("step_times").columns
    if not columns or not columns["step"]:
        return None
    for step, wall, rank in zip(columns["step"], columns["wall_ns"], columns["rank"], strict=True):
        times[step].append((wall, rank))
    steps = sorted(times)
    ordered = [sorted(times[step]) for step in steps]
    slowest = [(row[-1][0], min(rank for wall, rank in row if wall == row[-1][0])) for row in ordered]
    block = -(-len(steps) // MAX_STEP_POINTS)
    blocks = [range(start, min(start + block, len(steps))) for start in range(0, len(steps), block)]
    ranks = len({rank for row in ordered for _, rank in row})
    middle = median(wall for wall, _ in slowest)
    outliers = _outliers([wall for wall, _ in slowest])
    named = [{"step": steps[i], "wall_ns": slowest[i][0], "rank": slowest[i][1]} for i in outliers]
    note = f"n = {counted(len(steps), 'step')} on {counted(ranks, 'rank')}."
    if ranks > 1:
        note += (
            " The line is the median over the ranks, the band reaches from the fastest to the slowest rank. "
            "Ranks that wait for each other take the same time: the account below tells them apart."
        )
    if block > 1:
        note += f" Each point stands for {block:,} steps, with their extremes."
    return {
        "kind": "steps",
        "title": f"Step time: {_steps_sentence(named, middle, [wall for wall, _ in slowest])}",
        "note": note,
        "ranks": ranks,
        "step": [steps[rows[0]] for rows in blocks],
        "min_ns": [min(ordered[i][0][0] for i in rows) for rows in blocks],
        "p50_ns": [round(median(median(wall for wall, _ in ordered[i]) for i in rows)) for rows in blocks],
        "p95_ns": [
            max(quantile([wall for wall, _ in ordered[i]], 0.95) or 0 for i in rows) for rows in blocks
        ],
        "max_ns": [max(ordered[i][-1][0] for i in rows) for rows in blocks],
        "outliers": named,
    }


def _outliers(walls: Sequence[int]) -> list[int]:
    """Return the places of the steps that are far above the median, the slowest first.

    Logarithms are compared, because noise grows with the step, and the wider of the spread around the median
    and that above it counts, because the slowest of many ranks is skewed. Where all steps are alike, at most
    5 % of pages name one, in simulations of 3 to 1,000 normal steps and of the slowest of 8 ranks that vary
    by up to 10 %.
    """
    middle = median(walls)
    if middle <= 0:
        return []
    above = [math.log(max(wall, 1) / middle) for wall in walls]
    upper = sorted(above)[3 * (len(walls) - 1) // 4]
    unit = MAD_TO_DEVIATION * max(median(map(abs, above)), upper)
    limit = max(_MIN_OUTLIER_SD * (1 + _FEW_STEPS / len(walls)) * unit, math.log(_MIN_OUTLIER_RATIO))
    far = [place for place, ratio in enumerate(above) if ratio > limit]
    return sorted(far, key=lambda place: -walls[place])[:_MAX_NAMED_STEPS]


def _steps_sentence(named: Sequence[Mapping[str, int]], middle: float, walls: Sequence[int]) -> str:
    if named:
        worst = named[0]
        more = 100 * (worst["wall_ns"] / middle - 1)
        return (
            f"step {worst['step']} takes {format_ns(worst['wall_ns'])}, "
            f"{more:,.0f} % more than the median of {format_ns(middle)}"
        )
    spread = 100 * (max(walls) - min(walls)) / middle
    return f"{format_ns(middle)} in the median, from {format_ns(min(walls))} to {format_ns(max(walls))}" + (
        f" ({spread:.0f} %)" if spread >= 1 else ""
    )
