"""Parameter sweeps: every combination of the values of some parameters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hpcprof.common.errors import UsageError

Point = dict[str, str]


def parse_parameters(texts: Sequence[str], option: str = "-P") -> dict[str, list[str]]:
    """Read ``KEY=VALUE,VALUE`` texts, which were given by ``option``.

    Raises
    ------
    UsageError
        If one is written otherwise, or a key comes twice.
    """
    parameters: dict[str, list[str]] = {}
    for text in texts:
        key, separator, values = text.partition("=")
        if not separator or not key or not all(values.split(",")):
            raise UsageError(f"{option} {text}: write it as KEY=VALUE,VALUE.")
        if key in parameters:
            raise UsageError(
                f"{option} {text}: {key} was given before; put all its values into one {option}."
            )
        parameters[key] = values.split(",")
    return parameters


def points(parameters: Mapping[str, Sequence[str]]) -> list[Point]:
    """Return every combination, the last parameter changing first."""
    return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]


def label(point: Point) -> str:
    """Return what a point is called: ``a=1 b=x``."""
    return " ".join(f"{key}={value}" for key, value in point.items())


def program_at(point: Point, program: Sequence[str], workload: str | None, option: str = "-P") -> list[str]:
    """Return a program's arguments at one point of the sweep, whose parameters were given by ``option``.

    ``{KEY}`` is replaced where it stands; a workload gets what stands nowhere as ``--KEY VALUE``.

    Raises
    ------
    UsageError
        If a program of the user's has no place for a parameter.
    """
    arguments = list(program)
    for key, value in point.items():
        place = f"{{{key}}}"
        if any(place in argument for argument in arguments):
            arguments = [argument.replace(place, value) for argument in arguments]
        elif workload is not None:
            arguments += [f"--{key.replace('_', '-')}", value]
        else:
            raise UsageError(
                f"{option} {key}: write {place} where the program's arguments shall have its value."
            )
    return arguments
