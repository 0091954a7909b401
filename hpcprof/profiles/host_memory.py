"""The host's memory in copies and sets, from the words that profilers use for kinds of memory."""

import re
from collections.abc import Iterable
from enum import IntEnum


class HostMemory(IntEnum):
    """The kind of the host's memory that a copy reads or writes, or that is set."""

    UNKNOWN = -1
    """The profile does not tell it."""
    NONE = 0
    """All memory is on devices."""
    PAGEABLE = 1
    """The driver copies it through a pinned buffer of its own, and the host waits for that."""
    PINNED = 2
    """The GPU copies it without the host (cudaMallocHost, ``pin_memory``)."""
    MANAGED = 3
    """Unified memory, whose pages move between host and device."""


_KINDS = {
    "Pageable": HostMemory.PAGEABLE,
    "Pinned": HostMemory.PINNED,
    "Managed": HostMemory.MANAGED,
    "Managed Static": HostMemory.MANAGED,
    "Device": HostMemory.NONE,
    "Device Static": HostMemory.NONE,
    "Array": HostMemory.NONE,
    # Intel's PTI.
    "Host (User Allocated)": HostMemory.PAGEABLE,
    "Host (Driver Allocated)": HostMemory.PINNED,
    "Shared": HostMemory.MANAGED,
}
# A copy between two kinds has the kind of the slower side, in this order.
_PRECEDENCE = (
    HostMemory.PAGEABLE,
    HostMemory.PINNED,
    HostMemory.MANAGED,
    HostMemory.UNKNOWN,
    HostMemory.NONE,
)

# libkineto's memcpyName and memsetName; on Intel's GPUs a set has its value too.
_LABEL = r"([\w ]+?(?: \([\w ]+\))?)"
_NAME_OF_OPERATION = re.compile(rf"Mem(?:cpy \w+|set) \((?:\d+ -> )?{_LABEL}(?: -> {_LABEL})?\)")


def host_memory(labels: Iterable[str | None]) -> HostMemory:
    """Return the kind for the labels of the memory on all sides, such as Pageable and Device."""
    kinds = {_KINDS.get(label or "", HostMemory.UNKNOWN) for label in labels}
    return next(kind for kind in _PRECEDENCE if kind in kinds)


def host_memory_of_name(name: str) -> HostMemory:
    """Return the kind that PyTorch writes into a name such as ``Memcpy HtoD (Pageable -> Device)``."""
    match = _NAME_OF_OPERATION.fullmatch(name)
    return host_memory(label for label in match.groups() if label) if match else HostMemory.UNKNOWN
