"""The cost of a late rank, in one figure for every place that shows it, and the verdict that follows."""

from collections.abc import Mapping
from typing import Any

from hpcprof.analysis.collectives.declarations import COST_PCT, EVEN_PCT

LATE = ("straggler", "late")
"""The verdicts on ranks that are late beyond chance."""


def priced(row: Mapping[str, Any], saving_ns: int | None) -> dict[str, Any]:
    """Return a row of ``skew_summary`` with the cost of the rank's lateness and the verdict.

    ``row`` has ``elapsed_ns`` and the lateness by arrivals, None where unknown. ``saving_ns`` is the saving
    of a finding that calls the rank late, which is the cost then; without one, the lateness is.
    """
    step, cost = row["elapsed_ns"], row["lateness_p50_ns"] if saving_ns is None else saving_ns
    if step is None or cost is None:
        return {**row, "cost_ns": None, "cost_pct": None, "verdict": "unknown"}
    share = 100 * cost / step
    late = saving_ns is not None or row["lateness_low_ns"] > 0
    if saving_ns is None and 100 * row["lateness_high_ns"] / step < EVEN_PCT:
        verdict = "even"
    elif late:
        verdict = "straggler" if share >= COST_PCT else "late"
    else:
        verdict = "unknown"
    return {**row, "cost_ns": cost, "cost_pct": round(share, 2), "verdict": verdict}
