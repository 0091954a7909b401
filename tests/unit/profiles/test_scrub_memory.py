"""Copies of snapshots of PyTorch's memory."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path

import pytest

from hpcprof.analysis.memory.contents import contents_of
from hpcprof.common.errors import UsageError
from hpcprof.profiles.readers.memory_snapshot import read_memory_snapshot
from hpcprof.profiles.scrub.files import scrub_files

DATA = Path(__file__).parents[2] / "data" / "memory"


def test_a_copy_has_no_paths_and_the_same_figures(tmp_path: Path) -> None:
    path = tmp_path / "rank00001.oom.pickle"
    path.write_bytes(lzma.decompress((DATA / "leak/rank00001.oom.pickle.xz").read_bytes()))
    done = scrub_files([path], tmp_path / "shared")
    assert not done.skipped
    ((copy, left_out),) = done.written
    assert "paths, hosts and users" in left_out
    assert b"/home/user" in path.read_bytes()
    assert b"/home/user" not in copy.read_bytes()
    assert copy.stat().st_size < 1.2 * path.stat().st_size
    found = [contents_of(one, one.devices[-1]) for one in map(read_memory_snapshot, (path, copy))]
    assert (found[0].by_kind == found[1].by_kind).all()
    assert {(place.kind, place.line) for place in found[1].held(found[1].peak)} >= {
        ("other", "train.py:26 remember"),
        ("activations", "train.py:11 forward"),
    }


def test_a_damaged_snapshot_is_skipped_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": 3}))
    done = scrub_files([path], tmp_path / "shared")
    assert "a.pickle" in done.skipped[0]
    with pytest.raises(UsageError, match="dump_snapshot"):
        scrub_files([tmp_path / "a.txt"], tmp_path / "other")
