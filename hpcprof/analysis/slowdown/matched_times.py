"""What kernels take in one set of runs, over what they take at the same places of the step in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.slowdown.step_occurrences import Occurrences
from hpcprof.analysis.statistics.grouped import Floats, summarize
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class StepTimes:
    """Times of one run, both of shape (steps, kernels).

    ``taken`` is what the kernels of a step took, ``expected`` the sum of the reference times of the same
    occurrences: 0 where a step has none.
    """

    taken: Floats
    expected: Floats

    def ratios(self, kernels: Ints) -> Floats:
        """Return for each step that has some of these kernels what they took over what was expected."""
        taken, expected = self.taken[:, kernels].sum(axis=1), self.expected[:, kernels].sum(axis=1)
        return np.sort(taken[expected > 0] / expected[expected > 0])


@dataclass(frozen=True)
class MatchedTimes:
    """Chosen kernels of some runs (side a) and the same occurrences in others (side b).

    The reference of an occurrence is its median over all steps of side b; there it is weighted by how often
    it was chosen on side a. ``a`` and ``b`` have one element a run. Arrays have shape (kernels,): ``count_a``
    and ``count_b`` are the matched kernels, ``expected`` the reference times of those of side a together,
    ``unmatched`` the chosen kernels whose occurrence side b lacks.
    """

    a: list[StepTimes]
    b: list[StepTimes]
    count_a: Ints
    count_b: Ints
    expected: Floats
    unmatched: Ints


class Cells:
    """The occurrences of two sides of runs, numbered alike, and their reference times.

    Parameters
    ----------
    a, b : sequence of Occurrences
        One a run, with `hpcprof.analysis.slowdown.step_occurrences.Numbers` in common.
    kernels : int
        How many kernels were numbered.
    """

    def __init__(self, a: Sequence[Occurrences], b: Sequence[Occurrences], kernels: int) -> None:
        self._a, self._b, self._kernels = a, b, kernels
        every = np.concatenate([one.cell for one in (*a, *b)])
        cells, number = numbered_rows(*every.T)
        self._kernel = cells[:, 0]
        edges = np.cumsum([len(one.cell) for one in (*a, *b)])[:-1]
        parts = np.split(number, edges)
        self._of_a, self._of_b = parts[: len(a)], parts[len(a) :]
        self._reference = np.full(len(cells), np.nan)
        at_b = np.concatenate(self._of_b)
        if len(at_b):
            summary = summarize(at_b, np.concatenate([one.duration for one in b]))
            self._reference[summary.group] = summary.median

    def matched(self, masks: Sequence[NDArray[np.bool_]]) -> MatchedTimes:
        """Match those kernels of side a that a mask a run chooses."""
        known = ~np.isnan(self._reference)
        reference = np.where(known, self._reference, 0.0)
        chosen = [mask.astype(np.int64) for mask in masks]
        weight = np.zeros(len(known), np.int64)
        for cell, mask in zip(self._of_a, chosen, strict=True):
            weight += np.bincount(cell, mask, len(known)).astype(np.int64)
        matched = np.where(known, weight, 0)
        at_b = np.bincount(np.concatenate(self._of_b), minlength=len(known)) * (matched > 0)
        return MatchedTimes(
            a=[
                self._times(one, cell, mask * known[cell], reference)
                for one, cell, mask in zip(self._a, self._of_a, chosen, strict=True)
            ],
            b=[
                self._times(one, cell, matched[cell], reference)
                for one, cell in zip(self._b, self._of_b, strict=True)
            ],
            count_a=self._sum(matched).astype(np.int64),
            count_b=self._sum(at_b).astype(np.int64),
            expected=self._sum(matched * reference),
            unmatched=self._sum(weight - matched).astype(np.int64),
        )

    def _sum(self, of_cells: Ints | Floats) -> Floats:
        """Add up the cells of each kernel."""
        return _sums(self._kernel, of_cells, self._kernels)

    def _times(self, one: Occurrences, cell: Ints, weight: Ints, reference: Floats) -> StepTimes:
        steps = int(one.step.max(initial=-1)) + 1
        place = one.step * self._kernels + self._kernel[cell]
        shape = (steps, self._kernels)
        taken, expected = (
            _sums(place, weight * values, steps * self._kernels).reshape(shape)
            for values in (one.duration, reference[cell])
        )
        return StepTimes(taken, expected)


def _sums(group: Ints, values: Ints | Floats, groups: int) -> Floats:
    """Add up the values of each group; without any, numpy would count in whole numbers."""
    return np.bincount(group, values, groups).astype(np.float64)
