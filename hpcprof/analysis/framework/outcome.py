"""Outcomes of analyses, the tables that they become, and running an analysis.

The function of an analysis returns an `Outcome`, whose columns are in numpy, pandas or lists. It becomes an
`AnalysisTable`, which goes to the store, reports, the API and SQL. Only this module converts values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcprof.analysis.framework.declaration import Analysis, Column, Kind
from hpcprof.profiles.readers.declaration import load
from hpcprof.profiles.readers.discovery import content_of

if TYPE_CHECKING:  # a report from the store needs neither numpy, pandas nor Arrow
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray
    from pandas.api.extensions import ExtensionArray

    from hpcprof.analysis.framework.run_data import RunData
    from hpcprof.analysis.steps.step_set import StepSet
    from hpcprof.profiles.kernel_report import KernelReport
    from hpcprof.profiles.timeline import Timeline

# The types of a column's values that are neither numpy's nor pandas' own.
_PLAIN_TYPES = {int, str, float, bool, type(None)}

Values: TypeAlias = "NDArray[Any] | ExtensionArray | pa.ChunkedArray | list[Any]"
"""The values of a column. In arrays and lists of objects, None or NaN marks a missing value."""

Row: TypeAlias = dict[str, Any]
"""One row: its values by the names of the columns."""

WHOLE_RUN = -1
"""Takes the place of a rank in what belongs to the run as a whole."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Rows, and one sentence if there are none or if a value in them is null."""

    table: pd.DataFrame | Mapping[str, Values]
    """The columns by name, all of one length. A DataFrame of a few rows takes ten times as long."""
    reason: str = ""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.table.values()), ()) if isinstance(self.table, Mapping) else self.table)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows as a DataFrame."""
        return data_frame((), self.table) if isinstance(self.table, Mapping) else self.table

    def arrays(self) -> dict[str, Values]:
        """Return the columns by name, without a DataFrame if the analysis made none."""
        if isinstance(self.table, Mapping):
            return dict(self.table)
        return {name: self.table[name].array for name in self.table.columns}

    def columns(self, first: int = 0, last: int | None = None) -> dict[str, list[Any]]:
        """Return the columns of the rows from ``first`` up to ``last`` in Python's types; None if missing."""
        return {name: _in_python(values[first:last]) for name, values in self.arrays().items()}


@dataclass(frozen=True)
class AnalysisTable:
    """The rows of an analysis, and why rows or values are missing."""

    values: Mapping[str, Values]
    """The values of each column, all of one length: arrays as they were computed or read, or lists of values
    in Python's own types.
    """
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Sentences by rank; the rank is `WHOLE_RUN` for an analysis that spans the ranks."""
    losses: tuple[str, ...] = ()
    """Sentences about what the profiles lack that the rows are computed from, each with its ranks."""
    steps: StepSet | None = field(default=None, compare=False)
    """The steps that its figures count; None if they are not of steps, or the run has none."""
    declared: Sequence[Column] = field(default=(), compare=False)
    """The columns as the analysis declares them."""

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(next(iter(self.values.values()), ()))

    @property
    def reason(self) -> str:
        """The sentence about the run as a whole; empty without one."""
        return self.reasons.get(WHOLE_RUN, "")

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """The values of each column in Python's own types; a missing value is None."""
        return {
            name: values if isinstance(values, list) else _in_python(values)
            for name, values in self.values.items()
        }

    @cached_property
    def rows(self) -> list[Row]:
        """The same values, row by row."""
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]

    @cached_property
    def rows_by_rank(self) -> Counter[int]:
        """The number of rows of each rank, of an analysis by rank."""
        return Counter(self.columns.get("rank", ()))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows as other analyses read them."""
        return data_frame(self.declared, self.values)

    def part(self, first: int, last: int) -> AnalysisTable:
        """Return the rows from ``first`` up to ``last``."""
        return replace(self, values={name: values[first:last] for name, values in self.values.items()})

    def arrow(self) -> pa.Table:
        """Return the rows as an Arrow table of the declared types.

        None and NaN become null, whole numbers stay exact, and texts lose what Parquet cannot hold.
        """
        import pyarrow as pa

        schema = arrow_schema(self.declared)
        return pa.table([_arrow_array(self.values[item.name], item.type) for item in schema], schema=schema)


def empty_table(analysis: Analysis, reasons: Mapping[int, str] = MappingProxyType({})) -> AnalysisTable:
    """Return a table without rows, with the reasons by rank or `WHOLE_RUN`."""
    return AnalysisTable({column.name: [] for column in analysis.columns}, reasons, declared=analysis.columns)


def joined_tables(tables: Sequence[AnalysisTable]) -> AnalysisTable:
    """Return the rows and the reasons of tables of one analysis, such as those of its ranks."""
    values = {name: [*chain.from_iterable(t.columns[name] for t in tables)] for name in tables[0].values}
    reasons = {rank: reason for table in tables for rank, reason in table.reasons.items()}
    return replace(tables[0], values=values, reasons=reasons)


def _in_python(values: Values) -> list[Any]:
    """Return a column in Python's own types, with None for what is missing."""
    import numpy as np

    if hasattr(values, "to_pylist"):
        return [*values.to_pylist()]
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


def data_frame(
    declared: Sequence[Column], values: Mapping[str, Values], *, exact: bool = False
) -> pd.DataFrame:
    """Return columns of values as a DataFrame, in which equal texts share one object.

    Lists get their declared types: where whole numbers are missing, a column is float64 with NaN, as analyses
    expect it. Arrays stay as they are. With ``exact``, all columns get these types, and whole numbers of
    which some are missing are Int64 with NA.
    """
    import numpy as np
    import pandas as pd

    from hpcprof.profiles.columns.unique import object_array

    if not exact and any(hasattr(items, "to_pylist") for items in values.values()):
        import pyarrow as pa

        rows: pd.DataFrame = pa.table({**values}).to_pandas(use_threads=False)
        return rows
    kinds = {column.name: column.kind for column in declared}
    texts: dict[str | None, str | None] = {}
    series: dict[str, pd.Series[Any]] = {}
    for name, items in values.items():
        kind = kinds.get(name)
        if kind is None and isinstance(items, list):
            # pandas would turn None among texts or numbers into NaN.
            series[name] = pd.Series(items, dtype="object" if None in items else None)
            continue
        if isinstance(items, list) or exact:
            # The declared types save pandas from looking at each value several times.
            listed = items if isinstance(items, list) else _in_python(items)
            whole = kind is Kind.INT and None not in listed
            if kind is Kind.INT and exact and not whole:
                series[name] = pd.Series(listed, dtype="Int64")
                continue
            items = (
                object_array(map(texts.setdefault, listed, listed))
                if kind is Kind.TEXT
                else np.fromiter(listed, np.int64 if whole else np.float64, len(listed))
            )
        series[name] = pd.Series(items, dtype=items.dtype, copy=False)
    frame: pd.DataFrame = pd.DataFrame(series, copy=False)
    return frame


_ARROW_TYPES = {Kind.INT: "int64", Kind.FLOAT: "float64", Kind.TEXT: "string"}


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the types that columns have in Arrow and Parquet."""
    import pyarrow as pa

    return pa.schema([(column.name, _ARROW_TYPES[column.kind]) for column in columns])


def _arrow_array(values: Values, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    import pyarrow as pa

    from hpcprof.profiles.event_columns import plain_text

    if isinstance(values, pa.ChunkedArray):
        return values
    if kind == pa.string():
        texts = {value: plain_text(value) for value in set(values) if isinstance(value, str)}
        values = [texts.get(value) for value in values]
    # NaN stands for a missing value.
    return pa.array(values, kind, from_pandas=True)


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


def analyze_rank(analysis: Analysis, profile: Timeline | KernelReport, rank: int) -> AnalysisTable:
    """Run an analysis of one rank and add the column ``rank``.

    There are no rows if the analysis reads another kind of profile.
    """
    if analysis.reads is content_of(profile.origin.kind):
        outcome: Outcome = load(analysis.function)(profile)
    else:
        file = profile.origin.path.name
        outcome = no_rows(f"{analysis.name} needs {analysis.reads.value}, and {file} is not one")
    return in_declared_columns(outcome, analysis, rank)


def analyze_run(
    analysis: Analysis, results: Mapping[str, AnalysisTable], parts: Sequence[Any] = ()
) -> AnalysisTable:
    """Run an analysis of a run over the results that it needs; it also takes over their reasons.

    ``parts`` are the values that ``analysis.map`` returned.
    """
    needed = {name: results[name] for name in analysis.needs}
    rows = {name: table.frame for name, table in needed.items()}
    outcome: Outcome
    if analysis.function:
        outcome = load(analysis.function)(*([parts] if analysis.map else []), rows)
    else:
        outcome = next((part[analysis.name] for part in parts if part), no_rows(analysis.absent))
    reasons = dict.fromkeys([*(table.reason for table in needed.values()), outcome.reason])
    return in_declared_columns(Outcome(outcome.table, "; ".join(filter(None, reasons))), analysis)


def analyze_across(analysis: Analysis, *sides: Sequence[RunData]) -> AnalysisTable:
    """Run an analysis over any number of runs, or one that compares runs with those of a second side."""
    return in_declared_columns(load(analysis.function)(*sides), analysis)


def in_declared_columns(outcome: Outcome, analysis: Analysis, rank: int | None = None) -> AnalysisTable:
    """Return an outcome as a table, with the columns and the sort order that the analysis declares.

    ``rank`` is the rank that it is of, and the value of the column of this name if the rows do not have it.
    """
    import numpy as np

    reasons = {WHOLE_RUN if rank is None else rank: outcome.reason} if outcome.reason else {}
    if not len(outcome):
        return empty_table(analysis, reasons)
    arrays = outcome.arrays()
    if rank is not None:
        arrays["rank"] = np.full(len(outcome), rank)
    names = [column.name for column in analysis.columns]
    columns = {name: arrays[name] for name in names}
    if analysis.sort_by:
        # lexsort is stable, and its last key decides.
        order = np.lexsort([_sort_key(columns, name) for name in reversed(analysis.sort_by)])
        columns = {name: _take_rows(values, order) for name, values in columns.items()}
    lists = {name: _in_python(values) for name, values in columns.items() if isinstance(values, list)}
    return AnalysisTable({**columns, **lists}, reasons, declared=analysis.columns)


def _sort_key(columns: Mapping[str, Values], name: str) -> NDArray[Any]:
    """Return the numbers that sort rows by a column, downwards if its name begins with ``-``."""
    import numpy as np

    values = np.asarray(columns[name.removeprefix("-")])
    return -values if name.startswith("-") else values


def _take_rows(values: Values, rows: NDArray[np.intp]) -> Values:
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values.take(rows)
