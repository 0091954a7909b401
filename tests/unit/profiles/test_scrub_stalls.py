"""Copies of the evidence of a stall for sharing."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.scrub.files import scrub_files
from hpcprof.profiles.scrub.names import Names
from hpcprof.profiles.scrub.stalls import is_evidence, scrub
from hpcprof.results.collect.stalls import judge_folder

PRIVATE = ("alice", "secret", "train_x")
STACK = """Thread 0x00007f48d987ab80 (most recent call first):
  File "/home/alice/secret/train.py", line 16 in load_batch
  File "/train_x", line 3 in <module>
"""
NATIVE = """Thread 1 (Thread 0x7f2a (LWP 77) "python"):
#0  0x000055d5966a4255 in load_batch () at /home/alice/secret/io.c:5
#1  0x00007f62c6074f72 in PMPI_Barrier () from /home/alice/lib/libmpi.so.12
"""
PROCESS = "77 (train_x) S 1 77 77 0 -1\nwchan hrtimer_nanosleep\nState:\tS (sleeping)\n"
FLIGHT = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "ranks": [0, 1]}},
    "entries": [
        {
            "process_group": ["0", "default_pg"],
            "profiling_name": "gloo:all_reduce",
            "collective_seq_id": 1,
            "frames": [{"name": "reduce", "filename": "/home/alice/secret/train.py", "line": 9}],
        }
    ],
}


def test_evidence_keeps_functions_and_lines_and_loses_paths(tmp_path: Path) -> None:
    texts = {
        "rank00001.stack": STACK,
        "rank00001.native.77": NATIVE,
        "rank00001.process": PROCESS,
        "rank00000.flight.json": json.dumps(FLIGHT),
        "rank00000.json": json.dumps({"rank": 0, "threads": [{"frames": FLIGHT["entries"][0]["frames"]}]}),  # type: ignore[index]
    }
    for name, text in texts.items():
        assert is_evidence(tmp_path / name)
        (tmp_path / name).write_text(text)
    done = scrub_files([tmp_path / name for name in texts], tmp_path / "shared")
    assert (len(done.written), done.skipped) == (len(texts), [])
    copies = {path.name: path.read_text() for path, _ in done.written}
    assert not [word for word in PRIVATE for text in copies.values() if word in text]
    assert "line 16 in load_batch" in copies["rank00001.stack"]
    assert "PMPI_Barrier" in copies["rank00001.native.77"]
    assert "State:\tS (sleeping)" in copies["rank00001.process"]
    found = judge_folder(tmp_path / "shared")
    assert found is not None
    assert (found.ranks, found.collective and found.collective.name) == ((1,), "all_reduce")


def test_a_dump_that_pytorch_wrote_becomes_json_without_paths(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.flight.pickle"
    path.write_bytes(pickle.dumps(FLIGHT))
    assert is_evidence(path)
    assert scrub(path, tmp_path / "copy", Names()) == ["paths, hosts and users"]
    copy = json.loads((tmp_path / "copy").read_text())
    assert copy["entries"][0]["frames"][0]["line"] == 9
    assert not [word for word in PRIVATE if word in (tmp_path / "copy").read_text()]


def test_damaged_evidence_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.flight.json"
    path.write_text("{")
    with pytest.raises(DamagedInput, match="damaged JSON"):
        scrub(path, tmp_path / "copy", Names())
    assert not is_evidence(tmp_path / "rank00000.sqlite")
