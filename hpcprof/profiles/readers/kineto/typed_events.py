"""Typed events of a PyTorch trace: decoded in one pass, without the fields that a timeline does not hold.

They have the names of the fields of `hpcprof.profiles.readers.kineto.json_stream.Event`, whose values are
numbers and arguments instead of text. A batch with an event of another category or form cannot be decoded so.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Literal, cast

import msgspec

from hpcprof.profiles.readers.kineto.arguments import (
    CallArguments,
    Int64,
    MemoryArguments,
    RangeArguments,
    RecordedKernelArguments,
    RecordedOperatorArguments,
    WaitArguments,
)
from hpcprof.profiles.readers.kineto.json_stream import NO_ARGUMENTS, Batch


class _Skipped(msgspec.Struct, gc=False):
    """An event that a timeline leaves out."""


class _Timed(msgspec.Struct, gc=False):
    """An event with a duration. Times stay as they are written, since a double has too few digits."""

    ph: Literal["X"]
    name: str
    pid: Int64
    tid: Int64
    ts: msgspec.Raw
    dur: msgspec.Raw


class _Kernel(_Timed, gc=False):
    args: RecordedKernelArguments = msgspec.field(default_factory=RecordedKernelArguments)


class _Call(_Timed, gc=False):
    args: CallArguments = msgspec.field(default_factory=CallArguments)


class _Operator(_Timed, gc=False):
    args: RecordedOperatorArguments = msgspec.field(default_factory=RecordedOperatorArguments)


class _Range(_Timed, gc=False):
    args: RangeArguments = msgspec.field(default_factory=RangeArguments)


class _Memory(_Timed, gc=False):
    args: MemoryArguments = msgspec.field(default_factory=MemoryArguments)


class _Mark(_Timed, gc=False):
    args: WaitArguments = msgspec.field(default_factory=WaitArguments)


class _Instant(msgspec.Struct, gc=False):
    name: str
    ts: msgspec.Raw
    args: msgspec.Raw = NO_ARGUMENTS


class _ArrowEnd(msgspec.Struct, gc=False):
    ph: Literal["s", "f"]
    id: Int64
    pid: Int64
    tid: Int64
    ts: msgspec.Raw


PYTHON = "python_function"
"""The category of functions of Python, of which a timeline holds some."""

SKIPPED = (
    *("external_correlation", "overhead", "collective_comm", "Trace"),
    *("ac2g", "async", "async_cpu_to_gpu", "async_gpu"),
    *("cuda_event", "cuda_profiler_range"),
)
"""The categories of libkineto (ActivityType.h) and of arrows between events that a timeline leaves out."""

_KINDS: dict[str, type[msgspec.Struct]] = {
    **dict.fromkeys(SKIPPED, _Skipped),
    PYTHON: _Timed,
    "kernel": _Kernel,
    "gpu_memcpy": _Memory,
    "gpu_memset": _Memory,
    "cuda_runtime": _Call,
    "cuda_driver": _Call,
    "user_annotation": _Range,
    "cpu_op": _Operator,
    "gpu_user_annotation": _Mark,
    "cuda_sync": _Mark,
    "cpu_instant_event": _Instant,
    "fwdbwd": _ArrowEnd,
}
TYPES: dict[str, type[msgspec.Struct]] = {
    category: msgspec.defstruct(
        category,
        [],
        bases=(kind,),
        namespace={"cat": category},
        tag_field="cat",
        tag=category,
        gc=False,
    )
    for category, kind in _KINDS.items()
}
"""The type of the events of each category."""

_EVENT: Any = reduce(or_, TYPES.values())
DECODER = cast("msgspec.json.Decoder[Batch]", msgspec.json.Decoder(list[_EVENT]))
"""Decodes a list of events; it fails if one is of another category or form."""
