"""The steps of a run that a figure counts: the rules are declared with each analysis, and counted once.

It imports neither numpy nor pandas: declarations need it.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import msgspec

from hpcprof.common.units import counted


class StepRule(Enum):
    """A rule that leaves steps of a run out of a figure, with its words for them."""

    COMMON = "that only some ranks have"
    ENDED = "whose end is unknown"
    USUAL = "that took long once"
    KNOWN_LATENESS = "in which lateness is unknown"
    REPLAYED = "outside the replay"


COUNTED = frozenset({StepRule.COMMON, StepRule.ENDED, StepRule.USUAL})
"""The rules of the elapsed time per step and its account (`hpcprof.analysis.steps.run_step.step_kinds`)."""


class StepSet(msgspec.Struct, frozen=True):
    """The steps that a figure counts, among ``total`` steps of the run; ``left_out`` has some by rule."""

    total: int
    left_out: tuple[tuple[StepRule, int], ...] = ()

    @property
    def count(self) -> int:
        """The number of steps that count."""
        return self.total - sum(number for _, number in self.left_out)

    @property
    def short(self) -> str:
        """The set in words without the reasons: ``5 of 6 steps``."""
        return f"{f'{self.count:,} of ' if self.left_out else ''}{counted(self.total, 'step')}"

    def __str__(self) -> str:
        """Return the set in words, equal for equal sets: ``5 of 6 steps (without 1 that took long once)``."""
        reason = " and ".join(f"{number:,} {rule.value}" for rule, number in self.left_out)
        return f"{self.short} (without {reason})" if reason else self.short


def step_set(
    kind: Mapping[str, Any],
    rules: frozenset[StepRule] = COUNTED,
    total: int = 0,
    counts: Mapping[StepRule, int] = MappingProxyType({}),
) -> StepSet:
    """Return the steps that some rules leave of a run, or of a kind of them: a row of ``step_kinds``.

    ``total`` is the number of steps that any rank has, and ``counts`` has the number of steps that count by
    some more rules. Stores of earlier versions do not tell which steps have no end or took long once.
    """
    common, ended = kind["steps"], kind.get("counted_steps")
    left_out = {StepRule.COMMON: max(0, total - common)}
    if ended is not None:
        left_out |= {StepRule.ENDED: common - ended - kind["once_steps"], StepRule.USUAL: kind["once_steps"]}
    total = max(total, common)
    left_out |= {rule: max(0, total - count) for rule, count in counts.items()}
    return StepSet(
        total, tuple((rule, left_out[rule]) for rule in StepRule if rule in rules and left_out.get(rule))
    )
