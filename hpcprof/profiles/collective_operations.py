"""Collective operations: their names in NCCL, PyTorch and kernels, and their properties."""

import re
from typing import NamedTuple

# Searched for in this order in the letters of a name: "ncclAllReduce", "_allgather_base",
# "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "all2all".
_PARTS_OF_NAMES = (
    ("sendrecv", "SendRecv"),
    ("allreduce", "AllReduce"),
    ("allgatherv", "AllGatherV"),
    ("allgather", "AllGather"),
    ("allscatter", "AllGather"),
    ("reducescatter", "ReduceScatter"),
    ("alltoallv", "AlltoAllV"),
    ("alltoall", "AlltoAll"),
    ("allall", "AlltoAll"),
    ("broadcast", "Broadcast"),
    ("bcast", "Broadcast"),
    ("barrier", "Barrier"),
    ("reduce", "Reduce"),
    ("gather", "Gather"),
    ("scatter", "Scatter"),
    ("send", "Send"),
    ("recv", "Recv"),
)
NCCL = "NCCL"
"""The family of the kernels of NCCL and RCCL, whose calls profilers record."""

DISPATCH, COMBINE = "Dispatch", "Combine"
"""Expert parallelism: each rank sends tokens to the experts of all others, and gets them back."""

_KERNEL = re.compile(r"^(?:void )?nccl\w*?Kernel_(\w+)")

_MPI_CALL = re.compile(r"MPI_(I?)(\w+?)(_init)?(?:_c)?")
_MPI_OPERATIONS = {
    **dict.fromkeys(("send", "ssend", "bsend", "rsend", "psend"), "Send"),
    **dict.fromkeys(("recv", "mrecv", "precv"), "Recv"),
    **dict.fromkeys(("sendrecv", "sendrecv_replace"), "SendRecv"),
    **dict.fromkeys(("gather", "gatherv"), "Gather"),
    **dict.fromkeys(("scatter", "scatterv"), "Scatter"),
    **dict.fromkeys(("alltoallv", "alltoallw"), "AlltoAllV"),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_block"), "ReduceScatter"),
    "allgather": "AllGather",
    "allgatherv": "AllGatherV",
    "allreduce": "AllReduce",
    "alltoall": "AlltoAll",
    "barrier": "Barrier",
    "bcast": "Broadcast",
    "exscan": "Exscan",
    **dict.fromkeys(
        (f"file_{way}{at}_all" for way in ("read", "write") for at in ("", "_at", "_ordered")), "FileAccess"
    ),
    "reduce": "Reduce",
    "scan": "Scan",
    "win_fence": "Fence",
}
"""The operation of each function of MPI, by its name in lower case without prefix and suffix."""

_COMMUNICATION_OPERATOR = re.compile(
    r"_?c10d(_functional)?::|record_param_comms$|(oneccl_bindings_for_pytorch|torch_ccl)::"
)
"""PyTorch's operators for process groups, and those of its bindings for oneCCL."""

POINT_TO_POINT = frozenset({"SendRecv", "Send", "Recv"})
"""These have one partner instead of all ranks of a communicator."""

_SENT_AS_MESSAGES = POINT_TO_POINT | {"AlltoAll", "AlltoAllV", "Gather", "Scatter"}
"""NCCL carries these out as sends and receives."""

ALIGNING = frozenset({"AllReduce", "AllGather", "Barrier"})
"""All ranks end these at nearly the same moment, because each needs data of all others until the end."""

ALIGNING_EXPERTS = frozenset({DISPATCH, COMBINE})
"""Ranks end these at nearly the same moment too, but one with more tokens later: the last resort."""

ON_WINDOWS_AND_FILES = frozenset({"Fence", "FileAccess"})
"""MPI functions of windows and files. Profilers do not record their ranks: all, if these call them alike.

These need not wait for each other, but mostly do; operations of which one often ends before another begins
have no match.
"""

WAITING = (
    ALIGNING
    | {"ReduceScatter", "AlltoAll", "AlltoAllV", "AllGatherV", DISPATCH, COMBINE}
    | ON_WINDOWS_AND_FILES
)
"""No rank can end these before all ranks have begun, so each rank waits for the last."""

PREFIX = frozenset({"Scan", "Exscan"})
"""Each rank needs the data of the ranks before it. By which way these come depends on the library."""

FROM_ROOT = frozenset({"Broadcast", "Scatter"})
"""One rank, the root, gives its data to all others, which wait for it."""

TO_ROOT = frozenset({"Reduce", "Gather"})
"""One rank, the root, waits for the data of all others."""

ONE_PART_MESSAGES = frozenset({"AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter"})
"""For these NCCL counts one rank's part of the buffer as the message, nccl-tests the whole buffer."""

_WHOLE_BUFFER_OPERATIONS = frozenset({"AllReduce", "Broadcast", "Reduce"})


def operation(name: str) -> str | None:
    """Return the operation in the name of a function of NCCL, a record of PyTorch or a kernel, else None.

    The names of kernels for any operation (``ncclDevKernel_Generic``) contain none.
    """
    kernel = _KERNEL.match(name)
    letters = re.sub("[^a-z]", "", (kernel[1] if kernel else name).lower())
    return next((name_of_operation for part, name_of_operation in _PARTS_OF_NAMES if part in letters), None)


class MpiFunction(NamedTuple):
    """A function of MPI that begins an operation.

    ``nonblocking`` says that the operation ends in another call, ``persistent`` that the function only
    prepares it.
    """

    operation: str
    nonblocking: bool
    persistent: bool


def mpi_function(name: str) -> MpiFunction | None:
    """Return the operation that a function of MPI begins (``MPI_Iallreduce``), None for all others."""
    match = _MPI_CALL.fullmatch(name)
    called = _MPI_OPERATIONS.get(match[2].lower()) if match else None
    return MpiFunction(called, bool(match[1]), bool(match[3])) if match and called else None


def carries(kernel: str | None, called: str) -> bool:
    """Return whether a kernel can carry out a called operation, given the operation in the kernel's name."""
    return kernel in (None, called) or (kernel == "SendRecv" and called in _SENT_AS_MESSAGES)


def communicates(operator: str) -> bool:
    """Return whether an operator of PyTorch calls, or waits for, a collective operation."""
    return _COMMUNICATION_OPERATOR.match(operator) is not None


def whole_bytes(op: str, message: int, ranks: int | None) -> int | None:
    """Return the size of a message as nccl-tests counts it, None if that needs unknown ranks."""
    if op in _WHOLE_BUFFER_OPERATIONS:
        return message
    return message * ranks if op in ONE_PART_MESSAGES and ranks is not None else None


def bus_factor(op: str, ranks: int) -> float | None:
    """Return the ratio of bus bandwidth to algorithm bandwidth, None for an operation without one.

    The factors are those of nccl-tests (doc/PERFORMANCE.md there): 2 (n - 1) / n for an all-reduce,
    (n - 1) / n where each rank keeps its own part, 1 from or to one root. A rank alone uses no bus.
    """
    if ranks < 2:
        return None
    if op == "AllReduce":
        return 2 * (ranks - 1) / ranks
    if op in ONE_PART_MESSAGES:
        return (ranks - 1) / ranks
    return 1.0 if op in _WHOLE_BUFFER_OPERATIONS else None
