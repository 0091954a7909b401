"""The MPI calls of a run in a report: efficiencies, waits with the ranks that cause them, and messages."""

from collections.abc import Sequence

import msgspec

from hpcprof.analysis.framework.outcome import Row
from hpcprof.analysis.mpi.declarations import BEFORE, BETWEEN
from hpcprof.common.units import counted, format_bytes, format_ns, visible
from hpcprof.report.contents import Contents
from hpcprof.report.formatting import Grade, cell, grade

_TREE = (
    ("parallel_efficiency_pct", "parallel efficiency", 0),
    ("load_balance_pct", "load balance", 1),
    ("communication_efficiency_pct", "communication efficiency", 1),
    ("serialization_efficiency_pct", "serialization", 2),
    ("transfer_efficiency_pct", "transfer", 2),
)
"""The columns of ``pop``, their titles and their depths in the tree."""

_DEVICE_TREE = (
    ("device_efficiency_pct", "device efficiency", 0),
    ("device_load_balance_pct", "load balance", 1),
    ("device_communication_efficiency_pct", "communication efficiency", 1),
    ("device_orchestration_efficiency_pct", "orchestration", 1),
)
_TREE_WITH_GPUS = (
    ("host_efficiency_pct", "host efficiency", 0),
    *((key, name, depth + 1) for key, name, depth in _TREE),
    ("offload_efficiency_pct", "offload", 1),
    *_DEVICE_TREE,
)
"""The two branches of programs with GPUs."""

_LEAVES = ("load_balance_pct", "serialization_efficiency_pct", "transfer_efficiency_pct")
_MAX_SCOPES = 12
_MAX_DELAYING_RANKS = 3
_MIN_DELAY_PCT = 5
"""Minimum share of all waits, in percent, of a delay that is named."""


class Factor(msgspec.Struct, frozen=True):
    """A factor of an efficiency: its name, its depth in the tree, and its value and grade in each scope."""

    name: str
    depth: int
    cells: Sequence[tuple[str, str]]


class EfficiencyTree(msgspec.Struct, frozen=True):
    """The tree of efficiencies; ``scopes`` are the run, the step and the phases."""

    scopes: Sequence[str]
    factors: Sequence[Factor]
    sentence: str


def efficiencies(contents: Contents) -> EfficiencyTree | None:
    """Return the tree of a run's efficiencies; None if they are unknown."""
    rows = contents.table("pop").rows[:_MAX_SCOPES]
    if not rows:
        return None
    with_gpus = any(row.get("device_efficiency_pct") is not None for row in rows)
    scopes = [row["scope"] if row["scope"] == "run" else visible(row["name"]) for row in rows]
    factors = [
        Factor(name, depth, [(cell(key, row[key]), _grade(key, row[key])) for row in rows])
        for key, name, depth in (_TREE_WITH_GPUS if with_gpus else _TREE)
    ]
    return EfficiencyTree(scopes, factors, useful_time(rows, contents.hides_waits))


def _grade(key: str, value: float | None) -> str:
    return (grade(key, value) or Grade.GOOD).value if value is not None else ""


def useful_time(rows: Sequence[Row], hides_waits: bool = False) -> str:
    """Return the efficiency of the step, else of the run, and the factor that costs most of it.

    ``hides_waits`` is True if the useful time has waits that are not recorded.
    """
    row = next((row for row in rows if row["scope"] == "step"), rows[0] if rows else None)
    if row is None or row["parallel_efficiency_pct"] is None:
        return ""
    where = "a step" if row["scope"] == "step" else "the run"
    beginning = f"{row['parallel_efficiency_pct']:.1f} % of the ranks' time in {where} is "
    if row.get("device_efficiency_pct") is None:
        unseen = ", or waits that were not recorded" if hides_waits else ""
        return f"{beginning}useful{unseen}{_costliest(row, 'parallel_efficiency_pct', _TREE, _LEAVES)}"
    leaves = tuple(key for key, _, depth in _DEVICE_TREE if depth)
    costliest = _costliest(row, "device_efficiency_pct", _DEVICE_TREE, leaves)
    return (
        f"{beginning}outside MPI{_costliest(row, 'parallel_efficiency_pct', _TREE, _LEAVES)}. "
        f"{row['device_efficiency_pct']:.1f} % of that of their GPUs computes{costliest}"
    )


def _costliest(row: Row, whole: str, tree: Sequence[tuple[str, str, int]], leaves: Sequence[str]) -> str:
    """Return a clause with the factor that costs most of an efficiency; empty if that is good."""
    worst = min(leaves, key=lambda key: row[key])
    if grade(worst, row[worst]) is Grade.GOOD and row[whole] > _GOOD_PCT:
        return ""
    names = {key: name for key, name, _ in tree}
    return f"; {names[worst]} is lowest ({row[worst]:.1f} %)"


_GOOD_PCT = 95
"""Minimum efficiency, in percent, from which no factor is named as the costliest."""


def delays(rows: Sequence[Row]) -> str:
    """Return the ranks and places that cause most of the waits, from ``mpi_delays``; empty without waits."""
    if not rows:
        return ""
    waits = counted(sum(row["waits"] for row in rows), "wait")
    whole = f"{format_ns(sum(row['wait_ns'] for row in rows))} in {waits} of the whole capture"
    named_rows = [row for row in rows if row["delaying_rank"] is not None]
    named = [
        f"rank {row['delaying_rank']}{_place_text(row['delaying_range'])} causes {row['share_pct']:.0f} %"
        for row in named_rows[:_MAX_DELAYING_RANKS]
        if row["share_pct"] >= _MIN_DELAY_PCT
    ]
    if not named and named_rows:
        named = [f"no rank causes more than {named_rows[0]['share_pct']:.1f} % in one place"]
    return "; ".join([whole, *([", ".join(named)] if named else [])])


def _place_text(place: str | None) -> str:
    if not place:
        return " in unknown places"
    return f" {visible(place)}" if place.startswith((BETWEEN, BEFORE)) else f" in {visible(place)}"


def messages(rows: Sequence[Row]) -> str:
    """Return the number of messages in ``mpi_matrix``, their size, and the share that crosses nodes."""
    if not rows:
        return ""
    number, size = (sum(row[key] for row in rows) for key in ("messages", "bytes"))
    text = f"{counted(number, 'message')}, {format_bytes(size)}"
    if any(row["sender_node"] is None or row["receiver_node"] is None for row in rows):
        return text
    inside = [row for row in rows if row["sender_node"] == row["receiver_node"]]
    if len(inside) == len(rows):
        return f"{text}, all within a node"
    basis = "bytes" if size else "messages"
    crossing = (size if size else number) - sum(row[basis] for row in inside)
    return f"{text}; {100 * crossing / (size or number):.0f} % between nodes"
