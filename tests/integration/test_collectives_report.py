"""Collectives and skew of a real run through the command line."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from hpcprof.common.units import format_bytes, format_value
from hpcprof.report.contents import stragglers
from tests.conftest import Hpcprof

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Four ranks' real exports."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    for rank in range(4):
        packed = DATA / f"sp_bf16_rank{rank}.sqlite.xz"
        (folder / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


def test_a_report_tells_the_bus_bandwidth_and_who_is_late(
    hpcprof: Hpcprof, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert hpcprof("collect", str(profiles)).returncode == 0
    report = hpcprof("report", str(profiles)).stdout
    flat = " ".join(report.split())
    assert "AllGather of 134.2 MB 285.8 GB/s (n=43); ReduceScatter of 134.2 MB 287.5 GB/s (n=43)" in flat
    assert "stragglers none among 4 ranks (n=43 steps)" in flat
    assert all(len(line) <= 80 for line in report.splitlines())
    found = hpcprof("report", str(profiles), "--analysis", "skew", "--format", "json")
    assert [row["verdict"] for row in json.loads(found.stdout)] == ["even"] * 4
    for name in ("collectives", "collectives_summary", "skew", "skew_summary", "rank_collectives"):
        shown = hpcprof("report", str(profiles), "--analysis", name)
        assert shown.returncode == 0, shown.stderr
        assert all(len(line) <= 80 for line in shown.stdout.splitlines()), name


def test_stragglers_are_named_with_lateness_cost_and_uncertainty() -> None:
    def row(rank: int, verdict: str, cost: float = 0.0) -> dict[str, object]:
        return {
            "rank": rank,
            "steps": 40,
            "lateness_p50_ns": 512_300,
            "uncertainty_ns": 1_900,
            "cost_pct": cost,
            "verdict": verdict,
        }

    even = [row(i, "even") for i in range(3)]
    assert stragglers([*even, row(3, "straggler", 14.94)]) == (
        "rank 3 is late by 512.3 µs a step, 14.9 % of the step time (n=40, clocks ± 1.900 µs)"
    )
    many = stragglers([row(i, "straggler", float(i)) for i in range(9)])
    assert many.startswith("rank 8 ")
    assert many.endswith("; and 6 more")
    assert stragglers([*even, row(3, "unknown")]).startswith("unknown for 1 of 4 ranks")
    assert stragglers(even) == "none among 3 ranks (n=40 steps)"
    assert stragglers(even[:1]) == ""


def test_sizes_and_bandwidths_carry_their_units() -> None:
    assert [format_bytes(n) for n in (4, 2048, 134_217_728, 3e9)] == [
        "4 B",
        "2.048 kB",
        "134.2 MB",
        "3.000 GB",
    ]
    assert [format_value("busbw_gbps", v) for v in (285.8485, 0.0123, None)] == [
        "285.8 GB/s",
        "0.0123 GB/s",
        "–",
    ]
