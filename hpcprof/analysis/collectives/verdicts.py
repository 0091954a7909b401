"""The cost of a late rank and its verdict, computed once for all tables, charts and sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcprof.analysis.collectives.declarations import COST_PCT, EVEN_PCT
from hpcprof.common.units import format_ns

LATE = ("straggler", "late")
"""The verdicts on ranks that are late beyond chance."""

_HIDDEN_NOTE = "may be hidden by chance"


def with_cost(row: Mapping[str, Any], saving_ns: int | None) -> dict[str, Any]:
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


def verdicts_from(threshold: float, verdicts: Sequence[str], costs: Sequence[float | None]) -> list[str]:
    """Return the verdicts again: a late rank that costs at least ``threshold`` percent is a straggler."""
    return [
        verdict if verdict not in LATE else "straggler" if (cost or 0) >= threshold else "late"
        for verdict, cost in zip(verdicts, costs, strict=True)
    ]


def hidden_lateness(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return a clause with the maximum lateness of ranks without a verdict; empty without any.

    ``rows`` are those of ``skew_summary``.
    """
    unknown = [row for row in rows if row["verdict"] == "unknown" and row["lateness_high_ns"] is not None]
    if not unknown:
        return ""
    most = max(100 * row["lateness_high_ns"] / row["elapsed_ns"] for row in unknown)
    # No lateness costs more than the step.
    hidden = "any lateness" if most >= 100 else f"a lateness of up to {most:.1f} % of a step"
    clocks = format_ns(max(row["uncertainty_ns"] for row in unknown))
    return f"{hidden} {_HIDDEN_NOTE} and by the clocks, which are aligned to {clocks} per collective"


def with_hidden_lateness(reason: str, rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return a reason of ``skew_summary`` with its `hidden_lateness` replaced by that of ``rows``."""
    parts = [hidden_lateness(rows) if _HIDDEN_NOTE in part else part for part in reason.split("; ")]
    return "; ".join(filter(None, parts))
