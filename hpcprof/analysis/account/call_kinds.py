"""Kinds of calls of the host, by their names."""

import re
from enum import IntEnum

from hpcprof.profiles.waiting_calls import XLA_WAIT


class CallKind(IntEnum):
    """The kind of a call of the host."""

    LAUNCH = 0
    COPY = 1
    WAIT = 2
    ALLOCATE = 3
    FREE = 4
    RECORD = 5
    STREAM_WAIT = 6
    OTHER = 7
    MPI = 8
    PAUSE = 9
    """No call: the host waits for the GPU (`rank_activity.with_pauses`)."""


ALLOCATING = (CallKind.ALLOCATE, CallKind.FREE)
"""Calls that allocate or free memory."""

_KINDS = (
    (re.compile(r"(Malloc|Alloc|Free)(FromPool)?Async"), CallKind.OTHER),
    (re.compile(r"FreeHost|HostUnregister"), CallKind.ALLOCATE),
    (re.compile(r"Free"), CallKind.FREE),
    (re.compile(r"Malloc|Alloc|HostRegister|MemCreate|Mem(Unm|M)ap"), CallKind.ALLOCATE),
    (re.compile(r"StreamWaitEvent"), CallKind.STREAM_WAIT),
    (re.compile(rf"Synchronize|{XLA_WAIT.pattern}"), CallKind.WAIT),
    (re.compile(r"EventRecord"), CallKind.RECORD),
)
"""The kind of a call that launches nothing, by the first pattern that its name contains."""


STREAM_ORDERED = re.compile(r"(Malloc|Alloc)(FromPool)?Async")
"""Allocations from a pool, which cost little unless the pool has to map memory first."""

MIN_MAPPING_NS = 20_000
"""Minimum time in ns of a `STREAM_ORDERED` call that maps memory; from the pool it takes 1 to 3 µs."""


def kind_of_call(name: str) -> CallKind:
    """Return the kind of a call that launches nothing, by its name."""
    return next((kind for pattern, kind in _KINDS if pattern.search(name)), CallKind.OTHER)
