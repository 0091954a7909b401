"""The differences between runs other than their times."""

import re
from collections import ChainMap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hpcprof.analysis.comparison.kernel_difference import begun_steps
from hpcprof.analysis.framework.run_data import ENVIRONMENT, RunData
from hpcprof.common.units import counted, listed

SIDE_NAMES = ("the runs", "the baseline runs")
"""The sides of an analysis with ``--against``."""

_MAX_SHOWN = 3
_MAX_KERNELS_RATIO = 3.0
"""Maximum ratio of the kernels per step, or of their time, of two sides with steps of different names."""

_NUMBER = re.compile(r"\d+")
_NOT_SET = "not set"


@dataclass(frozen=True)
class Difference:
    """A fact in which two sides differ, with its distinct values on both."""

    name: str
    a: tuple[str, ...]
    b: tuple[str, ...]

    def in_words(self, a: str, b: str) -> str:
        """Return the values in words, with the names of both sides."""
        return f"{listed(self.a, _MAX_SHOWN, ' or ')} in {a}, {listed(self.b, _MAX_SHOWN, ' or ')} in {b}"


def differences(
    a: Sequence[RunData], b: Sequence[RunData], expected: Collection[str] = ()
) -> list[Difference]:
    """Return the known facts and parameters in which two sides of runs differ.

    ``expected`` are the names of facts in which the sides differ on purpose.
    """
    difference = [
        Difference(name, tuple(_values(a, name)), tuple(_values(b, name)))
        for name in _names(a, b)
        if name not in expected
    ]
    return [fact for fact in difference if fact.a and fact.b and fact.a != fact.b]


def describe_differences(
    a: Sequence[RunData],
    b: Sequence[RunData],
    labels: tuple[str, str] = ("A", "B"),
    expected: Collection[str] = (),
) -> list[str]:
    """Return sentences about the differences between two sides of runs, and within a side.

    The runs of a side should be repeats of one job. An unknown fact does not differ from anything.
    ``expected`` are the names of facts in which the sides differ on purpose.
    """
    names = _names(a, b)
    sentences = []
    for label, side in zip(labels, (a, b), strict=True):
        mixed = [name for name in names if len(_values(side, name)) > 1]
        if mixed:
            sentences.append(f"the repeats in {label} differ in {', '.join(mixed)}")
    for difference in differences(a, b, expected):
        sentences.append(f"{difference.name} differs: {difference.in_words(*labels)}")
    return sentences


def _names(a: Sequence[RunData], b: Sequence[RunData]) -> list[str]:
    return list(dict.fromkeys(name for run in (*a, *b) for name in _description(run)))


def _description(run: RunData) -> dict[str, object]:
    return {**run.facts, **{f"parameter {key}": value for key, value in run.parameters.items()}}


def _values(side: Sequence[RunData], name: str) -> list[str]:
    """Return the distinct known values of a fact."""
    values = (_value(_description(run), name) for run in side)
    return sorted({str(value) for value in values if value is not None})


def _value(described: dict[str, object], name: str) -> object:
    """Return the value of a fact; a variable that a recorded environment lacks is not set."""
    if name.startswith(ENVIRONMENT) and any(other.startswith(ENVIRONMENT) for other in described):
        return described.get(name, _NOT_SET)
    return described.get(name)


def unlike_steps(a: Sequence[RunData], b: Sequence[RunData]) -> str:
    """Return a sentence if the steps of two sides are different parts of the program; empty otherwise.

    Such steps have different names, and one kind has more than `_MAX_KERNELS_RATIO` times the kernels and
    their time. With a CUDA graph in place of its kernels, a step has fewer that take as long.
    """
    names, steps = zip(*(_step(side) for side in (a, b)), strict=True)
    less, more = sorted(steps)
    unlike = all(0 < _MAX_KERNELS_RATIO * low < high for low, high in zip(less, more, strict=True))
    if not all(names) or names[0] & names[1] or not unlike:
        return ""
    words = (
        f"{listed(sorted(name), 1)} with {counted(round(kernels), 'kernel')} in {side}"
        for name, (kernels, _), side in zip(names, steps, ("A", "B"), strict=True)
    )
    return (
        f"a step is {' and '.join(words)}, so whole profiles are compared (collect --step-range NAME chooses "
        "the step)"
    )


def _step(side: Sequence[RunData]) -> tuple[set[str], tuple[float, float]]:
    """Return the names of the steps of runs without numbers, and a step's kernels and their time in ns."""
    ranges = [run.tables["step_ranges"] for run in side]
    names = {_NUMBER.sub("N", name) for rows in ranges for name in rows["range"][rows["chosen"] == 1]}
    steps = max(1, sum(int(begun_steps(run.tables).sum()) for run in side))
    count, time = (sum(run.tables["kernels"][key].sum() for run in side) for key in ("instances", "total_ns"))
    return names, (count / steps, time / steps)


def without_steps(run: RunData) -> RunData:
    """Return a run as if its profiles had no steps."""
    empty = {name: run.tables[name].iloc[:0] for name in _OF_STEPS}
    return replace(run, tables=ChainMap(empty, run.tables))  # type: ignore[arg-type]


_OF_STEPS = ("steps_summary", "step_times", "step_kinds", "step_account", "phases", "pop")
