"""Snapshots of PyTorch's memory: recorded ones, those of earlier versions, damaged and hostile ones."""

from __future__ import annotations

import lzma
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.memory_snapshot import (
    find_memory_snapshots,
    is_memory_snapshot,
    read_memory_snapshot,
)

DATA = Path(__file__).parents[3] / "data" / "memory"
PLAIN = lzma.decompress((DATA / "plain.pickle.xz").read_bytes())


def _read(folder: Path, data: bytes) -> Any:
    path = folder / "snapshot.pickle"
    path.write_bytes(data)
    return read_memory_snapshot(path)


def test_a_recorded_snapshot(tmp_path: Path) -> None:
    found = _read(tmp_path, PLAIN)
    first = found.devices[0]
    assert sum(block.size for block in first.blocks) == 80_758_784
    assert first.reserved_bytes == 94_371_840
    assert {event.action for event in first.events} >= {"alloc", "free_completed", "segment_alloc"}
    assert all(event.time_us > 1.7e15 for event in first.events)
    assert found.notes.event == "snapshot"
    assert any(frame.function == "forward" for stack in found.stacks for frame in stack)


def test_frames_of_cpp_are_left_out(tmp_path: Path) -> None:
    unwind = {"name": "torch::unwind::unwind()", "filename": "??", "line": 0}
    engine = {"name": "torch::autograd::Engine::thread_main", "filename": "engine.cpp", "line": 77}
    step = {"name": "step", "filename": "/home/me/train.py", "line": 82}
    blocks = [
        {"size": 512, "state": "active_allocated", "frames": [unwind] * 300 + [step]},
        {"size": 512, "state": "active_allocated", "frames": [unwind, engine]},
    ]
    segment = {"device": 0, "address": 0, "total_size": 1024, "blocks": blocks}
    found = _read(tmp_path, pickle.dumps({"segments": [segment]}))
    stacks = [found.stacks[block.stack] for block in found.devices[0].blocks]
    assert [[frame.function for frame in stack] for stack in stacks] == [["step"], []]


def test_the_notes_of_the_hook(tmp_path: Path) -> None:
    found = _read(tmp_path, lzma.decompress((DATA / "leak/rank00001.oom.pickle.xz").read_bytes()))
    assert (found.notes.event, found.notes.rank, found.notes.step) == ("out_of_memory", 1, 31)
    assert found.notes.asked_bytes == 48 << 20
    assert {kind for kind, _, _ in found.notes.tensors} == {"parameters", "optimizer"}


def test_a_snapshot_of_an_early_version_has_stacks_in_a_history(tmp_path: Path) -> None:
    frames = [{"name": "f", "filename": "a.py", "line": 3}]
    blocks = [
        {"size": 512, "state": "active_allocated", "history": [{"addr": 0, "frames": frames}]},
        {"size": 1024, "state": "inactive"},
        {"size": 2048, "state": "active_pending_free"},
    ]
    segment = {"device": 0, "address": 4096, "total_size": 4096, "blocks": blocks}
    found = _read(tmp_path, pickle.dumps({"segments": [segment]}))
    assert [(block.address, block.size) for block in found.devices[0].blocks] == [(4096, 512), (5632, 2048)]
    assert found.stacks[found.devices[0].blocks[0].stack][0].line == 3


def test_files_are_known_by_name_and_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "b.pickle").write_bytes(PLAIN)
    (tmp_path / "a.PKL").write_bytes(PLAIN)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [1]}))
    (tmp_path / "notes.txt").write_bytes(PLAIN)
    (tmp_path / ".b.pickle.1").write_bytes(PLAIN)
    assert [path.name for path in find_memory_snapshots(tmp_path)] == ["a.PKL", "b.pickle"]
    assert not is_memory_snapshot(tmp_path / "missing.pickle")


class Hostile:
    """Runs a command when it is unpickled by the usual unpickler."""

    def __reduce__(self) -> Any:
        return (Path, ("/tmp/made-by-a-pickle",))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps({"segments": [Hostile()]}), "instruction"),
        (b"\x80\x04r\xff\xff\xff\x7f.", "too many|damaged"),
        (b"", "exhausted"),
        (pickle.dumps([1]), "no list of segments"),
        (pickle.dumps({"segments": [{"device": -1}]}), "-1"),
        (pickle.dumps({"segments": [{"device": 0, "total_size": 1 << 70}]}), "size or an address"),
        (pickle.dumps({"segments": [3]}), "TypeError"),
        (pickle.dumps({"segments": [], "hpcprof": {"tensors": [3]}}), "tensors"),
    ],
)
def test_a_snapshot_that_is_none_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match=said):
        _read(tmp_path, data)


def test_repeated_parts_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcprof.profiles.readers.memory_snapshot._MAX_ITEMS", 4000)
    blocks = [{"size": 512, "state": "active_allocated", "address": 0}] * 90
    segment = {"device": 0, "address": 0, "total_size": 512, "blocks": blocks}
    with pytest.raises(DamagedInput, match="too many blocks"):
        _read(tmp_path, pickle.dumps({"segments": [segment] * 90}))


@given(
    st.lists(st.tuples(st.integers(0, len(PLAIN) - 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, len(PLAIN)),
)
def test_damage_is_named(changes: list[tuple[int, int]], length: int) -> None:
    import tempfile

    data = bytearray(PLAIN)
    for place, value in changes:
        data[place] = value
    with tempfile.TemporaryDirectory() as folder:
        for damaged in (bytes(data), PLAIN[:length]):
            try:
                found = _read(Path(folder), damaged)
            except DamagedInput:
                continue
            assert found.devices is not None


def test_the_recorded_pickle_is_of_plain_instructions() -> None:
    names = {instruction.name for instruction, _, _ in pickletools.genops(PLAIN)}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
