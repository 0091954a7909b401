"""What a profiler is to the rank wrapper, and how its settings are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpcprof.common.errors import UsageError, unknown
from hpcprof.submit.sites.model import Vendor

OUTPUT = "{output}"
"""Stands in an argument for the path of the rank's profile without its suffix."""

FOLDER = "{profiles}"
"""Stands for the folder of the run's profiles."""

NAME = "{name}"
"""Stands for the name of the rank's profile in that folder, without its suffix."""

SCRATCH = "{scratch}"
"""Stands for a folder of the rank's own on the node, which is removed at the end."""

GPUS = "{gpus}"
"""Stands for the numbers of the GPUs that the rank sees."""

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """What ``--profiler-option KEY=VALUE`` can set. ``valid`` lists the values, empty accepts any."""

    help: str
    default: str = ""
    valid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Versioned:
    """A flag that not every version of a tool has, or that they spell differently.

    The rank wrapper takes the first of ``spellings`` that the tool's own help knows, with ``=value`` where
    there is one, and stops with a sentence where it knows none.
    """

    spellings: tuple[str, ...]
    value: str = ""


Word = str | Versioned


@dataclass(frozen=True)
class Target:
    """What a profiler runs.

    ``workload`` is None for a program of the user's, which may not open a capture range as ours do.
    ``captures`` is the number of spans of steps that were chosen, 0 for all measured steps.
    ``profiled`` is how many of the ``ranks`` run under the profiler.
    """

    workload: str | None
    ranks: int
    captures: int = 0
    profiled: int = 0
    nodes: int = 1


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
    command : tuple of str
        What starts the profiler, empty for one that needs nothing before the program.
    flags : callable
        ``(target, settings) -> words`` to put between the command and the program, in any order; `OUTPUT`
        and `GPUS` may stand in them.
    environment : callable
        ``(target, settings) -> variables`` for the profiled ranks.
    afterwards : callable
        ``(target, settings) -> commands`` on the node once the program has ended, each only if the one
        before succeeded; `OUTPUT` and `SCRATCH` may stand in them.
    complaint : callable
        ``text -> str``: why the profiler failed, from what a rank printed, as the end of a sentence
        (``": ncu says …"``); empty if the text holds no complaint.
    counters : callable
        ``(target, settings) -> bool``: whether it reads hardware counters, which one program alone can do.
    suffix : str
        Suffix of the file that it leaves.
    vendors : tuple of Vendor
        Whose GPUs it can profile, empty if it does not depend on them.
    capabilities : tuple of str
        The Linux capabilities that it needs in a container.
    """

    name: str
    summary: str
    settings: dict[str, Setting] = field(default_factory=dict)
    check: Callable[[Target, Settings], None] = lambda target, settings: None
    command: tuple[str, ...] = ()
    flags: Callable[[Target, Settings], tuple[Word, ...]] = lambda target, settings: ()
    environment: Callable[[Target, Settings], dict[str, str]] = lambda target, settings: {}
    afterwards: Callable[[Target, Settings], list[tuple[str, ...]]] = lambda target, settings: []
    complaint: Callable[[str], str] = lambda text: ""
    counters: Callable[[Target, Settings], bool] = lambda target, settings: False
    suffix: str = ""
    vendors: tuple[Vendor, ...] = ()
    capabilities: tuple[str, ...] = ()

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


NONE = Profiler("none", "run the program as it is")


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
