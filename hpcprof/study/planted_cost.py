"""Real costs of injected faults of the workload ddp, by unprofiled blocks of steps with and without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, welch_interval
from hpcprof.common.errors import HpcprofError
from hpcprof.workloads.ddp.plants import BLOCKS, block_of, in_planted_block, parse_plants
from hpcprof.workloads.schema import RankResult

_SETTLING = 4
"""One step in so many, at the start of a block, still has work of the block before it in its queue."""


@dataclass(frozen=True)
class Cost:
    """The cost of an injected fault in a step, with its 95 % interval, and the time of a step without it."""

    clean_ns: int
    cost_ns: int
    low_ns: int
    high_ns: int


def planted_costs(result: RankResult) -> dict[str, Cost]:
    """Return the cost of each plant of a run with ``--plant-blocks``, by the plant's text.

    Of each block of steps counts the median, or the mean where the plant acts in some steps only. The cost is
    the difference of the means of the blocks with and without the plant, and its interval Welch's.

    Parameters
    ----------
    result : RankResult
        The results of a rank; the times of a step are those of the slowest rank.

    Raises
    ------
    HpcprofError
        If the run has no such blocks.
    """
    plants = parse_plants(str(result.parameters.get("plant", "")))
    if not plants or not result.parameters.get("plant_blocks") or not result.latency_ns:
        raise HpcprofError("the run has no blocks of steps with and without a plant.")
    epochs = list(_epochs(result))
    costs = {}
    for number, planted in enumerate(plants):
        figures = [
            figure for epoch in epochs[number :: len(plants)] for figure in _blocks(epoch, planted.period)
        ]
        with_it = np.array([figure for on, figure in figures if on])
        without = np.array([figure for on, figure in figures if not on])
        low, high = welch_interval(with_it, without, CONFIDENCE)
        cost = float(with_it.mean() - without.mean())
        costs[planted.text] = Cost(round(float(without.mean())), round(cost), round(low), round(high))
    return costs


def _epochs(result: RankResult) -> Iterator[Sequence[int]]:
    """Yield the times of the steps of each measured epoch."""
    times = result.latency_ns or []
    parameters = result.parameters
    total, warmup = int(parameters["epochs"] or 0), parameters["warmup_epochs"]
    measured = total - (total - 1 if warmup is None else int(warmup))
    steps = len(times) // measured
    for epoch in range(measured):
        yield times[epoch * steps : (epoch + 1) * steps]


def _blocks(epoch: Sequence[int], period: int) -> Iterator[tuple[bool, float]]:
    """Yield for each block of an epoch whether it has the plant, and the time of its step.

    A plant acts in every ``period``-th step of a block. Only whole periods count, the last ones of the block.
    """
    steps = len(epoch)
    for block in range(BLOCKS):
        rows = [row for row in range(steps) if block_of(row, steps) == block]
        planted = in_planted_block(rows[0], steps)
        if period == 1:
            yield planted, float(median(epoch[row] for row in rows[len(rows) // _SETTLING :]))
        else:
            yield planted, float(mean(epoch[row] for row in rows[len(rows) % period :]))
