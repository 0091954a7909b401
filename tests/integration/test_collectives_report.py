"""Collectives and skew of a real run through the command line."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

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
    assert "AllGather of 134.2 MB: 285.8 GB/s (n=43); ReduceScatter of 134.2 MB: 287.5 GB/s (n=43)" in flat
    assert "stragglers none among 4 ranks (n=43 steps)" in flat
    assert all(len(line) <= 80 for line in report.splitlines())
    found = hpcprof("report", str(profiles), "--analysis", "skew", "--format", "json")
    # The clocks of these ranks jump by up to 70 us now and then: more than 1 % of a step of 3.7 ms.
    assert [row["verdict"] for row in json.loads(found.stdout)] == ["unknown"] * 4
    for name in ("collectives", "collectives_summary", "skew", "skew_summary", "rank_collectives"):
        shown = hpcprof("report", str(profiles), "--analysis", name)
        assert shown.returncode == 0, shown.stderr
        assert all(len(line) <= 80 for line in shown.stdout.splitlines()), name
