"""CUDA API calls by name."""

from __future__ import annotations

import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.summaries.grouped_statistics import summarize, texts
from hpcprof.profiles.timeline import Timeline


def api(timeline: Timeline) -> Outcome:
    """Summarize the durations of CUDA runtime and driver calls, as ``nsys stats`` does in cuda_api_sum.

    Calls are grouped by their full name and shown without the version: ``f_v3020`` and ``f_v4000``
    are two rows named ``f``. Rows are ordered by total time.
    """
    calls = timeline.calls
    if not len(calls):
        return nothing(f"no CUDA API calls in {timeline.origin.path.name}")
    summary = summarize(calls.name, calls.end - calls.start)
    rows = pd.DataFrame(
        {
            "name": texts(map(without_version, timeline.names(summary.group))),
            "num_calls": summary.count,
            "total_ns": summary.total,
            "time_pct": summary.shares(),
            **summary.columns(),
        }
    )
    return Outcome(rows)


def without_version(name: str | None) -> str | None:
    """Drop ``_vNNNN``. Five digits stay (``_v11010``): nsys looks only six characters back."""
    return name[:-6] if name and name[-6:-4] == "_v" else name
