"""The samples of a node, as its sampler writes them and as a damaged file has them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.profiles.readers import telemetry
from hpcprof.profiles.readers.telemetry import has_telemetry, read_telemetry

HEADER = {
    "node": "n1",
    "time": 1000.0,
    "limits": {"cores": 8, "memory_bytes": None},
    "gpus": ["A", "A"],
    "ranks": {
        "3": {"cores": [0, 1], "gpus": [], "devices": "1"},
        "4": {"cores": [2], "gpus": [0], "devices": "0,1"},
    },
    "missing": {"Xid errors": "NVML does not count them"},
    "fast": ["rank3 cpu_s", "gpu1 power_w", "gpu1 of_a_later_version"],
    "slow": ["node memory_used_bytes"],
}
LINES = [HEADER, [1000.0, [1.0, 300.5, 7], [5]], [1000.1, [1.1, None, 7]], [1001.0, [2.0, 301.5, 7], [6]]]


def written(folder: Path, lines: list[Any]) -> Path:
    (folder / "telemetry").mkdir(exist_ok=True)
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "telemetry/n1.jsonl").write_text(text)
    return folder


def test_samples_are_read_by_device_and_metric(tmp_path: Path) -> None:
    assert not has_telemetry(tmp_path)
    (node,) = read_telemetry(written(tmp_path, LINES))
    assert has_telemetry(tmp_path)
    assert (node.node, node.gpus, node.damaged, dict(node.limits)) == ("n1", ("A", "A"), 0, {"cores": 8.0})
    assert set(node.series) == {("rank3", "cpu_s"), ("gpu1", "power_w"), ("node", "memory_used_bytes")}
    power = node.series["gpu1", "power_w"]
    # What could not be read is no sample.
    assert power.times.tolist() == [1000.0, 1001.0] and power.values.tolist() == [300.5, 301.5]
    assert node.series["node", "memory_used_bytes"].values.tolist() == [5.0, 6.0]
    assert node.ranks[3].cores == (0, 1)
    # The GPUs that a rank used, else the one that it may see; one that sees all has none of its own.
    assert (node.rank_of_gpu(1), node.rank_of_gpu(0)) == (3, 4)


def test_names_change_when_ranks_begin_and_end(tmp_path: Path) -> None:
    later = {**HEADER, "ranks": {}, "fast": [], "slow": ["node memory_used_bytes"]}
    (node,) = read_telemetry(written(tmp_path, [*LINES, later, [1002.0, [], [9]]]))
    assert node.series["node", "memory_used_bytes"].values.tolist() == [5.0, 6.0, 9.0]
    assert set(node.ranks) == {3, 4}


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    bad = [
        "{",
        "[999.0,[1,2,3]]",
        "[1002.0,[1]]",
        "[1002.0]",
        "7",
        '["x",[1,2,3]]',
        "[1e999,[1,2,3]]",
        '{"fast":3}',
    ]
    (node,) = read_telemetry(written(tmp_path, [*LINES, *bad, [1003.0, [3.0, 1, 7]]]))
    assert node.damaged == len(bad)
    assert node.series["rank3", "cpu_s"].values.tolist() == [1.0, 1.1, 2.0, 3.0]


def test_a_file_of_countless_damaged_lines_is_read_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_MAX_DAMAGED_LINES", 100)
    (written(tmp_path, []) / "telemetry/n1.jsonl").write_bytes(b"{}\n" * 1000)
    (node,) = read_telemetry(tmp_path)
    assert node.damaged == 100


def test_damaged_files_raise_nothing(tmp_path: Path) -> None:
    whole = "".join(f"{json.dumps(line)}\n" for line in LINES).encode()
    chance = random.Random(1)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (written(tmp_path, []) / "telemetry/n1.jsonl").write_bytes(damaged)
        for node in read_telemetry(tmp_path):
            assert all(np.isfinite(one.values).all() for one in node.series.values())
