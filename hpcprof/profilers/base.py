"""What a profiler is to the rank wrapper, and how its settings are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpcprof.errors import UsageError, unknown

OUTPUT = "{output}"
"""Stands in an argument for the path of the rank's profile without its suffix."""

SCRATCH = "{scratch}"
"""Stands for a folder of the rank's own on the node, which is removed at the end."""

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """What ``--profiler-option KEY=VALUE`` can set. ``valid`` lists the values, empty accepts any."""

    help: str
    default: str = ""
    valid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """What a profiler runs.

    ``workload`` is None for a program of the user's, which may not open a capture range as ours do.
    ``capture_steps`` is the choice of steps, empty for all measured ones.
    """

    workload: str | None
    ranks: int
    capture_steps: str = ""


@dataclass(frozen=True)
class Profiler:
    """How one profiler runs a rank.

    Attributes
    ----------
    name : str
        The word for ``--profiler``.
    summary : str
        One line for people.
    settings : dict
        What the user can set, by name.
    check : callable
        ``(target, settings) -> None``; raises `UsageError` for what must not be run.
    prefix : callable
        ``(target, settings) -> argv`` to put before the program; `OUTPUT` marks the output path.
    environment : callable
        ``(target, settings) -> variables`` for the profiled ranks.
    afterwards : tuple of argv
        Commands on the node once the program has ended, each only if the one before succeeded;
        `OUTPUT` and `SCRATCH` may stand in them.
    suffix : str
        Suffix of the file that it leaves.
    """

    name: str
    summary: str
    settings: dict[str, Setting] = field(default_factory=dict)
    check: Callable[[Target, Settings], None] = lambda target, settings: None
    prefix: Callable[[Target, Settings], tuple[str, ...]] = lambda target, settings: ()
    environment: Callable[[Target, Settings], dict[str, str]] = lambda target, settings: {}
    afterwards: tuple[tuple[str, ...], ...] = ()
    suffix: str = ""

    def resolve(self, given: Settings) -> dict[str, str]:
        """Return every setting with its value, defaults filled in.

        Raises
        ------
        UsageError
            For a name or a value that the profiler does not have.
        """
        for key, value in given.items():
            if key not in self.settings:
                raise unknown("profiler option", key, self.settings, f" of {self.name}")
            valid = self.settings[key].valid
            if valid and value not in valid:
                raise unknown("value", value, valid, f" of the profiler option {key}")
        return {key: given.get(key, setting.default) for key, setting in self.settings.items()}


def whole_number(settings: Settings, key: str, least: int) -> int:
    """Return a setting as a whole number of at least ``least``.

    Raises
    ------
    UsageError
        If it is none.
    """
    text = settings[key]
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"--profiler-option {key}={text}: write a whole number from {least}.")
    return int(text)
