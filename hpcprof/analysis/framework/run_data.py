"""What an analysis over several runs reads of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcprof.profiles.timeline import Ints, Timeline
from hpcprof.workloads.schema import Scalar


@dataclass(frozen=True, eq=False)
class RunData:
    """One run: what ran where, and what was found.

    ``facts`` says by name what was asked for and on what it ran (workload, ranks, GPU…), None where that is
    unknown; ``parameters`` are those that the workload recorded, empty where it recorded none.
    ``own_step_ns`` are the steps by the workload's own clock, each of its slowest rank, shape (n,).
    ``tables`` holds analyses of the store by name. ``read`` returns the timeline of one of
    ``timeline_ranks``.
    """

    id: str
    facts: Mapping[str, str | int | None]
    parameters: Mapping[str, Scalar]
    own_step_ns: Ints
    tables: Mapping[str, pd.DataFrame]
    timeline_ranks: tuple[int, ...]
    read: Callable[[int], Timeline]

    @property
    def own_p50_ns(self) -> float | None:
        """The median step by the workload's own clock."""
        return float(np.median(self.own_step_ns)) if len(self.own_step_ns) else None

    @property
    def ranks(self) -> int | None:
        """How many ranks the run had."""
        ranks = self.facts.get("ranks")
        return ranks if isinstance(ranks, int) else None
