"""Contents of a GPU's memory over the time of a snapshot, by kind, module and line."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from hpcprof.analysis.stalls.evidence import user_frame
from hpcprof.profiles.readers.flight_recorder import CodeLine
from hpcprof.profiles.readers.memory_snapshot import DeviceMemory, MemorySnapshot
from hpcprof.profiles.timeline import Ints

_BEFORE_HISTORY = "before the recording"
"""The line of memory whose allocation the history of a snapshot does not have."""

KINDS = ("parameters", "gradients", "optimizer", "activations", "backward", "communication", "other")
"""The kinds of blocks. `FRAGMENTATION` is reserved beside them, and `OUTSIDE` used by others."""

FRAGMENTATION, OUTSIDE = "fragmentation", "outside"

_OPTIMIZER = re.compile(r"torch[/\\]optim[/\\]")
_COMMUNICATION = re.compile(
    r"torch[/\\](?:distributed|nn[/\\]parallel)[/\\]|deepspeed[/\\](?:comm|runtime)[/\\]"
    r"|megatron[/\\]core[/\\]distributed[/\\]|fairscale[/\\]"
)
_MODULE = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py$")
_GENERATED_CODE = re.compile(r"torchinductor|^<")
"""Code that a compiler made: the line of the user is further out."""

_GRANULARITY_BYTES = 512
"""The sizes of the allocator's blocks are multiples of it; events have the requested size."""

_MODULE_CALLS = ("_call_impl", "_wrapped_call_impl")
_MODULE_MOVES = ("_apply", "to", "cuda")
"""The functions of ``torch.nn.Module`` that call a module, and that move its parameters to a device."""


class Purpose(NamedTuple):
    """Purpose of memory: its kind, the module of the program, and the line that allocated it."""

    kind: str
    module: str
    line: str


class Held(NamedTuple):
    """The bytes and the number of blocks that a purpose holds."""

    bytes: int
    blocks: int


class MemoryInUse(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The blocks of a GPU over the events of a snapshot."""

    device: int
    purposes: tuple[Purpose, ...]
    purpose: Ints
    """The purpose of each block, as its index in ``purposes``; shape (blocks,)."""
    size: Ints
    """Bytes of each block."""
    first: Ints
    last: Ints
    """The numbers of events until each block is allocated and until it is free again."""
    times_us: Ints
    """Time of each event; the last one is the end; shape (events + 1,)."""
    reserved: Ints
    """The bytes that PyTorch has reserved, by number of events; shape (events + 1,)."""
    failed_after: int | None = None
    """The number of events before an allocation failed; None if none did."""

    @cached_property
    def by_kind(self) -> Ints:
        """The bytes of each of `KINDS` by number of events, shape (kinds, events + 1)."""
        kinds = np.array([KINDS.index(purpose.kind) for purpose in self.purposes], np.int64)[self.purpose]
        changes = np.zeros((len(KINDS), len(self.times_us) + 1), np.int64)
        np.add.at(changes, (kinds, self.first), self.size)
        np.add.at(changes, (kinds, self.last), -self.size)
        return changes.cumsum(axis=1)[:, :-1]

    @cached_property
    def peak(self) -> int:
        """The number of events until an allocation failed; if none did, until most bytes are allocated."""
        if self.failed_after is not None:
            return self.failed_after
        return int(self.by_kind.sum(axis=0).argmax())

    def held(self, after: int) -> dict[Purpose, Held]:
        """Return the memory held after the first ``after`` events, by purpose."""
        alive = (self.first <= after) & (after < self.last)
        bytes_of = np.bincount(self.purpose[alive], self.size[alive], len(self.purposes))
        blocks_of = np.bincount(self.purpose[alive], minlength=len(self.purposes))
        return {
            purpose: Held(int(size), int(blocks))
            for purpose, size, blocks in zip(self.purposes, bytes_of, blocks_of, strict=True)
            if blocks
        }


def contents_of(snapshot: MemorySnapshot, memory: DeviceMemory) -> MemoryInUse:
    """Return the memory in use on a GPU, by undoing the events of a snapshot backwards from its end."""
    tensors = {address: (kind, name) for kind, name, address in snapshot.notes.tensors}
    finder = _PurposeFinder(snapshot)
    count = len(memory.events)
    rows: list[tuple[int, int, int, int]] = []
    modules = {event.address: event.module for event in memory.events if event.action == "alloc"}
    # Blocks in use at the end, with their purpose; later in a loop, before the undone events.
    live = {
        block.address: (
            finder.purpose(block.stack, modules.get(block.address, ""), tensors.get(block.address)),
            block.size,
            count + 1,
        )
        for block in memory.blocks
    }
    reserved = np.zeros(count + 1, np.int64)
    reserved[count] = memory.reserved_bytes
    failed = None
    for after in range(count, 0, -1):
        event = memory.events[after - 1]
        reserved[after - 1] = reserved[after]
        if event.action == "alloc" and event.address in live:
            purpose, size, last = live.pop(event.address)
            if purpose.kind in ("activations", "other", "backward"):
                purpose = finder.purpose(
                    event.stack, event.module, tensors.get(event.address) if last > count else None
                )
            rows.append((finder.number(purpose), size, after, last))
        elif event.action == "free_completed":
            live[event.address] = (
                finder.purpose(event.stack, "", None),
                -(-event.size // _GRANULARITY_BYTES) * _GRANULARITY_BYTES,
                after,
            )
        elif event.action in ("segment_alloc", "segment_map"):
            reserved[after - 1] -= event.size
        elif event.action in ("segment_free", "segment_unmap"):
            reserved[after - 1] += event.size
        elif event.action == "oom" and failed is None:
            failed = after
    for purpose, size, last in live.values():
        # Memory from before the history has no known purpose unless it has a stack.
        stackless = purpose.kind == "backward" and not purpose.line
        earlier = Purpose("other", "", _BEFORE_HISTORY)
        rows.append((finder.number(earlier if stackless else purpose), size, 0, last))
    purpose_of, size_of, first, last_of = np.array(rows, np.int64).reshape(-1, 4).T
    times = [event.time_us for event in memory.events]
    end = snapshot.notes.end_us or (times[-1] if times else 0)
    if snapshot.notes.asked_bytes is not None and snapshot.notes.device in (None, memory.device):
        failed = count if failed is None else failed
    return MemoryInUse(
        memory.device,
        tuple(finder.purposes),
        purpose_of,
        size_of,
        first,
        last_of,
        times_us=np.array([*times, end], np.int64),
        reserved=reserved,
        failed_after=failed,
    )


class _PurposeFinder:
    """Finds the purposes of blocks, once for each kind of block."""

    def __init__(self, snapshot: MemorySnapshot) -> None:
        self._stacks = snapshot.stacks
        self._notes_tensors = bool(snapshot.notes.tensors)
        self._known: dict[tuple[int, str, tuple[str, str] | None], Purpose] = {}
        self.purposes: dict[Purpose, int] = {}

    def number(self, purpose: Purpose) -> int:
        """Return the number of a purpose."""
        return self.purposes.setdefault(purpose, len(self.purposes))

    def purpose(self, stack: int, module: str, tensor: tuple[str, str] | None) -> Purpose:
        """Return the purpose of a block by its stack, the module that ran, and the hook's note of it."""
        key = (stack, module, tensor)
        if key not in self._known:
            frames = self._stacks[stack]
            if tensor is not None and tensor[0] in KINDS:
                kind, module = tensor[0], tensor[1].rpartition(".")[0]
            else:
                kind = self._kind(frames, module)
            self._known[key] = Purpose(kind, module, line_of(frames))
        return self._known[key]

    def _kind(self, frames: tuple[CodeLine, ...], module: str) -> str:
        if not frames:
            # Autograd's own threads run no Python.
            return "backward" if len(self._stacks) > 1 else "other"
        inner = next((at for at, frame in enumerate(frames) if frame.function in _MODULE_CALLS), len(frames))
        if any(_OPTIMIZER.search(frame.file) for frame in frames):
            return "optimizer"
        if any(_COMMUNICATION.search(frame.file) for frame in frames[:inner]):
            return "communication"
        passes = next((frame.function for frame in frames if frame.function in ("forward", "backward")), "")
        if passes == "backward":
            return "backward"
        if passes or module or inner < len(frames):
            return "activations"
        if not self._notes_tensors and self._makes_parameters(frames):
            return "parameters"
        return "other"

    def _makes_parameters(self, frames: tuple[CodeLine, ...]) -> bool:
        moved = any(_MODULE.search(frame.file) and frame.function in _MODULE_MOVES for frame in frames)
        return moved or any("torch" in frame.file and frame.function == "__init__" for frame in frames)


def line_of(frames: tuple[CodeLine, ...]) -> str:
    """Return the innermost line of the user's code in a stack, ``dir/file.py:12 function``; may be empty."""
    written = [frame for frame in frames if not _GENERATED_CODE.search(frame.file)]
    frame = user_frame(written or list(frames))
    if frame is None:
        return ""
    file = "/".join(re.split(r"[/\\]", frame.file)[-2:])
    return f"{file}:{frame.line} {frame.function}"


def differences(
    contents: Mapping[Purpose, Held], other_contents: Sequence[Mapping[Purpose, Held]]
) -> dict[Purpose, int]:
    """Return the difference in bytes of each purpose from the median of other ranks; empty without any."""
    if not other_contents:
        return {}
    purposes = {*contents, *(purpose for peer in other_contents for purpose in peer)}
    none = Held(0, 0)
    return {
        purpose: int(
            contents.get(purpose, none).bytes
            - np.median([peer.get(purpose, none).bytes for peer in other_contents])
        )
        for purpose in purposes
    }
