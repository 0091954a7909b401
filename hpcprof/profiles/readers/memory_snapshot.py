"""Snapshots of PyTorch's memory: a process's allocations on GPUs with their stacks, and the events before.

``torch.cuda.memory._dump_snapshot`` writes them, and the hook of a run (`hpcprof.node.hooks.memory_history`)
with one more key. They are pickles of somebody else: only plain values are loaded, up to a maximum number.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.common.paths import is_folder
from hpcprof.node.hooks.memory_history import NOTES
from hpcprof.profiles.readers.flight_recorder import CodeLine
from hpcprof.profiles.readers.plain_pickle import load_plain

SUFFIXES = (".pickle", ".pkl")
FILES = "*.pickle and *.pkl of torch.cuda.memory._dump_snapshot"

_MAX_SNAPSHOT_BYTES = 512 << 20
_MAX_VALUES = 50_000_000
_MAX_ITEMS = 4_000_000
"""Maximum number of blocks and events: a pickle can repeat parts of itself."""

_MAX_FRAMES = 200
_PYTHON = re.compile(r"\.pyx?$|^<")
"""Files of Python. PyTorch records the frames of C++ between and below them unless told stacks="python"."""
_MAX_NUMBER = 1 << 62
_HEAD_BYTES = 4096
_ACTIVE = "active"
"""The states of blocks that nobody else can use begin with it."""


class Allocation(NamedTuple):
    """Memory that is in use: its address, its size in bytes, and the number of its stack."""

    address: int
    size: int
    stack: int


class AllocatorAction(NamedTuple):
    """An action of the allocator, in its own words (``alloc``, ``free_completed``, ``segment_alloc``, …).

    ``time_us`` is in microseconds since 1970, 0 if unknown; ``module`` is the module that ran.
    """

    action: str
    address: int
    size: int
    time_us: int
    stack: int
    module: str


class DeviceMemory(msgspec.Struct, frozen=True):
    """The memory of one GPU: its blocks in use, the bytes reserved, and the events up to then, in order."""

    device: int
    blocks: tuple[Allocation, ...]
    reserved_bytes: int
    events: tuple[AllocatorAction, ...]


class Notes(msgspec.Struct, frozen=True):
    """The notes of the hook; those of a snapshot that was made without hpcprof are empty."""

    event: str = "snapshot"
    """``step``, ``out_of_memory``, ``asked`` or ``snapshot``."""
    rank: int | None = None
    step: int | None = None
    begin_us: int = 0
    end_us: int = 0
    """The times at which the step began and the snapshot was taken, in microseconds since 1970."""
    lost: bool = False
    """True if events since the begin of the step are missing."""
    tensors: list[tuple[str, str, int]] = []
    """The kind of a tensor, its name, and the address of its memory."""
    device: int | None = None
    asked_bytes: int | None = None
    free_bytes: int | None = None
    device_bytes: int | None = None
    """An allocation that failed: its ``device``, sizes, and the ``module`` that it was made inside."""
    module: str = ""


class MemorySnapshot(msgspec.Struct, frozen=True):
    """Contents of the memory of a process's GPUs.

    ``stacks`` has each stack once, the innermost frame first; an empty one has the number 0.
    """

    devices: tuple[DeviceMemory, ...]
    stacks: tuple[tuple[CodeLine, ...], ...]
    notes: Notes


def is_memory_snapshot(path: Path) -> bool:
    """Return whether a file is a snapshot, by its name and its first bytes."""
    if not path.name.lower().endswith(SUFFIXES) or path.name.startswith(".") or not path.is_file():
        return False
    with reading(path), path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return head[:1] == b"\x80" and b"segments" in head


def find_memory_snapshots(folder: Path) -> list[Path]:
    """Return the snapshots in a folder, sorted; none if it does not exist."""
    if not is_folder(folder):
        return []
    with reading(folder):
        return sorted(path for path in folder.iterdir() if is_memory_snapshot(path))


def load_values(path: Path) -> dict[str, Any]:
    """Return the plain values of a snapshot.

    Raises DamagedInput if it is no snapshot, or holds anything but plain values, or too much.
    """
    with reading(path), path.open("rb") as file:
        data = file.read(_MAX_SNAPSHOT_BYTES + 1)
    try:
        if len(data) > _MAX_SNAPSHOT_BYTES:
            raise ValueError(f"it has more than {_MAX_SNAPSHOT_BYTES >> 20} MB")
        values = load_plain(data, _MAX_VALUES)
        if not isinstance(values, dict) or not isinstance(values.get("segments"), list):
            raise ValueError("it has no list of segments")
    except ValueError as error:
        raise DamagedInput(f"{path} is not a snapshot of PyTorch's memory: {error}.") from None
    return values


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """Read a snapshot."""
    values = load_values(path)
    try:
        return _SnapshotReader().read(values)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, msgspec.ValidationError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DamagedInput(f"{path} is not a snapshot of PyTorch's memory: {reason}.") from None


class _SnapshotReader:
    """A snapshot on the way: the stacks so far, and how many blocks and events."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[CodeLine, ...], int] = {(): 0}
        self._by_id: dict[int, int] = {}
        self._items = 0

    def read(self, values: Mapping[str, Any]) -> MemorySnapshot:
        blocks: dict[int, list[Allocation]] = {}
        reserved: dict[int, int] = {}
        for segment in values["segments"]:
            device = _number(segment["device"])
            reserved[device] = reserved.get(device, 0) + _number(segment["total_size"])
            blocks.setdefault(device, []).extend(self._blocks(segment))
        traces = values.get("device_traces") or []
        events = {device: tuple(self._events(trace)) for device, trace in enumerate(traces) if trace}
        devices = tuple(
            DeviceMemory(
                device, tuple(blocks.get(device, ())), reserved.get(device, 0), events.get(device, ())
            )
            for device in sorted({*reserved, *events})
        )
        return MemorySnapshot(devices, tuple(self._stacks), msgspec.convert(values.get(NOTES) or {}, Notes))

    def _blocks(self, segment: Mapping[str, Any]) -> Iterator[Allocation]:
        address = _number(segment["address"])
        for block in segment["blocks"]:
            self._count()
            size = _number(block["size"])
            # Snapshots of PyTorch before 2.1 have no addresses of blocks, and stacks in a history.
            place = _number(block.get("address", address))
            address = place + size
            if str(block["state"]).startswith(_ACTIVE):
                history = block.get("history") or [{}]
                yield Allocation(place, size, self._stack(block.get("frames") or history[0].get("frames")))

    def _events(self, trace: Any) -> Iterator[AllocatorAction]:
        for event in trace:
            self._count()
            yield AllocatorAction(
                str(event["action"]),
                _number(event.get("addr", 0)),
                _number(event["size"]),
                _number(event.get("time_us", 0)),
                self._stack(event.get("frames")),
                str(event.get("user_metadata", "")),
            )

    def _count(self) -> None:
        self._items += 1
        if self._items > _MAX_ITEMS:
            raise ValueError("it has too many blocks and events")

    def _stack(self, frames: Any) -> int:
        if not frames:
            return 0
        cached = self._by_id.get(id(frames))
        if cached is None:
            stack = tuple(
                CodeLine(str(frame["name"]), str(frame["filename"]), _number(frame["line"]))
                for frame in frames
                if _PYTHON.search(str(frame["filename"]))
            )[:_MAX_FRAMES]
            cached = self._by_id[id(frames)] = self._stacks.setdefault(stack, len(self._stacks))
        return cached


def _number(value: Any) -> int:
    """Return a number that is none of a damaged file: whole, not negative and not too large."""
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise ValueError(f"it has {value!r} where a size or an address should be")
    return value
