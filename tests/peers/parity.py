"""Compares the analyses with the figures of HolisticTraceAnalysis 0.5.0 that ``hta_figures.py`` prints.

Its figures come twice: with its rounding of times to microseconds, and without. Without it they are
compared with ours as they are; with it, with ours of a timeline that is rounded in the same way.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.gpu_time.breakdown import breakdown, idle, kernel_classes, overlap, queue_length
from hpcprof.analysis.gpu_time.hta_breakdown import hta_breakdown
from hpcprof.analysis.summaries.api_calls import launches
from hpcprof.analysis.summaries.kernels import kernels
from hpcprof.profiles.timeline import Table, Timeline

Figures = dict[str, Any]
# The calls that its launch statistics know.
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC")
CLASSES = {"COMPUTATION": "comp", "COMMUNICATION": "comm", "MEMORY": "mem"}


def variants(trace: Path, folder: Path) -> dict[str, Path]:
    """Write a trace as it is, and without the annotations on the GPU, each into a folder of its own.

    Without them HolisticTraceAnalysis really drops the last step.
    """
    whole, bare = folder / "as recorded", folder / "without GPU annotations"
    for path in (whole, bare):
        path.mkdir(parents=True)
    shutil.copy(trace, whole)
    content = json.loads(gzip.decompress(trace.read_bytes()))
    events = [e for e in content["traceEvents"] if e.get("cat") != "gpu_user_annotation"]
    # HolisticTraceAnalysis searches the rank line by line, and takes the last line where it finds none.
    text = json.dumps({**content, "traceEvents": events}, indent=1)
    (bare / trace.name).write_bytes(gzip.compress(text.encode(), mtime=0))
    return {path.name: path for path in (whole, bare)}


def kept(timeline: Timeline) -> Timeline:
    """Return the timeline with the operations that HolisticTraceAnalysis keeps.

    They are those whose launch was recorded and began before the last profiler step did.
    """
    steps: dict[str, int] = {}
    for table in (timeline.ranges, timeline.gpu_marks):
        for name, start in zip(timeline.names(table.name), table.start.tolist(), strict=True):
            if name and "ProfilerStep" in name:
                steps[name] = max(start, steps.get(name, start))
    if len(steps) < 2:
        return timeline
    launched = timeline.calls.correlation[timeline.calls.start < max(steps.values())]
    return dataclasses.replace(
        timeline,
        kernels=timeline.kernels.take(np.isin(timeline.kernels.correlation, launched)),
        memops=timeline.memops.take(np.isin(timeline.memops.correlation, launched)),
    )


def rounded(timeline: Timeline) -> Timeline:
    """Round starts up and ends down to microseconds."""

    def inward(table: Any) -> Any:
        start, end = -(-table.start // 1000) * 1000, table.end // 1000 * 1000
        return dataclasses.replace(table, start=start, end=end)

    tables: dict[str, Table] = {
        name: inward(getattr(timeline, name)) for name in ("kernels", "memops", "calls")
    }
    return dataclasses.replace(timeline, **tables)  # type: ignore[arg-type]


def check_rounded(timeline: Timeline, figures: Figures, rank: int) -> None:
    """Compare with the figures of its default, microseconds."""
    (theirs,) = (row for row in figures["temporal"] if row["rank"] == rank)
    (ours,) = hta_breakdown(timeline).rows.to_dict("records")
    assert ours == {name.replace("(us)", "_us"): value for name, value in theirs.items() if name != "rank"}
    assert _idle(rounded(kept(timeline))) == {
        (row["stream"], row["idle_category"]): row["idle_time"]
        for row in figures["idle"]
        if row["rank"] == rank and row["idle_time"]
    }


def check_exact(timeline: Timeline, figures: Figures, rank: int) -> None:
    """Compare with the figures without its rounding: they differ by the precision of doubles."""
    timeline = kept(timeline)
    (theirs,) = (row for row in figures["temporal"] if row["rank"] == rank)
    (ours,) = breakdown(timeline).rows.to_dict("records")
    if not len(timeline.gpu_marks.take(timeline.gpu_marks.correlation >= 0)):
        assert ours["idle_ns"] / 1000 == pytest.approx(theirs["idle_time(us)"], abs=1)
        assert ours["compute_ns"] / 1000 == pytest.approx(theirs["compute_time(us)"], abs=1)
        assert ours["span_ns"] / 1000 == pytest.approx(theirs["kernel_time(us)"], abs=1)
    (share,) = (row["comp_comm_overlap_pctg"] for row in figures["overlap"] if row["rank"] == rank)
    assert overlap(timeline).rows["overlap_pct"].tolist() == [
        share if share is None else pytest.approx(share, abs=0.011)
    ]
    expected = {
        (row["stream"], row["idle_category"]): pytest.approx(row["idle_time"], abs=0.02)
        for row in figures["idle"]
        if row["rank"] == rank and row["idle_time"]
    }
    assert _idle(timeline) == expected
    _check_kernels(timeline, [row for row in figures["kernels"] if row["rank"] == rank])
    _check_launches(timeline, figures["launches"][str(rank)])
    _check_queue(timeline, [row for row in figures["queue"] if row["rank"] == rank])


def check_classes(timelines: list[Timeline], figures: Figures) -> None:
    """Compare the sets of classes, summed over ranks, with its figures without rounding.

    It cuts the fraction of a microsecond off every interval, so its sums are smaller, by less than a
    microsecond an interval: twice the operations bound the number of intervals.
    """
    ours: dict[frozenset[str], float] = defaultdict(float)
    operations = 0
    for timeline in map(kept, timelines):
        operations += len(timeline.operations())
        for row in kernel_classes(timeline).rows.to_dict("records"):
            ours[frozenset(row["classes"].split("+"))] += row["ns"] / 1000
    theirs = {
        frozenset(CLASSES[kind] for kind in row["kernel_type"].split(" overlapping ")): row["sum"]
        for row in figures["kinds"]
    }
    assert {key for key, time in ours.items() if time >= 1000} <= set(theirs)
    for key, time in ours.items():
        assert -1 <= time - theirs.get(key, 0) <= 2 * operations


def _idle(timeline: Timeline) -> dict[tuple[int, str], float]:
    return {
        (row["stream"], row["cause"]): row["idle_ns"] / 1000
        for row in idle(timeline).rows.to_dict("records")
        if row["idle_ns"]
    }


def _check_kernels(timeline: Timeline, theirs: list[dict[str, Any]]) -> None:
    ours = {row["name"]: row for row in kernels(timeline).rows.to_dict("records")}
    theirs = [row for row in theirs if row["kernel_type"] != "MEMORY" and row["name"] in ours]
    assert len(theirs) == len(ours)
    for row in theirs:
        own = ours[row["name"]]
        for name, key in (("total", "sum"), ("avg", "mean"), ("max", "max"), ("min", "min")):
            assert own[f"{name}_ns"] == pytest.approx(row[f"{key} (us)"] * 1000, abs=1)
        # One decimal in ours.
        assert own["stddev_ns"] == pytest.approx(row["stddev"] * 1000, abs=1)


def _check_launches(timeline: Timeline, theirs: list[dict[str, Any]]) -> None:
    names = dict(
        zip(timeline.kernels.correlation.tolist(), timeline.names(timeline.kernels.name), strict=True)
    )
    expected: dict[str | None, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    for launch in theirs:
        if launch["correlation"] in names:
            total = expected[names[launch["correlation"]]]
            parts = 1, launch["cpu_duration"], launch["gpu_duration"], launch["launch_delay"]
            for i, value in enumerate(parts):
                total[i] += value
    found: dict[str | None, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in launches(timeline).rows.to_dict("records"):
        if row["api_name"] in LAUNCHES:
            total = found[row["name"]]
            queue = row["queue_count"] * row["queue_avg_ns"] if row["queue_count"] else 0
            parts = row["count"], row["count"] * row["api_avg_ns"], row["count"] * row["kernel_avg_ns"], queue
            for i, value in enumerate(parts):
                total[i] += value / (1000 if i else 1)
    assert found.keys() == expected.keys()
    for name, total in found.items():
        # Averages in ours have a tenth of a nanosecond, and doubles of its stamps half a one.
        assert total == pytest.approx(expected[name], abs=0.001 * total[0])


def _check_queue(timeline: Timeline, theirs: list[dict[str, Any]]) -> None:
    """Compare the streams whose launch calls it knows: those of NCCL are missing in its summary."""
    ours = {row["stream"]: row for row in queue_length(timeline).rows.to_dict("records")}
    assert theirs
    for row in theirs:
        own = ours[row["stream"]]
        keys = {"mean": "mean", "std": "stddev", "25%": "p25", "50%": "p50", "75%": "p75"}
        assert own["count"] == row["count"]
        for key, name in keys.items():
            assert math.isclose(own[name], row[key], abs_tol=0.01)
        assert (own["min"], own["max"]) == (row["min"], row["max"])
