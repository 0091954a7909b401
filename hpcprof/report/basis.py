"""What an analysis stands on whose rows do not tell how many samples they are of."""

from __future__ import annotations

from collections.abc import Mapping

from hpcprof.results.store.store import Stored

_OF_OPERATIONS = ("breakdown", "overlap", "kernel_classes", "idle", "hta_breakdown")
_COUNTS = (("kernels", "instances", "kernel"), ("memops", "count", "memory operation"))


def basis(name: str, analyses: Mapping[str, Stored]) -> str:
    """Return a line with the numbers of operations, steps and ranks; empty where the rows tell them."""
    if name == "steps":
        ranks = {row["rank"] for row in analyses["step_times"].rows}
        return f"n: {_number(len(ranks), 'rank')}" if ranks else ""
    ranks = {row["rank"] for row in analyses[name].rows} if name in _OF_OPERATIONS else set()
    if not ranks:
        return ""
    counts = [
        _number(sum(row[column] for row in analyses[table].rows if row["rank"] in ranks), what)
        for table, column, what in _COUNTS
    ]
    steps = sum(row["rank"] in ranks for row in analyses["step_times"].rows)
    return f"n: {', '.join(counts)} and {_number(steps, 'step')} of {_number(len(ranks), 'rank')}"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s'[: count != 1]}"
