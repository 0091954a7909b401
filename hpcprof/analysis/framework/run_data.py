"""The data of one run that an analysis over several runs reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.profiles.timeline import Ints, Timeline
from hpcprof.workloads.schema import Scalar

if TYPE_CHECKING:
    import pandas as pd

ENVIRONMENT = "environment "
"""The names of facts that are environment variables begin with it."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run: what ran where, and its results."""

    id: str
    facts: Mapping[str, str | int | None]
    """Facts of the program and its hardware by name (workload, ranks, GPU…); None for unknown ones."""
    parameters: Mapping[str, Scalar]
    """The parameters that the workload recorded; may be empty."""
    own_step_ns: Ints
    """The steps by the workload's own clock; each is the time of its slowest rank; shape (n,)."""
    tables: "Mapping[str, pd.DataFrame]"
    """The analyses that were asked for, by name, as the store has them."""
    timeline_ranks: tuple[int, ...]
    """The ranks that have a timeline."""
    read: Callable[[int], Timeline]
    """Returns the timeline of one of these ranks."""
    submitted: datetime | None = None
    """When the run was submitted, with its time zone; None if it is unknown."""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """The options on the command line by name, as texts; empty if the command is unknown."""
    collect_command: str = "hpcprof collect"
    """The command that collects the run again, for hints."""

    @property
    def own_p50_ns(self) -> float | None:
        """The median step by the workload's own clock, in ns; None if it is unknown."""
        return float(np.median(self.own_step_ns)) if len(self.own_step_ns) else None

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None if it is unknown."""
        ranks = self.facts.get("ranks")
        return ranks if isinstance(ranks, int) else None
