"""The figures of a run that a comparison of runs uses: one value a run and metric."""

from __future__ import annotations

from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.gpu_time.breakdown import PARTS

OWN_STEP, STEP, SPAN, OVERLAP = "own_step_p50_ns", "step_p50_ns", "span_ns", "overlap_pct"
DECISIVE = (OWN_STEP, STEP)
"""What decides whether a run is slower; the other metrics say why."""


def metrics(run: RunData, per_step: bool) -> dict[str, float]:
    """Return what is known of a run.

    ``own_step_p50_ns`` is the median step by the workload's own clock, ``step_p50_ns`` in the profiles, each
    step the slowest rank's. The others are means over ranks: each phase's median, the GPU's span, its parts
    and the sum of all kernels, with ``per_step`` divided by the number of steps of the rank; and the share
    of communication that is overlapped.
    """
    found: dict[str, float] = {}
    if run.own_p50_ns is not None:
        found[OWN_STEP] = run.own_p50_ns
    tables = run.tables
    if len(tables["steps_summary"]):
        found[STEP] = float(tables["steps_summary"]["p50_ns"].iloc[0])
    if len(tables["phases"]):
        for phase, values in tables["phases"].groupby("phase", sort=False)["p50_ns"]:
            found[f"phase {phase} p50_ns"] = float(values.mean())
    steps = tables["step_times"].groupby("rank").size() if per_step else 1
    suffix = "_per_step_ns" if per_step else "_ns"
    if len(tables["breakdown"]):
        whole = tables["breakdown"].set_index("rank")
        for part in ("span", *PARTS):
            found[f"{part}{suffix}"] = float((whole[f"{part}_ns"] / steps).mean())
    if len(tables["kernels"]):
        total = tables["kernels"].groupby("rank")["total_ns"].sum()
        found[f"kernels{suffix}"] = float((total / steps).mean())
    overlap = tables["overlap"]["overlap_pct"].dropna()
    if len(overlap):
        found[OVERLAP] = float(overlap.astype(float).mean())
    return found


def has_steps(run: RunData) -> bool:
    """Whether every rank with GPU work has steps."""
    whole, steps = run.tables["breakdown"], run.tables["step_times"]
    return set(whole["rank"]) <= set(steps["rank"])
