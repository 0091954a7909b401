"""The data of the charts of GPU memory over a step, on the clock of the run's timeline."""

from __future__ import annotations

from typing import Any

from hpcprof.common.units import format_bytes
from hpcprof.report.contents import Contents
from hpcprof.results.analysis_table import Row

_MOST = 4
"""The most snapshots that are drawn: those with the highest peaks."""

_KEY = ("rank", "event", "step", "device")
_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "backward": "backward pass",
    "communication": "communication",
    "other": "other",
    "fragmentation": "reserved, not allocated",
}
_EVENTS = {
    "step": " after step {step}",
    "out_of_memory": " when it ran out of memory, in step {step}",
    "asked": " when another rank ran out of memory, in step {step}",
}


def memory_charts(contents: Contents) -> list[dict[str, Any]]:
    """Return a chart of the memory over the time of each snapshot, stacked by kind."""
    shown = sorted(contents.rows("memory_snapshots"), key=lambda row: -row["peak_bytes"])[:_MOST]
    if not shown:
        return []
    rows = contents.rows("memory_over_step")
    charts = []
    for place, snapshot in enumerate(shown):
        own = [
            row
            for row in rows
            if all(row[key] == snapshot[key] for key in ("rank", "event", "step", "device"))
        ]
        if len(own) > 1:
            charts.append(_chart(contents, snapshot, own, f"gpu-memory-{place}"))
    return charts


def _chart(contents: Contents, snapshot: Row, rows: list[Row], name: str) -> dict[str, Any]:
    begin, of_profile = _begin(contents, snapshot, rows)
    when = _EVENTS.get(snapshot["event"], "").format(step=snapshot["step"])
    peak = format_bytes(snapshot["peak_bytes"])
    series = {title: [row[f"{kind}_bytes"] for row in rows] for kind, title in _KINDS.items()}
    note = "What PyTorch's allocator held, by kind, from its recorded events."
    note += (
        " The time begins with the step in the timeline."
        if of_profile
        else " The time begins with the first event."
    )
    if not snapshot["complete"]:
        note += " Earlier events of the step are lost."
    return {
        "kind": "areas",
        "id": name,
        "title": f"GPU memory of rank {snapshot['rank']}{when}: {peak} at the peak",
        "note": note,
        "time_ns": [row["time_ns"] - begin for row in rows],
        "peak_ns": snapshot["time_ns"] - begin,
        # The number of a kind is that of its colour.
        "parts": [
            [title, values, place] for place, (title, values) in enumerate(series.items()) if any(values)
        ],
    }


def _begin(contents: Contents, snapshot: Row, rows: list[Row]) -> tuple[int, bool]:
    """Return when the time of a chart begins, in ns UTC: with the step, if the profile has it."""
    rank, step = snapshot["rank"], snapshot["step"]
    profile = contents.profiles.get(rank)
    if profile is not None and profile.start_utc_ns is not None:
        for part in contents.rows("step_parts"):
            if (part["rank"], part["step"]) == (rank, step):
                return profile.start_utc_ns + part["start_ns"], True
    return rows[0]["time_ns"], False
