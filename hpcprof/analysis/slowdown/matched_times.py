"""The times of kernels in candidate runs, matched with the same kernels of the step in baseline runs."""

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
class RunTimes:
    """The times of one run; arrays have shape (steps, kernels).

    Attributes
    ----------
    taken : ndarray of float64
        The time of the kernels of each step.
    expected : ndarray of float64
        The sum of the reference times of the same occurrences; 0 if the step has none.
    """

    taken: Floats
    expected: Floats

    def ratios(self, kernels: Ints) -> tuple[Ints, Floats]:
        """Return the steps that have some of these kernels, and the taken over the expected time of each."""
        taken, expected = self.taken[:, kernels].sum(axis=1), self.expected[:, kernels].sum(axis=1)
        steps = np.flatnonzero(expected > 0)
        return steps, taken[steps] / expected[steps]


@dataclass(frozen=True)
class MatchedTimes:
    """Selected kernels of the candidate runs, and the same occurrences in the baseline runs.

    The reference time of an occurrence is its median over all steps of the baseline. In the baseline an
    occurrence has the weight of its selected launches in the candidate. Arrays have shape (kernels,).

    Attributes
    ----------
    candidate, baseline : list of RunTimes
        One element per run.
    candidate_count, baseline_count : ndarray of int64
        The number of matched launches.
    expected : ndarray of float64
        The sum of the reference times of the candidate's matched launches, in ns.
    unmatched : ndarray of int64
        The number of selected launches whose occurrence the baseline lacks.
    """

    candidate: list[RunTimes]
    baseline: list[RunTimes]
    candidate_count: Ints
    baseline_count: Ints
    expected: Floats
    unmatched: Ints


class OccurrenceMatcher:
    """Matches the occurrences of candidate and baseline runs.

    Parameters
    ----------
    candidate, baseline : sequence of Occurrences
        One element per run, all found with the same
        `hpcprof.analysis.slowdown.step_occurrences.KernelNumbering`.
    kernels : int
        The number of numbered kernels.
    """

    def __init__(
        self, candidate: Sequence[Occurrences], baseline: Sequence[Occurrences], kernels: int
    ) -> None:
        self._candidate, self._baseline, self._kernels = candidate, baseline, kernels
        every = np.concatenate([one.key for one in (*candidate, *baseline)])
        keys, number = numbered_rows(*every.T)
        self._kernel = keys[:, 0]
        edges = np.cumsum([len(one.key) for one in (*candidate, *baseline)])[:-1]
        parts = np.split(number, edges)
        self._candidate_keys, self._baseline_keys = parts[: len(candidate)], parts[len(candidate) :]
        self._reference = np.full(len(keys), np.nan)
        at_baseline = np.concatenate(self._baseline_keys)
        if len(at_baseline):
            summary = summarize(at_baseline, np.concatenate([one.duration for one in baseline]))
            self._reference[summary.group] = summary.median

    def matched(self, masks: Sequence[NDArray[np.bool_]]) -> MatchedTimes:
        """Match the launches of the candidate that the masks select, one mask per run."""
        known = ~np.isnan(self._reference)
        reference = np.where(known, self._reference, 0.0)
        chosen = [mask.astype(np.int64) for mask in masks]
        weight = np.zeros(len(known), np.int64)
        for key, mask in zip(self._candidate_keys, chosen, strict=True):
            weight += np.bincount(key, mask, len(known)).astype(np.int64)
        matched = np.where(known, weight, 0)
        baseline = np.bincount(np.concatenate(self._baseline_keys), minlength=len(known)) * (matched > 0)
        return MatchedTimes(
            candidate=[
                self._times(one, key, mask * known[key], reference)
                for one, key, mask in zip(self._candidate, self._candidate_keys, chosen, strict=True)
            ],
            baseline=[
                self._times(one, key, matched[key], reference)
                for one, key in zip(self._baseline, self._baseline_keys, strict=True)
            ],
            candidate_count=self._sum(matched).astype(np.int64),
            baseline_count=self._sum(baseline).astype(np.int64),
            expected=self._sum(matched * reference),
            unmatched=self._sum(weight - matched).astype(np.int64),
        )

    def _sum(self, values: Ints | Floats) -> Floats:
        """Add up the values of the occurrences of each kernel."""
        return _sums(self._kernel, values, self._kernels)

    def _times(self, one: Occurrences, key: Ints, weight: Ints, reference: Floats) -> RunTimes:
        steps = int(one.step.max(initial=-1)) + 1
        place = one.step * self._kernels + self._kernel[key]
        shape = (steps, self._kernels)
        taken, expected = (
            _sums(place, weight * values, steps * self._kernels).reshape(shape)
            for values in (one.duration, reference[key])
        )
        return RunTimes(taken, expected)


def _sums(group: Ints, values: Ints | Floats, groups: int) -> Floats:
    """Add up the values of each group as floats; bincount returns integers for an empty input."""
    return np.bincount(group, values, groups).astype(np.float64)
