"""Snapshots of PyTorch's memory from other jobs: collected, explained, reported and compared."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from tests.conftest import Hpcprof

DATA = Path(__file__).parents[1] / "data" / "memory"


def _unpacked(source: str, folder: Path, ranks: str = "01") -> str:
    folder.mkdir()
    for path in (DATA / source).glob("*.xz"):
        if path.name[len("rank0000")] in ranks:
            (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return str(folder)


def test_a_folder_of_snapshots_is_explained(hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = _unpacked("leak", tmp_path / "snapshots")
    found = json.loads(hpcprof("explain", folder, "--format", "json").stdout)["findings"]
    assert [(one["cause"], one["ranks"], one["where"]) for one in found] == [
        ("out_of_memory", [1], "demo/train.py:26 remember")
    ]
    shown = hpcprof("report", folder, "--analysis", "memory", "--format", "csv").stdout.splitlines()
    assert "other,,demo/train.py:26 remember,6710886400,25," in "\n".join(shown)
    # The report begins with what is largest, on whatever rank.
    table = hpcprof("report", folder).stdout.partition("GPU memory at the peak")[2].splitlines()
    assert table[2].split()[:3] == ["1", "31", "other"] and "26 rem" in table[2]
    page = tmp_path / "page.html"
    assert hpcprof("report", folder, "--html", str(page)).returncode == 0
    assert "An allocation on a GPU failed" in page.read_text(encoding="utf-8")


def test_a_damaged_snapshot_is_said(hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = Path(_unpacked("leak", tmp_path / "snapshots"))
    path = folder / "rank00000.oom.pickle"
    path.write_bytes(path.read_bytes()[:5000])
    done = hpcprof("report", str(folder), "--analysis", "memory_snapshots")
    assert done.returncode == 0
    assert "1 snapshot could not be read" in done.stdout + done.stderr


def test_one_snapshot_can_be_named(hpcprof: Hpcprof, tmp_path: Path) -> None:
    folder = Path(_unpacked("leak", tmp_path / "snapshots"))
    shown = hpcprof("open", str(folder / "rank00001.oom.pickle"))
    assert shown.returncode == 0, shown.stderr
    assert "no profile" not in shown.stdout
    rows = hpcprof("report", "last", "--analysis", "memory_snapshots", "--format", "csv").stdout.splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["1"]
