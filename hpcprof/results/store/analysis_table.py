"""The table that an analysis gives: what the store keeps, and what reports and studies read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.steps.step_set import StepSet
from hpcprof.common import __version__

if TYPE_CHECKING:  # neither pandas is needed to report from the store, nor that to follow a job
    import pandas as pd

    from hpcprof.analysis.framework.outcome import Outcome
    from hpcprof.results.store.tables import ProfileRow

ANALYSIS_VERSION = 59
"""Increased whenever an analysis gives other figures, so that collected profiles are read again."""

Row = dict[str, Any]
"""One row: its values by the names of the columns."""

WHOLE_RUN = -1
"""Takes the place of a rank in what belongs to the run as a whole."""


@dataclass(frozen=True)
class AnalysisTable:
    """The rows of an analysis, and why rows or values are missing."""

    columns: dict[str, list[Any]]
    """The values of each column, all of one length, in Python's own types; a missing value is None."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Sentences by rank; the rank is `WHOLE_RUN` for an analysis that spans the ranks."""
    losses: tuple[str, ...] = ()
    """Sentences about what the profiles lack that the rows are computed from, each with its ranks."""
    steps: StepSet | None = field(default=None, compare=False)
    """The steps that its figures count; None if they are not of steps, or the run has none."""

    @classmethod
    def from_outcome(cls, outcome: Outcome, rank: int = WHOLE_RUN) -> AnalysisTable:
        """Convert the outcome of an analysis of one rank, or of the whole run."""
        return cls(outcome.columns(), {rank: outcome.reason} if outcome.reason else {})

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()), ()))

    @cached_property
    def rows_by_rank(self) -> Counter[int]:
        """The number of rows of each rank, of an analysis by rank."""
        return Counter(self.columns.get("rank", ()))

    @cached_property
    def rows(self) -> list[Row]:
        """The same values, row by row."""
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]


def data_frame(
    columns: Sequence[Column], values: Mapping[str, list[Any]], *, exact: bool = False
) -> pd.DataFrame:
    """Return columns of values as a DataFrame, in which equal texts share one object.

    Where whole numbers are missing, a column is float64 with NaN, as analyses expect it; ``exact`` makes it
    Int64 with NA.
    """
    import numpy as np
    import pandas as pd

    from hpcprof.profiles.columns.unique import object_array

    texts: dict[str | None, str | None] = {}
    series: dict[str, pd.Series[Any]] = {}
    # The declared types save pandas from looking at each value several times.
    for column in columns:
        listed = values[column.name]
        whole = column.kind is Kind.INT and None not in listed
        if column.kind is Kind.TEXT:
            array = object_array(map(texts.setdefault, listed, listed))
        elif column.kind is Kind.INT and exact and not whole:
            series[column.name] = pd.Series(listed, dtype="Int64")
            continue
        else:
            array = np.fromiter(listed, np.int64 if whole else np.float64, len(listed))
        series[column.name] = pd.Series(array, dtype=array.dtype, copy=False)
    frame: pd.DataFrame = pd.DataFrame(series, copy=False)
    return frame


def earlier_version(profiles: Iterable[ProfileRow]) -> str:
    """Return the version of hpcprof whose figures of a run are outdated; empty if they are up to date."""
    earlier = [profile for profile in profiles if profile.analysis_version != ANALYSIS_VERSION]
    if not earlier:
        return ""
    versions = sorted({profile.made_by or "" for profile in earlier} - {"", __version__})
    return f"hpcprof {' and '.join(versions)}" if versions else "an earlier version of hpcprof"
