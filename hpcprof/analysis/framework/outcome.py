"""What an analysis returns, and how an analysis is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.extensions import ExtensionArray

from hpcprof.analysis.framework.declaration import Analysis, Kind
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.framework.text_columns import object_array
from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.profiles.timeline import Timeline

# The types of a column's values that are neither numpy's nor pandas' own.
_PLAIN = {int, str, float, type(None)}


@dataclass(frozen=True)
class Outcome:
    """Rows, and one sentence if there are none or if a value in them is null."""

    rows: pd.DataFrame
    reason: str = ""

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the rows in Python's own types; missing values are None."""
        return {name: _values(self.rows[name].array) for name in self.rows.columns}

    def batches(self, size: int) -> Iterator[dict[str, list[Any]]]:
        """Yield the columns of at most ``size`` rows after the other.

        Python's own values take several times the memory of numpy's.
        """
        arrays = {name: self.rows[name].array for name in self.rows.columns}
        for at in range(0, len(self.rows), size):
            yield {name: _values(array[at : at + size]) for name, array in arrays.items()}


def _values(column: ExtensionArray) -> list[Any]:
    found: list[Any] = column.tolist()
    kinds = {*map(type, found)}
    if kinds <= _PLAIN:
        # Only NaN differs from itself.
        return [None if value != value else value for value in found] if float in kinds else found
    plain = (value.item() if isinstance(value, np.generic) else value for value in found)
    return [None if missing else value for value, missing in zip(plain, column.isna().tolist(), strict=True)]


def outcome_from_columns(analysis: Analysis, columns: Mapping[str, list[Any]]) -> Outcome:
    """Return the outcome of an analysis from its columns, as `Outcome.columns` returns them."""
    return outcome_from_parts(analysis, [columns])


def outcome_from_parts(analysis: Analysis, parts: Iterable[Mapping[str, list[Any]]]) -> Outcome:
    """Return the outcome of an analysis from the columns of its first rows, of the next ones, and so on."""
    arrays: dict[str, list[NDArray[Any]]] = {column.name: [] for column in analysis.columns}
    texts: dict[str | None, str | None] = {}
    for part in parts:
        for column in analysis.columns:
            arrays[column.name].append(_array(part[column.name], column.kind, texts))
    # The declared types save pandas from looking at each value several times.
    series = {}
    for column in analysis.columns:
        whole = np.concatenate(arrays.pop(column.name) or [_array([], column.kind, texts)])
        series[column.name] = pd.Series(whole, dtype=whole.dtype, copy=False)
    return Outcome(pd.DataFrame(series, copy=False))


def _array(values: list[Any], kind: Kind, texts: dict[str | None, str | None]) -> NDArray[Any]:
    """Return a column as an array; of equal texts only one is kept."""
    if kind is Kind.TEXT:
        return object_array(texts.setdefault(text, text) for text in values)
    try:
        return np.fromiter(values, np.int64 if kind is Kind.INT else np.float64, len(values))
    except TypeError:  # A value is missing.
        return np.fromiter(values, np.float64, len(values))


def no_rows(reason: str) -> Outcome:
    """Return the outcome of an analysis that cannot be computed."""
    return Outcome(pd.DataFrame(), reason)


def _function(analysis: Analysis) -> Any:
    module, _, name = analysis.function.partition(":")
    return getattr(import_module(module), name)


def analyze_rank(analysis: Analysis, profile: Timeline | KernelReport, rank: int) -> Outcome:
    """Run an analysis of one rank and add the column ``rank``.

    There are no rows if the analysis reads another kind of profile.
    """
    return as_declared(_of_rank(analysis, profile), analysis, rank)


def columns_of_rank(
    analysis: Analysis, profile: Timeline | KernelReport, rank: int
) -> tuple[dict[str, list[Any]], str]:
    """Return the columns and the reason of `analyze_rank`, without making a DataFrame of them."""
    outcome = _of_rank(analysis, profile)
    if not len(outcome.rows):
        return {column.name: [] for column in analysis.columns}, outcome.reason
    arrays = _declared_arrays(outcome.rows, analysis, rank)
    return {name: _values(array) for name, array in arrays.items()}, outcome.reason


def _of_rank(analysis: Analysis, profile: Timeline | KernelReport) -> Outcome:
    if analysis.reads is content_of(profile.origin.kind):
        outcome: Outcome = _function(analysis)(profile)
        return outcome
    return no_rows(f"{analysis.name} needs {analysis.reads.value}, and {profile.origin.path.name} is not one")


def analyze_run(analysis: Analysis, results: Mapping[str, Outcome]) -> Outcome:
    """Run an analysis of a run over the results that it needs; it also takes over their reasons."""
    needed = {name: results[name] for name in analysis.needs}
    outcome: Outcome = _function(analysis)({name: found.rows for name, found in needed.items()})
    reasons = dict.fromkeys([*(found.reason for found in needed.values()), outcome.reason])
    return as_declared(Outcome(outcome.rows, "; ".join(filter(None, reasons))), analysis)


def analyze_pair(analysis: Analysis, runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Run an analysis that compares ``runs`` with the runs in ``against``."""
    return as_declared(_function(analysis)(runs, against), analysis)


def analyze_runs(analysis: Analysis, runs: Sequence[RunData]) -> Outcome:
    """Run an analysis over any number of runs."""
    return as_declared(_function(analysis)(runs), analysis)


def as_declared(outcome: Outcome, analysis: Analysis, rank: int | None = None) -> Outcome:
    """Return an outcome with the columns and the sort order that the analysis declares.

    ``rank`` is the value of the column of this name, if the rows do not have it.
    """
    if not len(outcome.rows):
        return Outcome(pd.DataFrame(columns=[column.name for column in analysis.columns]), outcome.reason)
    arrays = _declared_arrays(outcome.rows, analysis, rank)
    # With their types: pandas would turn None among texts into NaN.
    series = {name: pd.Series(values, dtype=values.dtype, copy=False) for name, values in arrays.items()}
    return Outcome(pd.DataFrame(series, copy=False), outcome.reason)


def _declared_arrays(rows: pd.DataFrame, analysis: Analysis, rank: int | None) -> dict[str, ExtensionArray]:
    """Return the declared columns of some rows, sorted.

    Column by column: of a few rows, pandas takes ten times as long to select and sort a DataFrame.
    """
    names = [column.name for column in analysis.columns]
    arrays = {name: rows[name].array for name in names if rank is None or name != "rank"}
    if rank is not None:
        ranks = pd.Series(np.full(len(rows), rank)).array
        arrays = {name: ranks if name == "rank" else arrays[name] for name in names}
    if analysis.sort_by:
        # lexsort is stable, and its last key decides.
        order = np.lexsort([_sort_key(arrays, name) for name in reversed(analysis.sort_by)])
        arrays = {name: values.take(order) for name, values in arrays.items()}
    return arrays


def _sort_key(columns: Mapping[str, ExtensionArray], name: str) -> NDArray[Any]:
    """Return the numbers that sort rows by a column, downwards if its name begins with ``-``."""
    values = columns[name.removeprefix("-")].to_numpy()
    key: NDArray[Any] = -values if name.startswith("-") else values
    return key
