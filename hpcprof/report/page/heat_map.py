"""The data of the heat map of ranks and steps: whole numbers that the page draws.

The page does not depend on the number of ranks: of more steps than fit, each cell is one real step, the
slowest of its neighbours, so that a click leads to what the cell shows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hpcprof.analysis.collectives.verdicts import LATE
from hpcprof.common.units import counted, format_ns, named_ranks, visible
from hpcprof.profiles.timeline import Floats, Ints
from hpcprof.report.contents import Contents

MAX_CELLS = 250_000
"""Maximum cells of one quantity: 4,096 ranks with 61 steps."""

_MANY_VALUES = 200_000
"""Minimum cells of all quantities for times of three significant digits instead of four."""

_MAX_NAMED_RANKS = 3
_MAX_PHASES = 8


_ACCOUNT_QUANTITIES = (
    ("compute", "Compute", "A compute kernel runs."),
    ("exposed_comm", "Exposed communication", "Communication runs and no compute, and all ranks are there."),
    ("wait_for_peer", "Waiting for peers", "Communication waits for its last rank; no compute runs."),
    ("exposed_mem", "Copies", "Only copies and sets run."),
    ("idle", "Idle", "Nothing runs on the GPU."),
)

_LATENESS_MEANING = (
    "How much less than the median of the other ranks it waits for them in the step; 0 if it waits longer."
)
_UNALIGNED_MEANING = (
    "How much less than the median of the other ranks it communicates exposed; 0 if it does so longer."
)


class _Grid(msgspec.Struct, frozen=True):
    """The places of a table's rows in the map, by the numbers of their ranks and steps."""

    ranks: Ints
    steps: Ints

    def cells(self, columns: Mapping[str, Sequence[Any] | Ints], name: str) -> Floats:
        """Return a column as one line a step with one cell a rank; NaN where a rank has no such row."""
        cells = np.full((len(self.steps), len(self.ranks)), np.nan)
        rank = np.asarray(columns["rank"], np.int64)
        step = np.asarray(columns["step"], np.int64)
        row = np.minimum(np.searchsorted(self.steps, step), len(self.steps) - 1)
        is_in_map = self.steps[row] == step
        values = np.array(columns[name], np.float64)
        cells[row[is_in_map], np.searchsorted(self.ranks, rank[is_in_map])] = values[is_in_map]
        return cells


class _Quantity(msgspec.Struct, frozen=True):
    """A quantity that the map can show, for instance the wall time of each step on each rank."""

    id: str
    label: str
    meaning: str
    cells: Floats


def heat_map(contents: Contents) -> dict[str, Any] | None:
    """Return the data of the map of a run's ranks and steps; None if no rank has steps.

    ``ranks`` and ``steps`` are their numbers, ``host`` the place of each rank's host in ``hosts``. ``shown``
    is the id of the quantity to begin with. ``late_ns`` is the lateness of each rank by `skew_summary`, None
    where unknown. Each of ``quantities`` has ``cells``, one value after the other, rank by rank within a
    step: multiples of ``unit_ns``, None where a rank has no such step. ``median_ns`` is the median wall time
    of a step.
    """
    times = contents.table("step_times").columns
    if not times or not times["rank"]:
        return None
    full_grid = _Grid(*(np.unique(np.asarray(times[name], np.int64)) for name in ("rank", "step")))
    walls = full_grid.cells(times, "wall_ns")
    grid = _Grid(full_grid.ranks, full_grid.steps[_slowest_of_each_block(walls)])
    wall = _Quantity("wall", "Wall time of the step", "", grid.cells(times, "wall_ns"))
    quantities = [wall, *_of_account(contents, grid), *_of_phases(contents, grid)]
    median = float(np.nanmedian(walls))
    digits = 3 if len(quantities) * quantities[0].cells.size > _MANY_VALUES else 4
    unit = int(10 ** max(0.0, np.floor(np.log10(max(median, 1.0))) - digits))
    late = {row["rank"]: row for row in contents.table("skew_summary").rows}
    hosts, host = _hosts(contents, full_grid.ranks)
    return {
        "title": _title(list(late.values())),
        "shown": _first_quantity(quantities, late),
        "note": _note(grid, len(full_grid.steps)),
        "ranks": grid.ranks.tolist(),
        "steps": grid.steps.tolist(),
        "hosts": hosts,
        "host": host,
        "late_ns": [late[rank]["lateness_p50_ns"] if rank in late else None for rank in grid.ranks.tolist()],
        "unit_ns": unit,
        "median_ns": round(median),
        "quantities": [
            {
                "id": quantity.id,
                "label": quantity.label,
                "meaning": quantity.meaning,
                "cells": _round_cells(quantity.cells, unit, digits),
            }
            for quantity in quantities
        ],
    }


def _slowest_of_each_block(walls: Floats) -> Ints:
    """Return the rows of the steps that are shown: all, or of each block the one with the slowest rank."""
    steps, ranks = walls.shape
    block = -(-steps * ranks // MAX_CELLS)
    slowest = np.where(np.isnan(walls), 0.0, walls).max(axis=1)
    starts = range(0, steps, block)
    return np.array([start + int(slowest[start : start + block].argmax()) for start in starts], np.int64)


def _of_account(contents: Contents, grid: _Grid) -> list[_Quantity]:
    """Return the lateness, and each part of the account that some rank spends time in."""
    quantities: list[_Quantity] = []
    account = contents.table("step_account").columns
    if not account or not account["rank"]:
        return quantities
    parts = {id: grid.cells(account, f"{id}_ns") for id, _, _ in _ACCOUNT_QUANTITIES}
    waiting = parts["wait_for_peer"]
    if measured := not np.isnan(waiting).all():
        late = _lateness(waiting)
    else:
        late = _lateness(parts["exposed_comm"])
        del parts["wait_for_peer"]
    if len(grid.ranks) > 1 and np.nanmax(late, initial=0.0) > 0:
        quantities.append(
            _Quantity("lateness", "Lateness", _LATENESS_MEANING if measured else _UNALIGNED_MEANING, late)
        )
    return quantities + [
        _Quantity(id, label, meaning, parts[id])
        for id, label, meaning in _ACCOUNT_QUANTITIES
        if id in parts and np.nanmax(parts[id], initial=0.0) > 0
    ]


def _of_phases(contents: Contents, grid: _Grid) -> list[_Quantity]:
    """Return the time of the phases that take the most."""
    times = contents.table("phase_times").columns
    if not times or not times["phase"]:
        return []
    names = list(dict.fromkeys(times["phase"]))
    number = {name: place for place, name in enumerate(names)}
    phase = np.array([number[name] for name in times["phase"]], np.int64)
    arrays = {name: np.asarray(times[name], np.int64) for name in ("rank", "step", "wall_ns")}
    total = [int(arrays["wall_ns"][phase == place].sum()) for place in range(len(names))]
    most = sorted(range(len(names)), key=lambda place: -total[place])[:_MAX_PHASES]
    return [
        _Quantity(
            f"phase-{place}",
            f"Phase {visible(names[place])}",
            "",
            grid.cells({name: column[phase == place] for name, column in arrays.items()}, "wall_ns"),
        )
        for place in most
        if total[place]
    ]


def _lateness(waiting: Floats) -> Floats:
    """Return the lateness of each rank: its wait below the median of the other ranks in the step, or 0."""
    lateness = np.full(waiting.shape, np.nan)
    for step, row in enumerate(waiting):
        rows = np.flatnonzero(~np.isnan(row))
        if len(rows) < 2:
            continue
        order = np.argsort(row[rows], kind="stable")
        values = row[rows][order]
        # Without a rank, the middle of those that are left is one or two places further on.
        n, place = len(values), np.arange(len(values))
        low, high = (n - 2) // 2, (n - 1) // 2
        median = (values[low + (place <= low)] + values[high + (place <= high)]) / 2
        lateness[step, rows[order]] = np.maximum(median - values, 0.0)
    return lateness


def _round_cells(cells: Floats, unit: int, digits: int) -> list[int | None]:
    """Return the cells as multiples of the unit, rounded to ``digits`` significant digits."""
    flat = cells.ravel() / unit
    measured = ~np.isnan(flat)
    values = np.where(measured, flat, 0.0)
    size = 10 ** np.maximum(np.floor(np.log10(np.maximum(np.abs(values), 1))) - digits + 1, 0)
    whole: list[int | None] = (np.rint(values / size) * size).astype(np.int64).tolist()
    for place in np.flatnonzero(~measured).tolist():
        whole[place] = None
    return whole


def _hosts(contents: Contents, ranks: Ints) -> tuple[list[str], list[int]]:
    """Return the names of the hosts, and the place of each rank's host among them; none if unknown."""
    names = [contents.profiles[rank].host if rank in contents.profiles else None for rank in ranks.tolist()]
    hosts = sorted({name for name in names if name})
    if not hosts:
        return [], []
    place = {name: number for number, name in enumerate(hosts)}
    return hosts, [place.get(name or "", -1) for name in names]


def _first_quantity(quantities: Sequence[_Quantity], late: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the quantity to begin with: ranks that wait for a late one take as long as it."""
    ids = {quantity.id for quantity in quantities}
    named = any(row["verdict"] in LATE for row in late.values())
    return "lateness" if named and "lateness" in ids else "wall"


def _title(verdicts: Sequence[Mapping[str, Any]]) -> str:
    late = [row for row in verdicts if row["verdict"] in LATE]
    if not late:
        return "Ranks and steps"
    late.sort(key=lambda row: -row["cost_pct"])
    ranks = named_ranks([row["rank"] for row in late[:_MAX_NAMED_RANKS]])
    more = f" and {len(late) - _MAX_NAMED_RANKS:,} more" if len(late) > _MAX_NAMED_RANKS else ""
    cost_text = format_ns(late[0]["cost_ns"])
    verb = "is" if len(late) == 1 else "are"
    most = "up to " if len(late) > 1 else ""
    return f"Ranks and steps: {ranks}{more} {verb} late, which costs {most}{cost_text} a step"


def _note(grid: _Grid, steps: int) -> str:
    note = f"n = {counted(len(grid.ranks), 'rank')} and {counted(steps, 'step')}."
    if len(grid.steps) == steps:
        return note
    block = -(-steps // len(grid.steps))
    return f"{note} Of each {block:,} steps in a row, the one with the slowest rank is shown."
