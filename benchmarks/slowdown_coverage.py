"""Coverage of the intervals of ``slowdown``, ``slowdown_pairs`` and ``slowdown_by_overlap``.

Run it as ``python benchmarks/slowdown_coverage.py [TRIALS] [within|against|noise]``; all by default.

Simulates runs whose kernels take log-normal times, of which a part is common to the kernels of a step: the
intraclass correlation (ICC) is that part's share of the variance of the logarithm. Real profiles have 0.03 to
0.15. Six kernels are launched 1 to 30 times a step, and communication overlaps a share of the launches. The
tables have the coverage in percent of the kernels' intervals and of the other rows'; nominal are 95.

``within`` is one run, and the other row its total. ``against`` is a run and a baseline of as many steps in
which nothing communicates; the other rows are the total, the controls and the shares of all families. Which
launches a total consists of is chance, so its truth is that of the same kernels in runs of 10,000 steps.

``noise`` is both for common factors of each side that vary in other ways from step to step
(`benchmarks.noise`) at an ICC of 0.64, with the 95 % interval of the simulation from 20 parts of the trials.

By default there are 1000 trials in each case. The seed is fixed, so the same number of trials always prints
the same table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.noise import KINDS  # noqa: E402
from hpcprof.analysis.slowdown import against_baseline, by_overlap  # noqa: E402
from hpcprof.analysis.slowdown.against_baseline import CONTROL  # noqa: E402
from hpcprof.analysis.slowdown.kernel_instances import KernelInstances  # noqa: E402
from hpcprof.analysis.slowdown.matched_times import Occurrences, PairedRank, StepRatios, slowdown_columns  # noqa: E402  # noqa: E402
from hpcprof.analysis.slowdown.within_run import TOTAL, compare_kernels  # noqa: E402
from hpcprof.analysis.summaries.kernels import KernelShapes  # noqa: E402
from hpcprof.profiles.columns.unique import (  # noqa: E402
    numbered_rows,
    object_array,
    position_in_group,
)

STEPS = (5, 10, 40)
CORRELATIONS = (0.0, 0.1, 0.25, 0.64)
SEED = 14
_MANY_STEPS = 10_000
_LAUNCHES = np.array([1, 2, 4, 8, 16, 30])
_ALONE_NS = np.array([90_000, 60_000, 30_000, 20_000, 10_000, 5_000])
_SLOWDOWN = np.array([1.0, 1.05, 1.1, 1.2, 1.4, 1.8])
_DEVIATION = 0.1
_NAMES = [f"kernel {i}" for i in range(len(_LAUNCHES))]


class Common(Enum):
    """Launches that share a factor."""

    STEP = "all launches of a step"
    SIDE = "each side of a step"
    KERNEL = "each kernel on each side"
    WHOLE = "all launches; whole steps overlap"
    UNEVEN = "each side; the share varies"


@dataclass(frozen=True)
class Case:
    """One simulated kind of run.

    ``overlapped`` is the share of the launches that communication overlaps, and ``noise`` names the series of
    the common factor (`benchmarks.noise`).
    """

    steps: int
    common: Common
    overlapped: float
    correlation: float
    noise: str = "normal"


@dataclass
class Coverage:
    """Counts of intervals, and of those that held the truth."""

    intervals: int = 0
    hits: int = 0

    def add(self, row: dict[str, Any], truth: float) -> None:
        """Count the interval of a row; rows without one do not count."""
        low, high = row["ci_low"], row["ci_high"]
        if low is not None and high is not None:
            self.intervals += 1
            self.hits += low <= truth <= high

    @property
    def percent(self) -> float:
        """The coverage in percent."""
        return 100 * self.hits / self.intervals if self.intervals else float("nan")


def _overlaps(case: Case, step: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.bool_]:
    share = np.full(case.steps, case.overlapped)
    if case.common is Common.WHOLE:
        count = min(max(round(case.overlapped * case.steps), 2), case.steps - 2)
        share = (random.permutation(case.steps) < count).astype(float)
    elif case.common is Common.UNEVEN:
        share = random.beta(2 * case.overlapped, 2 * (1 - case.overlapped), case.steps)
    overlapped: NDArray[np.bool_] = random.random(len(step)) < share[step]
    return overlapped


def simulate(case: Case, random: np.random.Generator) -> KernelInstances:
    """Return the kernels of one simulated run."""
    kernel = np.tile(np.repeat(np.arange(len(_LAUNCHES)), _LAUNCHES), case.steps)
    step = np.repeat(np.arange(case.steps), _LAUNCHES.sum())
    overlapped = _overlaps(case, step, random)
    side = overlapped.astype(np.int64)
    shared = KINDS[case.noise]((len(_LAUNCHES), 2, case.steps), random).T
    by_side = 0 if case.common in (Common.STEP, Common.WHOLE) else side
    by_kernel = kernel if case.common is Common.KERNEL else 0
    deviation = shared[step, by_side, by_kernel]
    own = random.normal(size=len(step))
    logarithm = np.sqrt(case.correlation) * deviation + np.sqrt(1 - case.correlation) * own
    duration = _ALONE_NS[kernel] * np.where(overlapped, _SLOWDOWN[kernel], 1) * np.exp(_DEVIATION * logarithm)
    duration = np.rint(duration).astype(np.int64)
    zero = np.zeros_like(step)
    blank = object_array([""] * len(_NAMES))
    return KernelInstances(
        shapes=KernelShapes(object_array(_NAMES), blank, blank),
        shape=kernel,
        phase=zero,
        step=step,
        duration=duration,
        covered=np.where(overlapped, duration, 0),
        alone=~overlapped,
        overlapped=overlapped,
        process=zero,
        launched=zero,
        phases=("iteration",),
    )


def occurrences(case: Case, communicates: bool, random: np.random.Generator) -> Occurrences:
    """Return the kernels of one simulated run as comparisons of runs see them."""
    placed = simulate(case, random)
    alone = placed.alone | np.full(len(placed.step), not communicates)
    slowdown = np.where(placed.overlapped, _SLOWDOWN[placed.shape], 1)
    taken = placed.duration if communicates else np.rint(placed.duration / slowdown).astype(np.int64)
    _, group = numbered_rows(placed.step, placed.shape, placed.phase)
    return Occurrences(
        key=np.column_stack((placed.shape, placed.phase, position_in_group(group))),
        step=placed.step,
        duration=taken,
        covered=np.where(alone, 0, taken),
        alone=alone,
        overlapped=~alone,
    )


def paired(case: Case, random: np.random.Generator) -> PairedRank:
    """Return one simulated run beside one without communication."""
    candidate, baseline = ([occurrences(case, communicates, random)] for communicates in (True, False))
    return PairedRank(0, candidate, baseline, tuple((name, "", "") for name in _NAMES))


@cache
def _of_many_steps(case: Case) -> PairedRank:
    return paired(replace(case, steps=_MANY_STEPS), np.random.default_rng(SEED))


@cache
def _total_of_many_steps(case: Case, kernels: tuple[int, ...]) -> float:
    """Return the slowdown of some kernels together; it depends on which have enough launches."""
    pair = _of_many_steps(case)
    control = StepRatios.of(pair.alone, np.arange(len(_NAMES)))
    slowdown: float = slowdown_columns(pair.overlapped, np.array(kernels), control)["slowdown"]
    return slowdown


def coverage_against(case: Case, trials: int, part: int = 0) -> tuple[Coverage, Coverage]:
    """Return the coverage of the kernels' intervals against a baseline, and of those of totals and shares."""
    random = np.random.default_rng([SEED, part])
    kernels, others = Coverage(), Coverage()
    kind = replace(case, steps=_MANY_STEPS)
    for _ in range(trials):
        pair = paired(case, random)
        rows = {row["name"]: row for row in against_baseline.compare_rank(pair).rows}
        found = tuple(i for i, name in enumerate(_NAMES) if name in rows)
        for i in found:
            kernels.add(rows[_NAMES[i]], _SLOWDOWN[i])
        if found:
            others.add(rows[TOTAL], _total_of_many_steps(kind, found))
            others.add(rows[CONTROL], 1.0)
        every = _total_of_many_steps(kind, tuple(range(len(_NAMES))))
        for row in by_overlap.compare_rank(pair):
            if row["family"] == by_overlap.ALL_FAMILIES:
                others.add(row, every if row["covered"] == by_overlap.COVERED else 1.0)
    return kernels, others


def coverage(case: Case, trials: int, part: int = 0) -> tuple[Coverage, Coverage]:
    """Return the coverage of the kernels' intervals, and of the total's."""
    random = np.random.default_rng([SEED, part])
    kernels, total = Coverage(), Coverage()
    for _ in range(trials):
        rows = compare_kernels(simulate(case, random))
        expected = taken = 0.0
        for row in rows[1:]:
            kernel = _NAMES.index(row["name"])
            kernels.add(row, _SLOWDOWN[kernel])
            expected += row["overlapped_n"] * _ALONE_NS[kernel]
            taken += row["overlapped_n"] * _ALONE_NS[kernel] * _SLOWDOWN[kernel]
        if rows:
            total.add(rows[0], taken / expected)
    return kernels, total


def cases() -> Iterator[tuple[int, Common, float]]:
    """Yield the steps, what is common, and the overlapped share of each row of the table."""
    for steps in STEPS:
        for common in Common:
            for overlapped in (0.1, 0.3, 0.5) if common is Common.SIDE else (0.3,):
                yield steps, common, overlapped


_PARTS = 20
_NOISE = ("normal", "lognormal", "heavy tails", "outliers", "AR(0.5)", "AR(0.8)", "slow and fast")
_MEASURES = {"within": coverage, "against": coverage_against}


def noise_table(trials: int) -> None:
    """Print the coverage for each kind of noise, with the interval of the simulation."""
    print(
        f"coverage in percent of kernels' intervals / the other rows', {trials // _PARTS * _PARTS} trials\n"
    )
    print("| steps | common factor | within | against |\n|---|---|---|---|")
    for steps in (5, 10, 20, 40):
        for noise in _NOISE:
            cells = []
            for measure in _MEASURES.values():
                case = Case(steps, Common.SIDE, 0.3, 0.64, noise)
                parts = [measure(case, trials // _PARTS, part) for part in range(_PARTS)]
                cells.append(" / ".join(_with_interval(rows) for rows in zip(*parts, strict=True)))
            print(f"| {steps} | {noise} | {cells[0]} | {cells[1]} |", flush=True)


def _with_interval(parts: Sequence[Coverage]) -> str:
    """Return the coverage of all parts, with its interval from their differences."""
    half = 2.09 * np.std([one.percent for one in parts], ddof=1) / np.sqrt(len(parts))
    return f"{100 * sum(one.hits for one in parts) / sum(one.intervals for one in parts):.1f} ± {half:.1f}"


def main() -> None:
    """Simulate all cases and print the tables."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    chosen = sys.argv[2:] or [*_MEASURES, "noise"]
    for name in chosen:
        if name == "noise":
            noise_table(trials)
            continue
        print(f"{name}: coverage in percent of kernels' intervals / the other rows', {trials} trials")
        heads = "".join(f"{f'ICC {correlation}':>14}" for correlation in CORRELATIONS)
        print(f"{'steps':>5} {'overlapped':>10}  {'common factor':<34}{heads}")
        for steps, common, overlapped in cases():
            line = f"{steps:5} {overlapped:10.0%}  {common.value:<34}"
            for correlation in CORRELATIONS:
                kernels, others = _MEASURES[name](Case(steps, common, overlapped, correlation), trials)
                line += f"{f'{kernels.percent:.1f} / {others.percent:.1f}':>14}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
