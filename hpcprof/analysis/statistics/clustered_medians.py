"""Medians of values that come in clusters, such as the kernels of a step, and intervals of their ratios."""

import math

import msgspec
import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import (
    CONFIDENCE,
    correlated_freedom,
    expected_correlation,
    neighbour_correlation,
    number_of_lags,
    variance_of_mean,
)
from hpcprof.analysis.statistics.grouped import sort_within_groups
from hpcprof.analysis.statistics.student import student_quantile
from hpcprof.profiles.columns.unique import numbered, numbered_rows
from hpcprof.profiles.timeline import Floats, Ints, Mask

_MIN_FREEDOM = 1 - 1e-9
"""Minimum degrees of freedom of an interval, less an error of rounding: with fewer it says nothing."""

_ASSUMED_CLUSTERS = 12
"""The weight of the assumed correlation of neighbouring clusters, as a number of clusters."""

_ONE_SIDED_90 = 1.28
"""The upper end of a one-sided 90 % interval, in standard errors: this correlation of clusters counts."""


class ClusteredMedians(msgspec.Struct, frozen=True):
    """The medians of groups of values, and what each cluster of values adds to their errors.

    A part is what a group and a cluster have in common; only parts with values are kept.
    """

    group: Ints
    count: Ints
    """The numbers of the groups, ascending, and how many values each has; shape (groups,)."""
    median: Floats
    """Shape (groups,)."""
    error: Floats
    """The standard error of the median if all values were independent; shape (groups,)."""
    part_group: Ints
    part_cluster: Ints
    """The row of each part's group in ``group``, and the number of its cluster; shape (parts,)."""
    part_share: Floats
    """The share of the group's values that the part has; shape (parts,)."""
    part_shift: Floats
    """The distance by which the part moves the median of its group, to first order; shape (parts,)."""

    @classmethod
    def of(cls, group: Ints, cluster: Ints, value: Ints) -> "ClusteredMedians":
        """Return the medians of ``value`` by ``group``; all arrays have shape (n,), n > 0.

        A median moves by the surplus of values above it, divided by the density of values around it. The
        density is measured over one standard error of that surplus on both sides (Woodruff 1952).
        """
        groups, ordered, end = sort_within_groups(group, value)
        count = np.diff(end, prepend=0)
        first = end - count
        median = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
        _, row = numbered(group)
        parts, part = numbered_rows(row, cluster)
        owner = np.ascontiguousarray(parts[:, 0])
        share = np.bincount(part) / count[owner]
        surplus = np.bincount(part, np.sign(value - median[row]) / 2) / count[owner]
        spread = np.sqrt(np.maximum(np.bincount(owner, surplus**2), 0.25 / count))
        low, high = (np.clip((0.5 + side * spread) * count - 0.5, 0, count - 1) for side in (-1, 1))
        slope = (
            (_interpolated(ordered, first, high) - _interpolated(ordered, first, low)) / (high - low) * count
        )
        return cls(
            group=groups,
            count=count,
            median=median,
            error=slope * 0.5 / np.sqrt(count),
            part_group=owner,
            part_cluster=parts[:, 1],
            part_share=share,
            part_shift=slope[owner] * surplus,
        )

    def half_widths(
        self, row: Ints, gradient: Floats, first_side: Mask | None = None, begins: Ints | None = None
    ) -> Floats:
        """Return half the width of the 95 % interval of each row's sum of ``gradient * median``.

        The shifts of a cluster are added up before they are squared, so values of a cluster may depend on
        each other in any way. Clusters that resemble the next ones widen the interval as an autoregressive
        series of first order would. The quantile is Student's, with the degrees of freedom of the clusters
        that carry the row. An interval is never narrower than with independent values, because few values in
        few clusters can cancel by chance. It is NaN if one cluster has nearly all values of a side.

        ``row`` is the row that each group belongs to, from 0, and ``first_side`` tells which of the two sides
        of the row it is on, by default the sign of ``gradient``; all have shape (groups,). ``begins`` is the
        first cluster of each series of clusters, as of a run, by default of a single one; shape (series,).
        """
        cells, cell = numbered_rows(row[self.part_group], self.part_cluster)
        owner = np.ascontiguousarray(cells[:, 0])
        first = gradient > 0 if first_side is None else first_side
        above, below = (
            self._side(row, np.where(side, gradient, 0.0), cell, owner) for side in (first, ~first)
        )
        shift = above.shift + below.shift
        variance: Floats = np.bincount(owner, shift**2).astype(np.float64)
        series = np.zeros(len(cells), np.int64)
        if begins is not None:
            series = np.searchsorted(begins, cells[:, 1], side="right")
        length, correlation = _correlation(owner, series, shift, variance)
        with np.errstate(invalid="ignore", divide="ignore"):
            clustered = np.sqrt(variance * variance_of_mean(length, correlation))
        independent = np.sqrt(np.bincount(row, (gradient * self.error) ** 2))
        degrees = correlated_freedom(_degrees_of_freedom(above, below, owner), correlation)
        student, normal = student_quantile([degrees, np.full_like(degrees, math.inf)], (1 + CONFIDENCE) / 2)
        widths: Floats = np.maximum(student * clustered, normal * independent)
        # Values that are all the same leave no doubt.
        widths[(clustered == 0) & (independent == 0)] = 0
        return widths

    def _side(self, row: Ints, gradient: Floats, cell: Ints, owner: Ints) -> "_Side":
        """Return one side of all rows; ``gradient`` is 0 for the groups of the other side.

        ``cell`` numbers the row and cluster of each part, and ``owner`` has the row of each cell.
        """
        weight = np.abs(gradient) * self.median
        weight /= np.bincount(row, weight)[row]
        share: Floats = np.bincount(cell, weight[self.part_group] * self.part_share).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            # The median has moved towards each cluster; the jackknife, which leaves it out, undoes that.
            shift = np.bincount(cell, gradient[self.part_group] * self.part_shift) / (1 - share)
        independent = np.bincount(row, (gradient * self.error) ** 2)
        return _Side(
            share=share,
            shift=shift,
            variance=np.fmax(np.bincount(owner, shift**2), independent),
            clusters=_effective_clusters(owner, share),
        )


class _Side(msgspec.Struct, frozen=True):
    """One side of each row: shares and shifts of shape (cells,), and by row the variance and clusters."""

    share: Floats
    shift: Floats
    variance: Floats
    clusters: Floats


def _correlation(owner: Ints, series: Ints, shift: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return the mean length of each row's series, and the correlation to expect of neighbouring clusters."""
    parts, part = numbered_rows(owner, series)
    count = np.bincount(parts[:, 0], minlength=len(variance))
    length = np.bincount(owner, minlength=len(variance)) / count
    max_lag = number_of_lags(length.astype(np.int64))
    total = np.zeros_like(variance)
    for lag in range(max(1, int(max_lag.max(initial=0))), 0, -1):
        inside = np.flatnonzero((part[lag:] == part[:-lag]) & (lag <= np.maximum(max_lag, 1)[owner[lag:]]))
        with np.errstate(invalid="ignore"):  # where a row has no interval
            products = np.bincount(owner[inside], shift[inside] * shift[inside + lag], len(variance))
            term = np.divide(products, variance, out=np.zeros_like(variance), where=variance > 0)
        total += term
    # The last term is the correlation with the next cluster.
    correlation = neighbour_correlation(term, total, length)
    return length, expected_correlation(correlation, count, length, _ASSUMED_CLUSTERS, errors=_ONE_SIDED_90)


def _degrees_of_freedom(above: _Side, below: _Side, owner: Ints) -> Floats:
    """Return the degrees of freedom of the difference of two sides, by row; NaN if there is less than one.

    They are those of Welch and Satterthwaite, but with clusters that both sides have in common at most one
    less than these clusters.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = [side.variance**2 / (side.clusters - 1) for side in (above, below)]
        welch = (above.variance + below.variance) ** 2 / (parts[0] + parts[1])
        carried = above.variance[owner] * above.share + below.variance[owner] * below.share
        degrees = np.minimum(welch, _effective_clusters(owner, carried) - 1)
    return np.where(degrees >= _MIN_FREEDOM, degrees, np.nan)


def _effective_clusters(owner: Ints, share: Floats) -> Floats:
    """Return the effective number of clusters of each owner (Kish): as many equal shares vary as much."""
    return np.bincount(owner, share) ** 2 / np.bincount(owner, share**2)


def _interpolated(ordered: Ints, first: Ints, place: Floats) -> Floats:
    """Return the interpolated values at places counted from ``first``."""
    below = np.floor(place).astype(np.int64)
    above = np.ceil(place).astype(np.int64)
    low, high = ordered[first + below], ordered[first + above]
    values: Floats = low + (high - low) * (place - below)
    return values
