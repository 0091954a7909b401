"""The collective operations: their names in NCCL, PyTorch and kernels, and what follows from each."""

from __future__ import annotations

import re

# Searched in this order in a name reduced to its letters: "ncclAllReduce", "_allgather_base",
# "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL".
_NAMES = (
    ("sendrecv", "SendRecv"),
    ("allreduce", "AllReduce"),
    ("allgatherv", "AllGatherV"),
    ("allgather", "AllGather"),
    ("reducescatter", "ReduceScatter"),
    ("alltoallv", "AlltoAllV"),
    ("alltoall", "AlltoAll"),
    ("broadcast", "Broadcast"),
    ("bcast", "Broadcast"),
    ("barrier", "Barrier"),
    ("reduce", "Reduce"),
    ("gather", "Gather"),
    ("scatter", "Scatter"),
    ("send", "Send"),
    ("recv", "Recv"),
)
_KERNEL = re.compile(r"^(?:void )?nccl\w*?Kernel_(\w+)")

POINT_TO_POINT = frozenset({"SendRecv", "Send", "Recv"})
"""These have one partner, not a communicator's worth of ranks."""

ALIGNING = frozenset({"AllReduce", "AllGather", "Barrier"})
"""In these every rank ends at nearly the same moment: the last data of each come from all others."""

WAITING = ALIGNING | {"ReduceScatter", "AlltoAll", "AlltoAllV", "AllGatherV"}
"""In these no rank can end before every rank has begun, so that each waits for the last one."""

PARTS = frozenset({"AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter"})
"""NCCL counts one rank's part of the buffer as the message of these, nccl-tests the whole buffer."""

_WHOLE = frozenset({"AllReduce", "Broadcast", "Reduce"})


def operation(name: str) -> str | None:
    """Return the operation that a function of NCCL, PyTorch's record or a kernel names, None for others.

    Kernels that carry out anything (``ncclDevKernel_Generic``) name none.
    """
    kernel = _KERNEL.match(name)
    letters = re.sub("[^a-z]", "", (kernel[1] if kernel else name).lower())
    return next((found for part, found in _NAMES if part in letters), None)


def whole_bytes(op: str, message: int, ranks: int | None) -> int | None:
    """Return the size that nccl-tests states for a message, None where that needs unknown ranks."""
    if op in _WHOLE:
        return message
    return message * ranks if op in PARTS and ranks is not None else None


def bus_factor(op: str, ranks: int) -> float | None:
    """Return bus bandwidth by algorithm bandwidth, None for an operation that has none.

    The factors are those of nccl-tests (doc/PERFORMANCE.md there): 2 (n - 1) / n for an all-reduce,
    (n - 1) / n where each rank keeps its own part, 1 from or to one root.
    """
    if op == "AllReduce":
        return 2 * (ranks - 1) / ranks
    if op in PARTS:
        return (ranks - 1) / ranks
    return 1.0 if op in _WHOLE else None
