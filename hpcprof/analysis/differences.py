"""What runs differ in beside their times."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcprof.analysis.run_data import RunData

_SHOWN = 3


def differences(a: Sequence[RunData], b: Sequence[RunData], expected: Collection[str] = ()) -> list[str]:
    """Say where two sides of runs are not alike, and where the runs of a side are no repeats of one job.

    Parameters
    ----------
    a, b : sequence of RunData
    expected : collection of str
        Names of facts in which the sides are meant to differ.
    """
    names = list(dict.fromkeys(name for run in (*a, *b) for name in _described(run)))
    said = []
    for label, side in (("a", a), ("b", b)):
        mixed = [name for name in names if len(_values(side, name)) > 1]
        if mixed:
            said.append(f"the runs of {label} are no repeats of one job: they differ in {', '.join(mixed)}")
    for name in names:
        of_a, of_b = _values(a, name), _values(b, name)
        if of_a != of_b and name not in expected:
            said.append(f"{name} differs: {_listed(of_a)} in a, {_listed(of_b)} in b")
    return said


def _described(run: RunData) -> dict[str, object]:
    return {**run.facts, **{f"parameter {key}": value for key, value in run.parameters.items()}}


def _values(side: Sequence[RunData], name: str) -> list[str]:
    """Return the distinct values of a fact."""
    return sorted({_text(_described(run).get(name)) for run in side})


def _text(value: object) -> str:
    return "unknown" if value is None else str(value)


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return " or ".join(values[:_SHOWN]) + more
