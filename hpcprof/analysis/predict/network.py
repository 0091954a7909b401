"""A model of the network: what collectives and messages take, by their bytes and the ranks that take part.

A collective takes ``latency * hops(p) + bytes * volume(p) / bandwidth``. The volume is what each rank sends
with the best algorithms (Thakur, Rabenseifner and Gropp, 2005), the hops are those of trees, or of rings.
The two parameters are fitted to the own times of the run's communication by non-negative least squares. With
one size, the start values of the literature divide the time, and the interval is wide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.timeline import Floats

TREE, RING = "tree", "ring"
_START_LATENCY_NS = {"nccl": 6_000.0, "mpi": 1_500.0}
"""Latency of a hop: of NCCL's protocol Simple (arXiv 2507.04786), and of MPI on a fast network."""
_SMALL = 64
"""Maximum bytes of a buffer whose time is all latency."""
_ALL_TO_ALL = ("AlltoAll", "AlltoAllV")
_TWICE = ("AllReduce",)
_MESSAGES = ("Send", "Recv", "SendRecv")


def hops(op: str, ranks: int, algorithm: str) -> float:
    """Return the number of hops of an operation, one after another."""
    if op in _MESSAGES or ranks < 2:
        return 1.0
    if op in _ALL_TO_ALL:
        return ranks - 1.0
    once = ranks - 1.0 if algorithm == RING else float(np.ceil(np.log2(ranks)))
    return 2 * once if op in _TWICE else once


def volume(op: str, ranks: int) -> float:
    """Return what a rank sends, over the bytes of the whole buffer."""
    if op in _MESSAGES or ranks < 2:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if op in _TWICE else share


@dataclass(frozen=True)
class Sample:
    """Communication that was measured: its operation, buffer in bytes (0 if unknown), ranks and own time."""

    op: str
    bytes: float
    ranks: int
    own_ns: float


@dataclass(frozen=True)
class Network:
    """Latency in ns of a hop, and ns per byte, by operation.

    ``source`` says where they come from: ``site``, ``run`` or ``literature``.
    """

    latency: Mapping[str, float]
    per_byte: Mapping[str, float]
    source: str
    algorithm: str = TREE

    def time(self, op: str, size: float, ranks: int) -> float:
        """Return what an operation takes in ns."""
        latency = self.latency.get(op, 0.0) * hops(op, ranks, self.algorithm)
        return latency + self.per_byte.get(op, 0.0) * max(size, 1.0) * volume(op, ranks)


def operation_of(name: str, kind: str) -> str:
    """Return the operation of a row of a table of operations."""
    if kind in ("send", "recv"):
        return "Send"
    return operation(name) or "AllReduce"


def fitted(samples: Sequence[Sample], algorithm: str = TREE, share: float | None = None) -> Network:
    """Return the network that explains some samples.

    Operations with one size at one number of ranks do not tell latency from bandwidth. Their latency is then
    that of the other operations, else the start value, but no more than their own time; with ``share`` it is
    this share of their time.
    """
    from scipy.optimize import nnls

    latency, per_byte, source = {}, {}, "run"
    told: list[float] = []
    unclear: list[str] = []
    for op in sorted({one.op for one in samples}):
        rows = [one for one in samples if one.op == op]
        columns = np.array(
            [[hops(op, one.ranks, algorithm), max(one.bytes, 1.0) * volume(op, one.ranks)] for one in rows]
        )
        own = np.array([one.own_ns for one in rows])
        weight = 1 / np.maximum(own, 1.0)
        sizes = columns[:, 1] / columns[:, 0]
        if sizes.max() < 1.5 * sizes.min():
            unclear.append(op)
            continue
        norm = columns.max(axis=0)
        found, _ = nnls(columns / norm * weight[:, None], own * weight)
        latency[op], per_byte[op] = (found / norm).tolist()
        told.append(latency[op])
    for op in unclear:
        rows = [one for one in samples if one.op == op]
        typical, ranks = float(np.median([one.own_ns for one in rows])), rows[0].ranks
        steps = hops(op, ranks, algorithm)
        if share is None:
            start = float(np.median(told)) if told else _START_LATENCY_NS["mpi"]
            source = source if told else "literature"
            latency[op] = min(start, typical / steps)
            if op == "Barrier" or 0 < max(one.bytes for one in rows) <= _SMALL:
                latency[op] = typical / steps
        else:
            latency[op] = share * typical / steps
        size = max(float(np.median([one.bytes for one in rows])), 1.0)
        per_byte[op] = (typical - latency[op] * steps) / (size * volume(op, ranks))
    return Network(latency, per_byte, source, algorithm)


def ratio(network: Network, op: str, before: tuple[float, int], after: tuple[float, int]) -> float:
    """Return by how much an operation takes longer with another size and number of ranks."""
    time = network.time(op, *before)
    return network.time(op, *after) / time if time > 0 else 1.0


def medians(own: Floats) -> Floats:
    """Return the median own time of each operation, shape (operations,)."""
    median: Floats = np.nanmedian(own.reshape(len(own), -1), axis=1)
    return median
