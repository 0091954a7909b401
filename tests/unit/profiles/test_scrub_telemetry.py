"""Copies of the samples of nodes for sharing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.profiles.readers.telemetry import read_telemetry
from hpcprof.profiles.scrub.files import scrub_files

HEADER = {
    "node": "nid001234",
    "time": 1000.0,
    "limits": {"cores": 8, "memory_bytes": None},
    "gpus": ["A GPU"],
    "ranks": {"0": {"cores": [1], "gpus": [0], "devices": "GPU-12345678-aaaa", "later": "secret"}},
    "missing": {"network": "no interface is up"},
    "fast": ["rank0 cpu_s"],
    "slow": ["nfs:/home/alice read_bytes", "lustre:secret io_calls", "nic:eth0 errors"],
    "later": "/home/alice",
}


def test_samples_stay_and_hosts_mounts_and_identities_go(tmp_path: Path) -> None:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    lines = [json.dumps(HEADER), "[1000.0,[1.5],[10,20,0]]", '[1001.0,["alice"]]', "{cut", "[1001.0,[2.0]]"]
    (folder / "nid001234.jsonl").write_text("\n".join(lines))
    done = scrub_files([folder / "nid001234.jsonl"], tmp_path / "copy/telemetry")
    ((copy, left_out),) = done.written
    assert left_out == ["hosts and mount points", "2 damaged lines"]
    assert "nid001234" in done.warnings[0]
    text = copy.read_text()
    assert not any(word in text for word in ("nid001234", "alice", "secret", "GPU-1"))
    (node,) = read_telemetry(tmp_path / "copy")
    assert node.series["nfs:1", "read_bytes"].values.tolist() == [10.0]
    assert node.series["lustre:2", "io_calls"].values.tolist() == [20.0]
    assert node.series["rank0", "cpu_s"].values.tolist() == [1.5, 2.0]
    assert node.damaged == 0 and node.ranks[0].cores == (1,)


def test_a_file_without_samples_is_named_and_other_lines_are_none_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    (folder / "n.jsonl").write_text("{cut\n")
    assert "has no samples" in scrub_files([folder / "n.jsonl"], tmp_path / "copy").skipped[0]
    (tmp_path / "n.jsonl").write_text("[1.0,[2.0]]\n")
    with pytest.raises(UsageError, match=r"cannot be scrubbed\. Valid are: [^:]*; .* of PyTorch; "):
        scrub_files([tmp_path / "n.jsonl"], tmp_path / "other")
