"""Runs for tests of analyses over several runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.profiles.timeline import Timeline

FACTS: dict[str, str | int | None] = {
    "program": "sequence-parallel",
    "workload": "sequence-parallel",
    "arguments": "",
    "site": "local",
    "ranks": 2,
    "nodes": 1,
    "profiler": "none",
    "GPU": "NVIDIA H200",
    "GPU clock": "1980 MHz",
}


def _columns(analysis: str) -> list[str]:
    return [column.name for column in ANALYSES[analysis].columns]


@cache
def _no_rows() -> dict[str, pd.DataFrame]:
    return {name: pd.DataFrame(columns=_columns(name)) for name in ANALYSES}


def run(
    name: str,
    *,
    facts: Mapping[str, str | int | None] = {},
    parameters: Mapping[str, int | str] = {},
    own: list[int] = [],  # noqa: B006
    tables: Mapping[str, list[dict[str, object]]] = {},
    timelines: Mapping[int, Timeline] = {},
    submitted: datetime | None = None,
    options: Mapping[str, str] = {},
) -> RunData:
    """Build a run; an analysis that is not in ``tables`` has no rows."""
    return RunData(
        id=name,
        facts={**FACTS, **facts},
        parameters=parameters,
        own_step_ns=np.array(own, np.int64),
        tables=_no_rows() | {key: pd.DataFrame(rows, columns=_columns(key)) for key, rows in tables.items()},
        timeline_ranks=tuple(timelines),
        read=timelines.__getitem__,
        submitted=submitted,
        options=options,
    )
