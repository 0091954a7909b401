"""The data of the charts of kernels: by family and name, their slowdown, and the roofline."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from hpcprof.analysis.framework.outcome import Row
from hpcprof.common.grouping import grouped
from hpcprof.common.units import counted, format_flops, format_ns, visible
from hpcprof.profiles.kernel_classification import family
from hpcprof.profiles.kernel_names import labels, short_name
from hpcprof.report.contents import Contents
from hpcprof.report.page.step_charts import Chart, bars

MAX_KERNELS = 12
LABEL_LENGTH = 44
_MAX_NAME_LENGTH = 400
_MAX_POINTS = 6
"""Maximum points of one kernel, one for each rank."""

_TOTAL_ROW = "(total)"
_CLASSES = {"comp": "compute", "comm": "communication", "mem": "copies"}
_DRAM = "dram"


def kernel_charts(contents: Contents) -> list[Chart]:
    """Return the charts of kernels that the run has data for."""
    kernels = contents.table("kernels").rows
    made = [_families_chart(kernels), _kernels_chart(kernels)] if kernels else []
    slowdown = [row for row in contents.table("slowdown").rows if row["name"] != _TOTAL_ROW]
    if slowdown:
        made.append(slowdown_chart(slowdown))
    roofline = _roofline_chart(contents.table("roofline").rows, contents.table("ncu_peaks").rows)
    return made + ([roofline] if roofline else [])


def named(name: str | None) -> str:
    """Return the name of a kernel as people see it."""
    return visible(name) if name else "(no name)"


def _families_chart(rows: Sequence[Row]) -> Chart:
    totals: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    classes: dict[str, str] = {}
    for row in rows:
        kind = _kind(row)
        family_name = family(row["name"]) if kind == "compute" else kind
        totals[family_name][row["name"] or ""] += row["total_ns"]
        classes[family_name] = kind
    sums = {family_name: sum(total.values()) for family_name, total in totals.items()}
    order = sorted(sums, key=lambda family_name: -sums[family_name])
    whole = sum(sums.values()) or 1
    drawn = [
        {
            "label": family_name,
            "parts": [[classes[family_name], sums[family_name]]],
            "detail": f"{100 * sums[family_name] / whole:.1f} %, "
            f"mostly {named(short_name(longest))[:_MAX_NAME_LENGTH]}",
        }
        for family_name in order
        for longest in [max(totals[family_name], key=totals[family_name].__getitem__)]
    ]
    title = f"Kernel families: {order[0]} takes {100 * sums[order[0]] / whole:.0f} % of kernel time"
    note = (
        "The durations of all kernels, summed over steps and ranks; kernels that overlap both count. "
        f"n = {counted(sum(row['instances'] for row in rows), 'kernel')} on {_ranks(rows)}."
    )
    return bars("families", title, note, drawn)


def _kind(row: Row) -> str:
    return _CLASSES.get(row["class"], str(row["class"]))


def _ranks(rows: Sequence[Row]) -> str:
    return counted(len({row["rank"] for row in rows}), "rank")


def _kernels_chart(rows: Sequence[Row]) -> Chart:
    totals: dict[str, int] = defaultdict(int)
    instances: dict[str, int] = defaultdict(int)
    classes: dict[str, str] = {}
    for row in rows:
        name = named(row["name"])
        totals[name] += row["total_ns"]
        instances[name] += row["instances"]
        classes[name] = _kind(row)
    names = sorted(totals, key=lambda name: -totals[name])[:MAX_KERNELS]
    short_names = labels(names, LABEL_LENGTH)
    whole = sum(totals.values()) or 1
    all_kernels = f"All {counted(len(names), 'kernel')}" if len(names) > 1 else "The only kernel"
    most = f"The {len(names)} kernels with the longest total time, of {len(totals):,}"
    drawn = [
        {
            "label": short_names[name],
            "parts": [[classes[name], totals[name]]],
            "detail": f"{family(name) if classes[name] == 'compute' else classes[name]}, "
            f"{counted(instances[name], 'instance')}",
            "full": name[:_MAX_NAME_LENGTH],
        }
        for name in names
    ]
    title = f"Kernels: {short_names[names[0]]} takes {100 * totals[names[0]] / whole:.0f} % of kernel time"
    note = f"{all_kernels if len(names) == len(totals) else most}, summed over {_ranks(rows)}."
    return bars("kernels", title, note, drawn)


def slowdown_chart(rows: Sequence[Row], keys: Sequence[str] = ()) -> Chart:
    """Return the slowdown of kernels while communication runs, those that lose the most time first.

    ``keys`` are the parameters of a sweep, whose values are columns of the rows.
    """
    by_name = grouped((named(row["name"]), row) for row in rows)
    lost = {name: sum(map(_lost_time, sums)) for name, sums in by_name.items()}
    names = sorted(lost, key=lambda name: -lost[name])[:MAX_KERNELS]
    short_names = labels(names, LABEL_LENGTH)
    several = any(len(by_name[name]) > _MAX_POINTS for name in names)
    worst = names[0]
    ratio = median(row["slowdown"] for row in by_name[worst])
    summary = f"{short_names[worst]} takes {ratio:.2f} times as long" if ratio > 1 else "no kernel is slower"
    note = (
        f"{counted(len(names), 'kernel')} of {len(by_name):,}, those that lose the most time first, with one "
        f"point per rank, grid and block. {INTERVALS_NOTE}"
    )
    if several:
        note += f" Only the {_MAX_POINTS} points of a kernel that lose the most are drawn."
    return {
        "kind": "intervals",
        "id": "slowdown",
        "title": f"Kernel slowdown while communication runs: {summary}",
        "note": note,
        "axis": SLOWDOWN_AXIS,
        "rows": [
            {
                "label": short_names[name],
                "full": name[:_MAX_NAME_LENGTH],
                "points": [
                    interval(row, keys, family(row["name"]))
                    for row in sorted(by_name[name], key=_lost_time, reverse=True)[:_MAX_POINTS]
                ],
            }
            for name in names
        ],
    }


INTERVALS_NOTE = "Bars are 95 % confidence intervals; they need five steps or several runs."
SLOWDOWN_AXIS = "slowdown (1 = none)"


def _lost_time(row: Row) -> float:
    cost: float = (row["slowdown"] - 1) * row["alone_med_ns"] * row["overlapped_n"]
    return cost


def interval(row: Row, keys: Sequence[str], series: str) -> dict[str, Any]:
    """Return a point of a series with its interval, and the words that tell which launches it is of."""
    where = [f"rank {row['rank']}", *(f"{visible(key)}={visible(str(row[key]))}" for key in keys)]
    shape = [f"grid {row['grid']}, block {row['block']}"] if "grid" in row else []
    return {
        "value": row["slowdown"],
        "low": row["ci_low"],
        "high": row["ci_high"],
        "detail": ", ".join([*where, *shape, f"n = {row['overlapped_n']:,} launches"]),
        "series": series,
    }


def _roofline_chart(rows: Sequence[Row], peaks: Sequence[Row]) -> Chart | None:
    drawn = [row for row in rows if row["ai_flop_per_byte"] and row["achieved_flops"]]
    if not drawn:
        return None
    short_names = labels({named(row["name"]) for row in drawn}, LABEL_LENGTH)
    rates: dict[str, float] = {}
    for row in peaks:
        rates[row["resource"]] = max(row["peak_per_s"], rates.get(row["resource"], 0.0))
    used = {row["bound"] for row in drawn} - {None, _DRAM}
    ceilings = [[resource, rates[resource]] for resource in sorted(used) if resource in rates]
    if not ceilings:
        top = max(
            (resource for resource in rates if resource != _DRAM), key=lambda rate: rates[rate], default=None
        )
        ceilings = [[top, rates[top]]] if top else []
    longest = max(drawn, key=lambda row: _time(row))
    share_pct = longest["pct_of_bound"]
    reached = (
        f" reaches {share_pct:.0f} % of its bound ({longest['bound']})"
        if share_pct is not None
        else " has no known bound"
    )
    return {
        "kind": "roofline",
        "title": f"Roofline: {short_names[named(longest['name'])]}, the longest kernel,{reached}",
        "note": "Each point is a kernel with its grid and block, its area the time in the program. "
        f"Lines are the peaks of the GPU. n = {counted(len(drawn), 'kernel')}.",
        "dram_per_s": rates.get(_DRAM),
        "ceilings": ceilings,
        "points": [
            {
                "label": short_names[named(row["name"])],
                "x": row["ai_flop_per_byte"],
                "y": row["achieved_flops"],
                "bound": row["bound"],
                "ns": _time(row),
                "detail": _reached_text(row),
            }
            for row in drawn
        ],
    }


def _time(row: Row) -> float:
    return float(row["in_situ_ns"] or row["ncu_ns"] or 0)


def _reached_text(row: Row) -> str:
    share = row["pct_of_bound"]
    text = f"{format_flops(row['achieved_flops'])} in {format_ns(_time(row))}"
    if share is None or math.isnan(share):
        return text
    return f"{text}, {share:.1f} % of {row['bound']}"
