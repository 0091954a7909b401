"""Tables of many ranks: how a measure spreads over them, and which ranks deviate most.

How far a rank deviates is its distance from the median over the ranks, in robust standard deviations: 1.4826
times the median absolute deviation (Rousseeuw and Croux, 1993). Where most ranks agree to less than 1 % of
the largest value, that is the unit instead, so that noise does not look like a deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from hpcprof.analysis.framework.declaration import Analysis, Column, Kind
from hpcprof.results.analysis_table import Row

MOST_IN_FULL = 16
"""Up to this number of ranks, the full report shows the rows of each."""

DEVIATING = 10
"""The number of ranks that are shown by name."""

_QUANTILES = {"min": 0.0, "p5": 0.05, "p50": 0.5, "p95": 0.95, "max": 1.0}
_TO_STANDARD_DEVIATIONS = 1.4826
_SMALLEST_UNIT = 0.01


def spans_many_ranks(analysis: Analysis, rows: Sequence[Row]) -> bool:
    """Return whether the rows are of so many ranks that a report summarizes them."""
    named = any(column.name == "rank" for column in analysis.columns)
    return named and bool(measure(analysis)) and len({row["rank"] for row in rows}) > MOST_IN_FULL


def measure(analysis: Analysis) -> str:
    """Return the column by which ranks are compared: the declared one, or the first main column of times."""
    times = (name for name in analysis.shown_columns if name.endswith("_ns"))
    return analysis.compared_by or next(times, "")


def spread(analysis: Analysis, rows: Sequence[Row]) -> tuple[Analysis, list[Row]]:
    """Return the quantiles over the ranks as a table.

    Where each rank has one row, there is one line for each quantile, with all main columns of numbers. Else
    there is one for each name, such as that of a kernel, with the quantiles of the measure over the ranks
    that have it; those with the largest medians come first.
    """
    keys = _keys(analysis, rows)
    kinds = {column.name: column.kind for column in analysis.columns}
    if keys:
        return _by_name(analysis, rows, keys, kinds)
    names = [name for name in analysis.shown_columns if kinds[name] is not Kind.TEXT and name != "rank"]
    values = {name: sorted(row[name] for row in rows if row[name] is not None) for name in names}
    found = [
        {"quantile": label, **{name: _quantile(ordered, q) for name, ordered in values.items()}}
        for label, q in _QUANTILES.items()
    ]
    columns = (Column("quantile", Kind.TEXT), *(Column(name, kinds[name]) for name in names))
    return replace(analysis, columns=columns, main_columns=()), found


def _by_name(
    analysis: Analysis, rows: Sequence[Row], keys: tuple[str, ...], kinds: Mapping[str, Kind]
) -> tuple[Analysis, list[Row]]:
    column = measure(analysis)
    unit = column.rpartition("_")[2]
    found: list[Row] = [
        {
            **dict(zip(keys, key, strict=True)),
            **{f"{label}_{unit}": _quantile(ordered, q) for label, q in _QUANTILES.items()},
            "ranks": len(ordered),
        }
        for key, ordered in _by_key(rows, keys, column).items()
    ]
    found.sort(key=lambda row: -abs(row[f"p50_{unit}"]))
    columns = (
        *(Column(key, kinds[key]) for key in keys),
        *(Column(f"{label}_{unit}", kinds[column]) for label in _QUANTILES),
        Column("ranks", Kind.INT),
    )
    return replace(analysis, columns=columns, main_columns=()), found


def deviating(analysis: Analysis, rows: Sequence[Row]) -> tuple[Analysis, list[Row]]:
    """Return the rows of the ranks that deviate most, the first one most, with how far they do.

    Ranks that deviate by less than one unit are left out. A rank is listed once, with its row that deviates
    most.
    """
    column, keys = measure(analysis), _keys(analysis, rows)
    centres = {key: _centre(values) for key, values in _by_key(rows, keys, column).items()}
    furthest: dict[int, Row] = {}
    for row in rows:
        if row[column] is None:
            continue
        centre, unit = centres[tuple(row[key] for key in keys)]
        far = (row[column] - centre) / unit if unit else 0.0
        best = furthest.get(row["rank"])
        if abs(far) >= 1 and (best is None or abs(far) > abs(best["deviation"])):
            furthest[row["rank"]] = {**row, "deviation": far}
    most = sorted(furthest.values(), key=lambda row: (-abs(row["deviation"]), row["rank"]))[:DEVIATING]
    names = analysis.shown_columns
    main = ("rank", "deviation", *(name for name in names if name in keys), column)
    main = (*main, *(name for name in names if name not in main))
    columns = (*analysis.columns, Column("deviation", Kind.FLOAT))
    return replace(analysis, columns=columns, main_columns=main), most


def _keys(analysis: Analysis, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns that tell the rows of one rank apart; none if each rank has one row."""
    if len({row["rank"] for row in rows}) == len(rows):
        return ()
    texts = {column.name for column in analysis.columns if column.kind is Kind.TEXT}
    return tuple(
        name for name in analysis.shown_columns if name in texts or name == analysis.only_with_several
    )


def _by_key(
    rows: Sequence[Row], keys: tuple[str, ...], column: str
) -> Mapping[tuple[object, ...], list[float]]:
    """Return the values of a column by key, sorted."""
    values: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        if row[column] is not None:
            values.setdefault(tuple(row[key] for key in keys), []).append(row[column])
    return {key: sorted(found) for key, found in values.items()}


def _quantile(ordered: Sequence[float], q: float) -> float | None:
    """Return a value that occurs: the smallest that at least ``q`` of all do not exceed; None without any."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def _centre(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the unit of deviations from it; 0 if all values are 0."""
    middle = median(ordered)
    spread_of = _TO_STANDARD_DEVIATIONS * median(abs(value - middle) for value in ordered)
    return middle, max(spread_of, _SMALLEST_UNIT * max(abs(ordered[0]), abs(ordered[-1])))
