"""Parameter sweeps: all combinations of the values of several parameters."""

import itertools
from collections.abc import Mapping, Sequence

from hpcprof.common.errors import UsageError

Point = dict[str, str]


def parse_parameters(texts: Sequence[str], option: str = "-P") -> dict[str, list[str]]:
    """Parse texts of the form ``KEY=VALUE,VALUE``, the values of the command-line option ``option``."""
    parameters: dict[str, list[str]] = {}
    for text in texts:
        key, separator, values = text.partition("=")
        if not separator or not key or not all(values.split(",")):
            raise UsageError(f"{option} {text}: write it as KEY=VALUE,VALUE.")
        if key in parameters:
            raise UsageError(f"{option} {text}: {key} is repeated; give all its values in one {option}.")
        parameters[key] = values.split(",")
    return parameters


def points(parameters: Mapping[str, Sequence[str]]) -> list[Point]:
    """Return all combinations; the last parameter varies fastest."""
    return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]


def label(point: Point) -> str:
    """Return the name of a point, such as ``a=1 b=x``."""
    return " ".join(f"{key}={value}" for key, value in point.items())


def program_at(point: Point, program: Sequence[str], workload: str | None, option: str = "-P") -> list[str]:
    """Return the arguments of a program at one point of the sweep.

    ``{KEY}`` in the arguments is replaced by the value. A workload gets the other parameters as ``--KEY
    VALUE``. ``option`` is the command-line option of the parameters, for the error message.
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
                f"{option} {key}: write {place} in the arguments of the program where the value belongs."
            )
    return arguments
