"""Memory of a GPU over the time of a snapshot, checked against PyTorch's own figures and tool."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path

import pytest
from torch.cuda import _memory_viz

from hpcprof.analysis.memory.contents import KINDS, MemoryInUse, contents_of, line_of
from hpcprof.profiles.readers.flight_recorder import CodeLine
from hpcprof.profiles.readers.memory_snapshot import (
    Allocation,
    AllocatorAction,
    DeviceMemory,
    MemorySnapshot,
    Notes,
    read_memory_snapshot,
)

DATA = Path(__file__).parents[3] / "data" / "memory"
SNAPSHOTS = [
    "plain",
    "steps/rank00000.step5",
    "steps/rank00001.step5",
    "leak/rank00000.oom",
    "leak/rank00001.oom",
]


def _unpacked(name: str) -> bytes:
    return lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes())


def recorded(name: str, folder: Path) -> MemorySnapshot:
    """Return a recorded snapshot."""
    path = folder / "snapshot.pickle"
    path.write_bytes(_unpacked(name))
    return read_memory_snapshot(path)


def _contents(name: str, folder: Path) -> MemoryInUse:
    found = recorded(name, folder)
    return contents_of(found, next(one for one in found.devices if one.blocks))


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_totals_are_those_of_memory_viz(name: str, tmp_path: Path) -> None:
    snapshot = pickle.loads(_unpacked(name))
    lines = _memory_viz.memory(snapshot, format_flamegraph=lambda text: text).splitlines()
    active = sum(int(line.rpartition(" ")[2]) for line in lines if ";active_" in line)
    whole = sum(int(line.rpartition(" ")[2]) for line in lines)
    found = _contents(name, tmp_path)
    assert int(found.by_kind[:, -1].sum()) == active
    assert int(found.reserved[-1]) == whole


@pytest.mark.parametrize(
    ("name", "current", "peak", "reserved"),
    [
        ("plain", 80_758_784, 89_159_680, 94_371_840),
        ("steps/rank00000.step5", 76_340_736, 85_295_616, 104_857_600),
        ("steps/rank00001.step5", 76_340_736, 83_711_488, 104_857_600),
    ],
)
def test_current_and_peak_are_those_of_memory_stats(
    name: str, current: int, peak: int, reserved: int, tmp_path: Path
) -> None:
    found = _contents(name, tmp_path)
    total = found.by_kind.sum(axis=0)
    assert (int(total[-1]), int(total[found.peak]), int(found.reserved[-1])) == (current, peak, reserved)
    assert sum(held.bytes for held in found.held(found.peak).values()) == peak


def test_kinds_come_from_addresses_and_stacks(tmp_path: Path) -> None:
    found = _contents("steps/rank00000.step5", tmp_path)
    end = dict(zip(KINDS, found.by_kind[:, -1].tolist(), strict=True))
    # AdamW keeps two values of each parameter; DDP a bucket, and a copy of it on the first rank.
    assert end["optimizer"] == 2 * end["parameters"] > 0
    assert end["gradients"] > 0.9 * end["parameters"]
    assert end["communication"] > 0
    places = found.held(found.peak)
    modules = {place.module for place in places if place.kind == "activations"}
    assert {"layers.0.attention", "layers.1.attention", "layers.0"} <= modules
    assert {place.line for place in places if place.module == "layers.0.attention"} >= {
        "demo/train.py:11 forward"
    }


def test_the_culprit_of_a_failure_is_named_by_its_line(tmp_path: Path) -> None:
    found = _contents("leak/rank00001.oom", tmp_path)
    held = found.held(found.peak)
    place = max(held, key=lambda place: held[place].bytes)
    assert (place.kind, place.line) == ("other", "demo/train.py:26 remember")
    assert held[place] == (25 * (256 << 20), 25)


def test_without_notes_frames_tell_parameters_and_optimizer(tmp_path: Path) -> None:
    found = _contents("plain", tmp_path)
    kinds = dict(zip(KINDS, found.by_kind[:, -1].tolist(), strict=True))
    assert kinds["parameters"] == 4_200_448
    assert kinds["optimizer"] >= 2 * kinds["parameters"]


def test_memory_from_before_the_history_is_not_taken_for_gradients() -> None:
    events = (AllocatorAction("alloc", 1024, 1024, 1, 0, ""),)
    blocks = (Allocation(0, 512, 0), Allocation(1024, 1024, 0))
    snapshot = MemorySnapshot(
        (DeviceMemory(0, blocks, 4096, events),), ((), (CodeLine("f", "a.py", 1),)), Notes()
    )
    found = contents_of(snapshot, snapshot.devices[0])
    by_kind = dict(zip(KINDS, found.by_kind[:, -1].tolist(), strict=True))
    assert (by_kind["other"], by_kind["backward"]) == (512, 1024)
    assert {(one.kind, one.line) for one in found.purposes} == {
        ("other", "before the recording"),
        ("backward", ""),
    }


def test_generated_code_is_not_the_users_line() -> None:
    stack = (
        CodeLine("call", "/tmp/torchinductor_me/ab/cabc.py", 12),
        CodeLine("forward", "/home/me/model.py", 7),
    )
    assert line_of(stack) == "me/model.py:7 forward"
    assert line_of(()) == ""
