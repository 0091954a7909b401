"""Results of analyses, and running one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers.declaration import load
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.profiles.timeline import Timeline

if TYPE_CHECKING:  # SQL over the events of runs needs no pandas, whose import takes as long as all others
    import pandas as pd
    from pandas.api.extensions import ExtensionArray

# The types of a column's values that are neither numpy's nor pandas' own.
_PLAIN_TYPES = {int, str, float, bool, type(None)}

Values: TypeAlias = "NDArray[Any] | ExtensionArray | list[Any]"
"""The values of a column. In arrays and lists of objects, None or NaN marks a missing value."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Rows, and one sentence if there are none or if a value in them is null."""

    table: "pd.DataFrame | Mapping[str, Values]"
    """The columns by name, all of one length. A DataFrame of a few rows takes ten times as long."""
    reason: str = ""

    def __len__(self) -> int:
        """Return the number of rows."""
        if isinstance(self.table, Mapping):
            return len(next(iter(self.table.values()), ()))
        return len(self.table)

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """The rows as a DataFrame."""
        import pandas as pd

        if isinstance(self.table, pd.DataFrame):
            table: pd.DataFrame = self.table
        elif not len(self):
            table = pd.DataFrame(columns=list(self.table))
        else:
            series = {
                # pandas would turn None among texts or numbers into NaN.
                name: pd.Series(values, dtype="object" if None in values else None)
                if isinstance(values, list)
                else pd.Series(values, dtype=values.dtype, copy=False)
                for name, values in self.table.items()
            }
            table = pd.DataFrame(series, copy=False)
        return table

    def arrays(self) -> dict[str, Values]:
        """Return the columns by name, without a DataFrame if the analysis made none."""
        if isinstance(self.table, Mapping):
            return dict(self.table)
        return {name: self.table[name].array for name in self.table.columns}

    def columns(self, first: int = 0, last: int | None = None) -> dict[str, list[Any]]:
        """Return the columns of the rows from ``first`` up to ``last`` in Python's types; None if missing."""
        return {name: _in_python(values[first:last]) for name, values in self.arrays().items()}


def _in_python(values: Values) -> list[Any]:
    if not isinstance(values, list | np.ndarray):
        from pandas.arrays import NumpyExtensionArray

        if isinstance(values, NumpyExtensionArray):  # pandas would box each value
            values = values.to_numpy()
    items: list[Any] = values if isinstance(values, list) else values.tolist()
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return items
    kinds = {*map(type, items)}
    if not kinds <= _PLAIN_TYPES:
        from pandas import NA

        items = [value.item() if isinstance(value, np.generic) else value for value in items]
        items = [None if value is NA else value for value in items]
    elif float not in kinds:
        return items
    # Only NaN differs from itself.
    return [None if value != value else value for value in items]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
    """Return rows as columns, in the order of the first row."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def no_rows(reason: str) -> Outcome:
    """Return the outcome of an analysis that cannot be computed."""
    return Outcome({}, reason)


def outcome_of_rows(rows: Sequence[Mapping[str, Any]], absent: str, reason: str = "") -> Outcome:
    """Return the outcome of rows with a reason; without rows the reason or, if that is empty, ``absent``."""
    return Outcome(columns_of(rows), reason) if rows else no_rows(reason or absent)


def none_in(timeline: Timeline, events: str) -> Outcome:
    """Return the outcome of an analysis of events that a profile does not have."""
    return no_rows(f"no {events} in {timeline.origin.path.name}")


def analyze_rank(analysis: Analysis, profile: Timeline | KernelReport, rank: int) -> Outcome:
    """Run an analysis of one rank and add the column ``rank``.

    There are no rows if the analysis reads another kind of profile.
    """
    if analysis.reads is content_of(profile.origin.kind):
        outcome: Outcome = load(analysis.function)(profile)
    else:
        file = profile.origin.path.name
        outcome = no_rows(f"{analysis.name} needs {analysis.reads.value}, and {file} is not one")
    return in_declared_columns(outcome, analysis, rank)


def analyze_run(analysis: Analysis, results: Mapping[str, Outcome], parts: Sequence[Any] = ()) -> Outcome:
    """Run an analysis of a run over the results that it needs; it also takes over their reasons.

    ``parts`` are the values that ``analysis.map`` returned.
    """
    needed = {name: results[name] for name in analysis.needs}
    rows = {name: table.rows for name, table in needed.items()}
    outcome: Outcome
    if analysis.function:
        outcome = load(analysis.function)(*([parts] if analysis.map else []), rows)
    else:
        outcome = next((part[analysis.name] for part in parts if part), no_rows(analysis.absent))
    reasons = dict.fromkeys([*(table.reason for table in needed.values()), outcome.reason])
    return in_declared_columns(Outcome(outcome.table, "; ".join(filter(None, reasons))), analysis)


def analyze_across(analysis: Analysis, *sides: Sequence[RunData]) -> Outcome:
    """Run an analysis over any number of runs, or one that compares runs with those of a second side."""
    return in_declared_columns(load(analysis.function)(*sides), analysis)


def in_declared_columns(outcome: Outcome, analysis: Analysis, rank: int | None = None) -> Outcome:
    """Return an outcome with the columns and the sort order that the analysis declares.

    ``rank`` is the value of the column of this name, if the rows do not have it.
    """
    names = [column.name for column in analysis.columns]
    if not len(outcome):
        return Outcome({name: [] for name in names}, outcome.reason)
    arrays = outcome.arrays()
    if rank is not None:
        arrays["rank"] = np.full(len(outcome), rank)
    arrays = {name: arrays[name] for name in names}
    if analysis.sort_by:
        # lexsort is stable, and its last key decides.
        order = np.lexsort([_sort_key(arrays, name) for name in reversed(analysis.sort_by)])
        arrays = {name: _take_rows(values, order) for name, values in arrays.items()}
    return Outcome(arrays, outcome.reason)


def _sort_key(columns: Mapping[str, Values], name: str) -> NDArray[Any]:
    """Return the numbers that sort rows by a column, downwards if its name begins with ``-``."""
    values = np.asarray(columns[name.removeprefix("-")])
    return -values if name.startswith("-") else values


def _take_rows(values: Values, rows: NDArray[np.intp]) -> Values:
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values.take(rows)
