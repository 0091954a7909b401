"""The table of a study that validates explanations: the cost of each fault, and the first finding.

Costs are measured by unprofiled blocks of steps with and without the fault.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from hpcprof.analysis.explain.cause import Trait, has_trait
from hpcprof.analysis.explain.explanation import MIN_ESTIMATE_PCT, Explanation, Finding
from hpcprof.analysis.framework.declaration import Column, columns
from hpcprof.analysis.framework.outcome import Row
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, welch_interval
from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import counted
from hpcprof.workloads.ddp.faults import BLOCKS, InjectedFault, block_of, in_block_with_fault, parse_faults
from hpcprof.workloads.schema import RankResult

COLUMNS: tuple[Column, ...] = columns(
    "fault:text clean_step_ns cost_ns cost_low_ns cost_high_ns expected:text expected_range:text "
    "expected_ranks:text first_finding:text finding_range:text finding_ranks:text saving_ns saving_low_ns "
    "saving_high_ns error_ns right:text"
)
"""The columns of the table, one row for each fault."""

NO_CAUSE = "none"


@dataclass(frozen=True)
class Validation:
    """One fault: its true cost and the explanation of a run with it; None if there is none."""

    injected: InjectedFault
    cost: "Cost"
    explanation: Explanation | None
    ranks: int

    @property
    def first(self) -> Finding | None:
        """The first finding that is shown and has an estimate."""
        findings = self.explanation.shown() if self.explanation else ()
        return next((finding for finding in findings if finding.saving_ns is not None), None)

    @property
    def certain(self) -> bool | None:
        """True if the fault costs enough to be found; None if its interval includes the limit."""
        least = self.cost.clean_ns * MIN_ESTIMATE_PCT / 100
        if self.injected.fault.cause is None or self.cost.high_ns < least:
            return False
        return True if self.cost.low_ns >= least else None

    @property
    def named(self) -> bool:
        """True if the first finding has the cause, the range and the ranks of the fault.

        Another cause may explain single long steps.
        """
        fault, finding = self.injected.fault, self.first
        if finding is None or fault.cause is None:
            return False
        causes = [finding.cause]
        if has_trait(fault.cause, Trait.SINGLE_STEPS):
            causes += [alternative.cause for alternative in finding.alternatives]
        if fault.cause not in causes:
            return False
        ranks = self.injected.ranks or tuple(range(self.ranks))
        parts = re.split(r"\s*[/>]\s*", finding.where)
        return sorted(finding.ranks) == list(ranks) and (not fault.where or fault.where in parts)

    @property
    def right(self) -> bool:
        """True if an expensive fault is named, and a cheap one has no finding; either will do in between."""
        if self.explanation is None:
            return False
        quiet = self.first is None
        return self.named if self.certain else quiet if self.certain is False else quiet or self.named

    def row(self) -> Row:
        """Return the row of the table."""
        fault, finding, cost = self.injected.fault, self.first, self.cost
        expected = fault.cause is not None and self.certain is not False
        saving = finding.saving_ns if finding else None
        return {
            "fault": self.injected.text,
            "clean_step_ns": cost.clean_ns,
            "cost_ns": cost.cost_ns,
            "cost_low_ns": cost.low_ns,
            "cost_high_ns": cost.high_ns,
            "expected": fault.cause if expected else NO_CAUSE,
            "expected_range": fault.where if expected else "",
            "expected_ranks": _rank_text(self.injected.ranks, self.ranks) if expected else "",
            "first_finding": finding.cause if finding else NO_CAUSE if self.explanation else "no explanation",
            "finding_range": finding.where if finding else "",
            "finding_ranks": _rank_text(finding.ranks, self.ranks) if finding else "",
            "saving_ns": saving,
            "saving_low_ns": finding.saving_low_ns if finding else None,
            "saving_high_ns": finding.saving_high_ns if finding else None,
            "error_ns": saving - cost.cost_ns if saving is not None and self.named else None,
            "right": "yes" if self.right else "no",
        }


def _rank_text(ranks: Sequence[int], world_size: int) -> str:
    """Return ranks as text: ``all`` for none in particular."""
    if not ranks or len(ranks) == world_size:
        return "all"
    return ",".join(map(str, sorted(ranks)))


def summary(cases: Sequence[Validation]) -> str:
    """Return the sentence under the table: how many first findings are right, and the usual error."""
    right = sum(validation.right for validation in cases)
    text = f"{right} of {counted(len(cases), 'first finding')} {'is' if len(cases) == 1 else 'are'} right"
    rows = [validation.row() for validation in cases]
    named = [row for row in rows if row["error_ns"] is not None and row["cost_ns"] > 0]
    errors = [abs(row["error_ns"]) / row["cost_ns"] for row in named]
    if errors:
        text += f"; the predicted savings are off by {100 * median(errors):.0f} % (median of {len(errors)})"
    return f"{text}."


_SETTLING_DIVISOR = 4
"""Divisor of the steps of a block that gives its first ones, which may run work of the block before."""


@dataclass(frozen=True)
class Cost:
    """The cost of an injected fault in a step, with its 95 % interval, and the time of a step without it."""

    clean_ns: int
    cost_ns: int
    low_ns: int
    high_ns: int


def fault_costs(result: RankResult) -> dict[str, Cost]:
    """Return the cost of each fault of a run with ``--fault-blocks``, by the fault's text.

    A block of steps counts by its median, or by its mean where the fault acts in some steps only. The cost is
    the difference of the means of the blocks with and without the fault, and its interval Welch's. ``result``
    is the result of a rank; a step takes the time of its slowest rank.
    """
    faults = parse_faults(str(_parameter(result, "fault") or ""))
    if not faults or not _parameter(result, "fault_blocks") or not result.latency_ns:
        raise HpcprofError("the run has no blocks of steps with and without a fault.")
    epochs = list(_epochs(result))
    costs = {}
    for number, injected in enumerate(faults):
        block_times = [
            time for epoch in epochs[number :: len(faults)] for time in _blocks(epoch, injected.period)
        ]
        with_fault = np.array([time for has_fault, time in block_times if has_fault])
        without_fault = np.array([time for has_fault, time in block_times if not has_fault])
        low, high = welch_interval(with_fault, without_fault, CONFIDENCE)
        cost = float(with_fault.mean() - without_fault.mean())
        costs[injected.text] = Cost(round(float(without_fault.mean())), round(cost), round(low), round(high))
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
            yield injected, float(median(epoch[row] for row in rows[len(rows) // _SETTLING_DIVISOR :]))
        else:
            yield injected, float(mean(epoch[row] for row in rows[len(rows) % period :]))
