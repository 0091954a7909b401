"""Tables of many ranks: how a measure spreads over them, and which ranks deviate most.

How far a rank deviates is its distance from the median over the ranks, in robust standard deviations
(`hpcprof.common.robust`). Where most ranks agree to less than 1 % of
the largest value, that is the unit instead, so that noise does not look like a deviation.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from hpcprof.analysis.framework.declaration import Analysis, Column, Kind
from hpcprof.analysis.framework.outcome import AnalysisTable, Row
from hpcprof.common.grouping import grouped
from hpcprof.common.robust import MAD_TO_DEVIATION

MAX_RANKS_IN_FULL = 16
"""Up to this number of ranks, the full report shows the rows of each."""

MAX_DEVIATING = 10
"""The number of ranks that are shown by name."""

_QUANTILES = {"min": 0.0, "p5": 0.05, "p50": 0.5, "p95": 0.95, "max": 1.0}
_MIN_UNIT_SHARE = 0.01


def spans_many_ranks(analysis: Analysis, table: AnalysisTable) -> bool:
    """Return whether the rows have more ranks than a report shows one by one, and a value to compare."""
    named = any(column.name == "rank" for column in analysis.columns)
    if not named or not measure(analysis) or len(table.rows_by_rank) <= MAX_RANKS_IN_FULL:
        return False
    return any(value is not None for value in table.columns[measure(analysis)])


def measure(analysis: Analysis) -> str:
    """Return the column by which ranks are compared: the declared one, or the first main column of times."""
    times = (name for name in analysis.shown_columns if name.endswith("_ns"))
    return analysis.compared_by or next(times, "")


def spread(analysis: Analysis, table: AnalysisTable) -> tuple[Analysis, list[Row]]:
    """Return the quantiles over the ranks as a table.

    Where each rank has one row, there is one line for each quantile, with all main columns of numbers. Else
    there is one for each name, such as that of a kernel, with the quantiles of the measure over the ranks
    that have it; those with the largest medians come first.
    """
    keys = _key_columns(analysis, table)
    kinds = {column.name: column.kind for column in analysis.columns}
    if keys:
        return _by_name(analysis, table, keys, kinds)
    names = [name for name in analysis.shown_columns if kinds[name] is not Kind.TEXT and name != "rank"]
    values = {name: sorted(value for value in table.columns[name] if value is not None) for name in names}
    rows = [
        {"quantile": label, **{name: quantile(ordered, q) for name, ordered in values.items()}}
        for label, q in _QUANTILES.items()
    ]
    columns = (Column("quantile", Kind.TEXT), *(Column(name, kinds[name]) for name in names))
    return replace(analysis, columns=columns, main_columns=()), rows


def _by_name(
    analysis: Analysis, table: AnalysisTable, keys: tuple[str, ...], kinds: Mapping[str, Kind]
) -> tuple[Analysis, list[Row]]:
    """Return an analysis of quantiles over the ranks by name, and its rows."""
    column = measure(analysis)
    unit = column.rpartition("_")[2]
    rows: list[Row] = [
        {
            **dict(zip(keys, key, strict=True)),
            **{f"{label}_{unit}": quantile(ordered, q) for label, q in _QUANTILES.items()},
            "ranks": len(ordered),
        }
        for key, ordered in _by_key(*_once_a_rank(table, keys, column)).items()
    ]
    rows.sort(key=lambda row: -abs(row[f"p50_{unit}"]))
    columns = (
        *(Column(key, kinds[key]) for key in keys),
        *(Column(f"{label}_{unit}", kinds[column]) for label in _QUANTILES),
        Column("ranks", Kind.INT),
    )
    return replace(analysis, columns=columns, main_columns=()), rows


def deviating(analysis: Analysis, table: AnalysisTable) -> tuple[Analysis, list[Row]]:
    """Return the rows of the ranks that deviate most, in descending order, with their deviations.

    Ranks that deviate by less than one unit are left out. A rank is listed once, with its row that deviates
    most.
    """
    column, keys = measure(analysis), _key_columns(analysis, table)
    values, key_of_row = table.columns[column], _key_of_rows(table, keys)
    centres = {key: _median_and_unit(cells) for key, cells in _by_key(key_of_row, values).items()}
    furthest: dict[int, tuple[float, int]] = {}
    for number, (rank, key, value) in enumerate(zip(table.columns["rank"], key_of_row, values, strict=True)):
        if value is None:
            continue
        centre, unit = centres[key]
        far = (value - centre) / unit if unit else 0.0
        if abs(far) >= 1 and (rank not in furthest or abs(far) > abs(furthest[rank][0])):
            furthest[rank] = far, number
    most = sorted(furthest.items(), key=lambda item: (-abs(item[1][0]), item[0]))[:MAX_DEVIATING]
    rows = [
        {**{name: cells[number] for name, cells in table.columns.items()}, "deviation": far}
        for _, (far, number) in most
    ]
    names = analysis.shown_columns
    main = ("rank", "deviation", *(name for name in names if name in keys), column)
    main = (*main, *(name for name in names if name not in main))
    columns = (*analysis.columns, Column("deviation", Kind.FLOAT))
    return replace(analysis, columns=columns, main_columns=main), rows


def _key_columns(analysis: Analysis, table: AnalysisTable) -> tuple[str, ...]:
    """Return the columns that tell the rows of one rank apart; none if each rank has one row."""
    if len(table.rows_by_rank) == table.count:
        return ()
    texts = {column.name for column in analysis.columns if column.kind is Kind.TEXT}
    return tuple(
        name for name in analysis.shown_columns if name in texts or name == analysis.only_with_several
    )


def _key_of_rows(table: AnalysisTable, keys: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return list(zip(*(table.columns[key] for key in keys), strict=True)) if keys else [()] * table.count


def _once_a_rank(
    table: AnalysisTable, keys: tuple[str, ...], column: str
) -> tuple[list[tuple[Any, ...]], list[float | None]]:
    """Return the keys and the values of a column; the sum where a rank has several rows with the same key."""
    sums: dict[tuple[tuple[Any, ...], int], float | None] = {}
    for key, rank, value in zip(
        _key_of_rows(table, keys), table.columns["rank"], table.columns[column], strict=True
    ):
        value_before = sums.get((key, rank))
        sums[key, rank] = value if value_before is None else value_before + (value or 0)
    return [key for key, _ in sums], [*sums.values()]


def _by_key(keys: Iterable[Hashable], values: Iterable[float | None]) -> dict[Any, list[float]]:
    groups = grouped((key, value) for key, value in zip(keys, values, strict=True) if value is not None)
    return {key: sorted(group) for key, group in groups.items()}


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Return a value that occurs: the smallest that at least ``q`` of all do not exceed; None without any."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def _median_and_unit(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the unit of deviations from it; 0 if all values are 0."""
    middle = median(ordered)
    spread_of = MAD_TO_DEVIATION * median(abs(value - middle) for value in ordered)
    return middle, max(spread_of, _MIN_UNIT_SHARE * max(abs(ordered[0]), abs(ordered[-1])))
