"""The payloads of NCCL's ranges in an nsys export, reduced to the numbers that hpcprof reads.

A payload may hold any bytes, whatever its schema says. So only fields of known names are copied, into zeros,
and only from a blob that holds one payload.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcprof.profiles.readers.nsys.nccl_calls import COMMUNICATOR, MESSAGE, RANKS
from hpcprof.profiles.readers.nsys.nvtx_payloads import PAYLOAD_HEADER, Key, Layout

_COUNTS = (
    *MESSAGE,
    *RANKS,
    "Rank",
    "Peer",
    "Peer rank",
    "Root",
    "Root rank",
    "CUDA device",
    "Reduction operation",
)
_LARGEST_COUNT = 1 << 48
"""No message, and no number of ranks, is larger; a text of seven letters is."""

_LARGEST_PAYLOAD = 256


def entry_name(name: object) -> str | None:
    """Return the name of an entry of a schema if NCCL uses it, else None."""
    return name if isinstance(name, str) and name in (*COMMUNICATOR, *_COUNTS) else None


class NcclPayloads:
    """The schemas of an export, by which payloads are checked."""

    def __init__(self, layouts: Mapping[Key, Layout]) -> None:
        self._layouts = layouts

    def cleaned(self, domain: int, blob: object) -> bytes | None:
        """Return a payload with nothing but known numbers; None for one that is not as NCCL writes it."""
        if not isinstance(blob, bytes) or len(blob) < PAYLOAD_HEADER.itemsize:
            return None
        header = np.frombuffer(blob, PAYLOAD_HEADER, 1)[0]
        count, schema, size, offset = (int(value) for value in header.tolist())
        layout = self._layouts.get((domain, schema))
        fits = offset >= PAYLOAD_HEADER.itemsize and offset + size == len(blob) and size <= _LARGEST_PAYLOAD
        if count != 1 or layout is None or not fits:
            return None
        copy = bytearray(blob[: PAYLOAD_HEADER.itemsize]).ljust(len(blob), b"\0")
        for name, field in layout.items():
            begin = offset + field.offset
            end = begin + field.kind.itemsize
            if entry_name(name) and end <= len(blob) and _is_likely(name, blob[begin:end], field.kind):
                copy[begin:end] = blob[begin:end]
        return bytes(copy)


def _is_likely(name: str, value: bytes, kind: np.dtype[np.generic]) -> bool:
    return name in COMMUNICATOR or abs(int(np.frombuffer(value, kind)[0])) < _LARGEST_COUNT
