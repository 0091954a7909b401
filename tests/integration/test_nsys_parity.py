"""The tables equal what ``nsys stats`` prints, figure by figure and in its order."""

from __future__ import annotations

import csv
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.nsys.reader import read
from tests.data import generated_exports

DATA = Path(__file__).parents[1] / "data"
STATISTICS = ["avg_ns", "med_ns", "min_ns", "max_ns", "stddev_ns"]
# Each report of nsys: the analysis, and its keys in the order of the report's columns.
REPORTS: dict[str, tuple[str, list[str]]] = {
    "cuda_gpu_kern_sum": ("kernels", ["time_pct", "total_ns", "instances", *STATISTICS, "name"]),
    "cuda_gpu_kern_gb_sum": (
        "kernels_by_shape",
        ["time_pct", "total_ns", "instances", *STATISTICS, "grid", "block", "name"],
    ),
    "cuda_gpu_mem_time_sum": ("memops", ["time_pct", "total_ns", "count", *STATISTICS, "operation"]),
    "cuda_kern_exec_sum": (
        "launches",
        [
            *("pid", "tid", "device", "count", "queue_count"),
            *(f"{part}_{name}" for part in ("total", "api", "queue", "kernel") for name in STATISTICS),
            *("api_name", "name"),
        ],
    ),
    "cuda_api_sum": ("api", ["time_pct", "total_ns", "num_calls", *STATISTICS, "name"]),
    "nvtx_sum": ("ranges", ["time_pct", "total_ns", "instances", *STATISTICS, "style", "range"]),
    "nvtx_gpu_proj_sum": (
        "range_gpu",
        [
            *("range", "style", "proj_total_ns", "range_total_ns", "instances"),
            *(f"proj_{name}" for name in STATISTICS),
            *("gpu_ops", "avg_gpu_ops", "avg_range_lvl", "avg_num_child"),
        ],
    ),
}
GENERATED: dict[str, Any] = json.loads(lzma.decompress((DATA / "generated_expected.json.xz").read_bytes()))


def computed(path: Path, report: str) -> list[list[Any]]:
    """Return the rows of one of our tables in the columns of a report."""
    name, keys = REPORTS[report]
    rows = analyze_rank(ANALYSES[name], read(path), 0).frame
    return [list(row) for row in rows[keys].itertuples(index=False)]


def printed(value: Any, like: Any) -> Any:
    """Return a printed figure in the type of ours; an empty cell is None or an empty name."""
    if value == "":
        return "" if like == "" else None
    if set(value) <= set("0123456789 ") and isinstance(like, str):
        # A grid or block, which nsys pads to columns.
        return " ".join(value.split())
    return value if isinstance(like, str) else float(value)


def assert_equal(ours: list[list[Any]], theirs: list[list[str]]) -> None:
    """Compare cell by cell."""
    assert len(ours) == len(theirs)
    for own, their in zip(ours, theirs, strict=True):
        assert own == [printed(value, like) for value, like in zip(their, own, strict=True)]


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_real_profile_gives_the_figures_of_nsys_stats(tmp_path: Path, rank: int, report: str) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
    with (DATA / f"sp_bf16_rank{rank}" / f"{report}.csv").open(encoding="utf-8", newline="") as file:
        expected = list(csv.reader(file))[1:]
    assert expected
    assert_equal(computed(path, report), expected)


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("seed", GENERATED)
def test_a_generated_profile_gives_the_figures_of_nsys_stats(tmp_path: Path, seed: str, report: str) -> None:
    path = tmp_path / "profile.sqlite"
    generated_exports.write(path, int(seed))
    assert_equal(computed(path, report), GENERATED[seed][report])
