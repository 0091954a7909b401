"""Real costs of injected faults of the workload ddp, by unprofiled blocks of steps with and without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, welch_interval
from hpcprof.common.errors import HpcprofError
from hpcprof.workloads.ddp.faults import BLOCKS, block_of, in_block_with_fault, parse_faults
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


def fault_costs(result: RankResult) -> dict[str, Cost]:
    """Return the cost of each fault of a run with ``--fault-blocks``, by the fault's text.

    Of each block of steps counts the median, or the mean where the fault acts in some steps only. The cost is
    the difference of the means of the blocks with and without the fault, and its interval Welch's.

    Parameters
    ----------
    result : RankResult
        The results of a rank; the times of a step are those of the slowest rank.

    Raises
    ------
    HpcprofError
        If the run has no such blocks.
    """
    faults = parse_faults(str(_parameter(result, "fault") or ""))
    if not faults or not _parameter(result, "fault_blocks") or not result.latency_ns:
        raise HpcprofError("the run has no blocks of steps with and without a fault.")
    epochs = list(_epochs(result))
    costs = {}
    for number, injected in enumerate(faults):
        figures = [
            figure for epoch in epochs[number :: len(faults)] for figure in _blocks(epoch, injected.period)
        ]
        with_it = np.array([figure for on, figure in figures if on])
        without = np.array([figure for on, figure in figures if not on])
        low, high = welch_interval(with_it, without, CONFIDENCE)
        cost = float(with_it.mean() - without.mean())
        costs[injected.text] = Cost(round(float(without.mean())), round(cost), round(low), round(high))
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


def _parameter(result: RankResult, name: str) -> object:
    """Return a parameter, also of a result of 0.2, which calls a fault a plant."""
    parameters = result.parameters
    return parameters.get(name, parameters.get(name.replace("fault", "plant")))


def _blocks(epoch: Sequence[int], period: int) -> Iterator[tuple[bool, float]]:
    """Yield for each block of an epoch whether it has the fault, and the time of its step.

    A fault acts in every ``period``-th step of a block. Only whole periods count, the last ones of the block.
    """
    steps = len(epoch)
    for block in range(BLOCKS):
        rows = [row for row in range(steps) if block_of(row, steps) == block]
        injected = in_block_with_fault(rows[0], steps)
        if period == 1:
            yield injected, float(median(epoch[row] for row in rows[len(rows) // _SETTLING :]))
        else:
            yield injected, float(mean(epoch[row] for row in rows[len(rows) % period :]))
