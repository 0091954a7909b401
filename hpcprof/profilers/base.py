"""What a profiler is to the rank wrapper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

OUTPUT = "{output}"
"""Stands in an argument for the path of the rank's profile without its suffix."""


@dataclass(frozen=True)
class Profiler:
    """How one profiler runs a rank.

    Attributes
    ----------
    name : str
        The word for ``--profiler``.
    summary : str
        One line for people.
    prefix : callable
        ``(workload or None) -> argv`` to put before the program; `OUTPUT` marks the output path.
        The workload matters because ours open the capture range and a user's program may not.
    afterwards : tuple of argv
        Commands to run on the node once the program has ended.
    suffix : str
        Suffix of the file that `hpcprof collect` reads.
    """

    name: str
    summary: str
    prefix: Callable[[str | None], tuple[str, ...]]
    afterwards: tuple[tuple[str, ...], ...] = ()
    suffix: str = ""
