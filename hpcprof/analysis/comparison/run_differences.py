"""The differences between runs other than their times."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcprof.analysis.framework.run_data import RunData

SIDE_NAMES = ("the runs", "the baseline runs")
"""The sides of an analysis with ``--against``."""

_SHOWN = 3


def describe_differences(
    a: Sequence[RunData],
    b: Sequence[RunData],
    labels: tuple[str, str] = ("a", "b"),
    expected: Collection[str] = (),
) -> list[str]:
    """Return sentences about the differences between two sides of runs, and within a side.

    The runs of a side should be repeats of one job. An unknown fact does not differ from anything.

    Parameters
    ----------
    a, b : sequence of RunData
    labels : tuple of str
        The names of the sides.
    expected : collection of str
        The names of facts in which the sides differ on purpose.
    """
    names = list(dict.fromkeys(name for run in (*a, *b) for name in _described(run)))
    said = []
    for label, side in zip(labels, (a, b), strict=True):
        mixed = [name for name in names if len(_values(side, name)) > 1]
        if mixed:
            said.append(f"the repeats in {label} differ in {', '.join(mixed)}")
    for name in names:
        of_a, of_b = _values(a, name), _values(b, name)
        if of_a and of_b and of_a != of_b and name not in expected:
            said.append(f"{name} differs: {_listed(of_a)} in {labels[0]}, {_listed(of_b)} in {labels[1]}")
    return said


def _described(run: RunData) -> dict[str, object]:
    return {**run.facts, **{f"parameter {key}": value for key, value in run.parameters.items()}}


def _values(side: Sequence[RunData], name: str) -> list[str]:
    """Return the distinct known values of a fact."""
    values = (_described(run).get(name) for run in side)
    return sorted({str(value) for value in values if value is not None})


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return " or ".join(values[:_SHOWN]) + more
