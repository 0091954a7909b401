"""The table of a study that validates explanations: what each fault costs, and what was found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hpcprof.analysis.explain.explanation import LEAST_ESTIMATE_PCT, Explanation, Finding
from hpcprof.analysis.framework.declaration import Column, columns
from hpcprof.common.units import counted
from hpcprof.results.analysis_table import Row
from hpcprof.study.fault_cost import Cost
from hpcprof.workloads.ddp.faults import InjectedFault

COLUMNS: tuple[Column, ...] = columns(
    "fault:text clean_step_ns cost_ns cost_low_ns cost_high_ns expected:text expected_range:text "
    "expected_ranks:text first_finding:text finding_range:text finding_ranks:text saving_ns saving_low_ns "
    "saving_high_ns error_ns right:text"
)
"""The columns of the table, one row for each fault."""

NOTHING = "none"


@dataclass(frozen=True)
class Validation:
    """One fault: its true cost and the explanation of a run with it; None if there is none."""

    injected: InjectedFault
    cost: Cost
    explanation: Explanation | None
    ranks: int

    @property
    def first(self) -> Finding | None:
        """The first finding that is shown and has an estimate."""
        shown = self.explanation.shown() if self.explanation else ()
        return next((finding for finding in shown if finding.saving_ns is not None), None)

    @property
    def certain(self) -> bool | None:
        """True if the fault costs enough to be found; None if its interval does not tell."""
        least = self.cost.clean_ns * LEAST_ESTIMATE_PCT / 100
        if self.injected.fault.cause is None or self.cost.high_ns < least:
            return False
        return True if self.cost.low_ns >= least else None

    @property
    def named(self) -> bool:
        """True if the first finding has the cause, the range and the ranks of the fault."""
        fault, found = self.injected.fault, self.first
        if found is None or found.cause.value != fault.cause:
            return False
        ranks = self.injected.ranks or tuple(range(self.ranks))
        parts = re.split(r"\s*[/>]\s*", found.where)
        return sorted(found.ranks) == list(ranks) and (not fault.where or fault.where in parts)

    @property
    def right(self) -> bool:
        """True if the fault is named if it costs enough, and nothing is if it does not."""
        if self.explanation is None:
            return False
        quiet = self.first is None
        return self.named if self.certain else quiet if self.certain is False else quiet or self.named

    def row(self) -> Row:
        """Return the row of the table."""
        fault, found, cost = self.injected.fault, self.first, self.cost
        expected = fault.cause is not None and self.certain is not False
        saving = found.saving_ns if found else None
        return {
            "fault": self.injected.text,
            "clean_step_ns": cost.clean_ns,
            "cost_ns": cost.cost_ns,
            "cost_low_ns": cost.low_ns,
            "cost_high_ns": cost.high_ns,
            "expected": fault.cause if expected else NOTHING,
            "expected_range": fault.where if expected else "",
            "expected_ranks": _listed(self.injected.ranks, self.ranks) if expected else "",
            "first_finding": found.cause.value
            if found
            else NOTHING
            if self.explanation
            else "no explanation",
            "finding_range": found.where if found else "",
            "finding_ranks": _listed(found.ranks, self.ranks) if found else "",
            "saving_ns": saving,
            "saving_low_ns": found.saving_low_ns if found else None,
            "saving_high_ns": found.saving_high_ns if found else None,
            "error_ns": saving - cost.cost_ns if saving is not None and self.named else None,
            "right": "yes" if self.right else "no",
        }


def _listed(ranks: Sequence[int], world_size: int) -> str:
    """Return ranks as text: ``all`` for none in particular."""
    if not ranks or len(ranks) == world_size:
        return "all"
    return ",".join(map(str, sorted(ranks)))


def summary(found: Sequence[Validation]) -> str:
    """Return the sentence under the table: how many first findings are right, and the usual error."""
    right = sum(one.right for one in found)
    text = f"{right} of {counted(len(found), 'first finding')} {'is' if len(found) == 1 else 'are'} right"
    rows = [one.row() for one in found]
    named = [row for row in rows if row["error_ns"] is not None and row["cost_ns"] > 0]
    errors = [abs(row["error_ns"]) / row["cost_ns"] for row in named]
    if errors:
        text += f"; the predicted savings are off by {100 * median(errors):.0f} % (median of {len(errors)})"
    return f"{text}."
