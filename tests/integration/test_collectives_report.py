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
    # The ranks drift for many steps at a time, which hides a lateness of up to 7.7 % of a step.
    assert "stragglers unknown for 4 of 4 ranks: see" in flat
    assert all(len(line) <= 80 for line in report.splitlines())
    found = hpcprof("report", str(profiles), "--analysis", "skew", "--format", "json")
    # The clocks of these ranks jump by up to 70 us now and then: more than 1 % of a step of 3.7 ms.
    assert [row["verdict"] for row in json.loads(found.stdout)] == ["unknown"] * 4
    for name in ("collectives", "collectives_summary", "skew", "skew_summary", "rank_collectives"):
        shown = hpcprof("report", str(profiles), "--analysis", name)
        assert shown.returncode == 0, shown.stderr
        assert all(len(line) <= 80 for line in shown.stdout.splitlines()), name


def test_the_slower_stage_of_a_real_pipeline_is_named_and_its_messages_are_listed(
    hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for rank in range(2):
        name = f"pipeline_rank{rank}.pt.trace.json.gz"
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    assert hpcprof("collect", str(tmp_path)).returncode == 0

    def verdicts(*options: str) -> list[str]:
        done = hpcprof("report", str(tmp_path), "--analysis", "skew", "--format", "json", *options)
        return [row["verdict"] for row in json.loads(done.stdout)]

    assert verdicts() == ["even", "straggler"]
    # A verdict takes in what the explanation finds, also before a report.
    kept = hpcprof("query", "select count(*) as n from explanations", "--format", "json")
    assert json.loads(kept.stdout) == [{"n": 1}]
    report = " ".join(hpcprof("report", str(tmp_path)).stdout.split())
    # Stage 1 has twice the layers, of which half may move: the cost is the saving of the finding.
    assert "on rank 1: 3.680 ms of each step, 23.6 %" in report
    assert "stragglers the lateness of rank 1 costs 3.680 ms a step, 23.6 % of " in report
    rows = json.loads(
        hpcprof("report", str(tmp_path), "--analysis", "point_to_point", "--format", "json").stdout
    )
    assert len(rows) == 64
    assert {(row["sender"], row["receiver"]) for row in rows} == {(0, 1), (1, 0)}
    assert {row["bytes"] for row in rows} == {8_388_608}
    shown = hpcprof("report", str(tmp_path), "--analysis", "point_to_point_summary")
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert verdicts() == verdicts("--threshold", "23") == ["even", "straggler"]
    assert verdicts("--threshold", "24") == ["even", "late"]
    report = " ".join(hpcprof("report", str(tmp_path), "--threshold", "60").stdout.split())
    assert "stragglers none, but the lateness of rank 1 costs 3.680 ms a step" in report
    wrong = hpcprof("report", str(tmp_path), "--analysis", "kernels", "--threshold", "3")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "hpcprof: --threshold belongs to the full report and to the analyses skew and skew_summary, not to "
        "kernels.\n",
    )
