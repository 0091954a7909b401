"""A model of the network: the time of collectives and messages by their bytes and number of ranks.

1. A collective takes ``latency * hops(p) + volume(p) * bytes / bandwidth``. The volume is the share that each
   rank sends with the best algorithms (Thakur, Rabenseifner and Gropp, 2005); hops are those of trees or
   rings.
2. Both parameters are fitted to measured times by non-negative least squares of relative errors.
3. With many sizes, a protocol or an algorithm may change at break points, up to two by Schwarz's criterion;
   each segment has parameters of its own. Groups within a node and across nodes are fitted apart.
4. With one size, the usual ranges of both parameters and the other operations of the run divide the time, and
   the interval is wide (Bayes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, pairwise

import numpy as np

from hpcprof.common.grouping import grouped
from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.timeline import Floats

TREE, RING = "tree", "ring"
_USUAL_PARAMETERS = np.log([4_500.0, 0.05])
"""Logarithms of the usual latency of a hop in ns, and of the usual ns per byte."""
_USUAL_SPREAD = np.array([0.82, 1.27])
"""Their standard deviations: 90 % are 1 µs (NCCL's LL in a node) to 20 µs (TCP), 2 to 200 GB/s (NVLink)."""
_MAX_DISTANCE = 2.5
"""Maximum distance of a latency from the usual one, in standard deviations, that tells an algorithm."""
_OPERATION_SPREAD = 0.5
"""Standard deviation of the logarithms of latency and bandwidth between operations on the same network."""
_LATENCY_SHARES = 1 / (1 + np.exp(-np.linspace(-12, 12, 961)))
"""Shares of the latency in the time of communication."""
_RING_SHARE = 0.25
"""Probability that an operation runs on a ring, before its times at several numbers of ranks are known."""
_MIN_ERROR = 0.01
"""Minimum logarithmic error of a time by an algorithm, when two algorithms are compared."""
_MIN_SIZES = 4
"""Minimum number of sizes in a segment between break points."""
_MAX_BREAKS = 2
_ANY_SIZE = 2.0**62
"""The limit of the last segment."""
_FIT_ROUNDS = 10
_USUAL_ERROR = 0.2
"""Logarithmic error of a measured time beyond which it counts less."""
_ALL_TO_ALL_OPERATIONS = ("AlltoAll", "AlltoAllV")
_ABBREVIATIONS = {"a2a": "AlltoAll", "transpose": "AlltoAll", "ag": "AllGather", "rs": "ReduceScatter"}
_TWO_PHASE_OPERATIONS = ("AllReduce",)
_MESSAGES = ("Send", "Recv", "SendRecv")


def hops(op: str, ranks: int, algorithm: str) -> float:
    """Return the number of hops of an operation, one after another."""
    if op in _MESSAGES or ranks < 2:
        return 1.0
    if op in _ALL_TO_ALL_OPERATIONS:
        return ranks - 1.0
    once = ranks - 1.0 if algorithm == RING else float(np.ceil(np.log2(ranks)))
    return 2 * once if op in _TWO_PHASE_OPERATIONS else once


def volume(op: str, ranks: int) -> float:
    """Return the bytes that a rank sends, over those of the buffer (the factor of nccl-tests' busbw)."""
    if op in _MESSAGES or ranks < 2:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if op in _TWO_PHASE_OPERATIONS else share


@dataclass(frozen=True)
class Sample:
    """Communication that was measured: its operation, buffer in bytes (0 if unknown), ranks and own time."""

    op: str
    bytes: float
    ranks: int
    own_ns: float


@dataclass(frozen=True)
class Segment:
    """Latency in ns of a hop, and ns per byte, of buffers of at most ``bytes``."""

    bytes: float
    latency: float
    per_byte: float
    algorithm: str = TREE

    def time(self, op: str, size: float, ranks: int) -> float:
        """Return the time of an operation in ns."""
        latency = self.latency * hops(op, ranks, self.algorithm)
        return latency + self.per_byte * max(size, 1.0) * volume(op, ranks)


@dataclass(frozen=True)
class Network:
    """The segments of each operation by ascending size; ``across`` has those of groups on several nodes.

    ``source`` says where they come from: ``site``, ``run`` or ``literature``. ``error`` is the
    typical logarithmic error of the fit.
    """

    segments: Mapping[str, Sequence[Segment]]
    source: str
    across: Mapping[str, Sequence[Segment]] = field(default_factory=dict)
    ranks_per_node: int = 0
    error: float = 0.0

    def time(self, op: str, size: float, ranks: int) -> float:
        """Return the time of an operation in ns, 0 if it is unknown or has a single rank."""
        if ranks < 2 and op not in _MESSAGES:
            return 0.0
        far = self.across.get(op) if ranks > self.ranks_per_node else None
        segments = far or self.segments.get(op, ())
        return next((segment.time(op, size, ranks) for segment in segments if size <= segment.bytes), 0.0)

    def over(self, other: Network) -> Network:
        """Return this network, completed by the operations that only another one has."""
        missing = {op: segment for op, segment in other.segments.items() if op not in self.across}
        return replace(self, segments={**missing, **self.segments})

    def drawn(self, generator: np.random.Generator) -> Network:
        """Return a network whose latencies and bandwidths differ from these by the error of the fit."""
        if not self.error:
            return self

        def draw(segments: Sequence[Segment]) -> list[Segment]:
            latency, per_byte = np.exp(self.error * generator.standard_normal(2)).tolist()
            return [
                replace(segment, latency=latency * segment.latency, per_byte=per_byte * segment.per_byte)
                for segment in segments
            ]

        within_node, far = (
            {op: draw(fits) for op, fits in part.items()} for part in (self.segments, self.across)
        )
        return replace(self, segments=within_node, across=far)


def operation_of(name: str, kind: str) -> str:
    """Return the operation of a row of a table of operations."""
    if kind in ("send", "recv"):
        return "Send"
    words = re.findall("[a-z0-9]+", name.lower())
    return operation(name) or next(
        (_ABBREVIATIONS[word] for word in words if word in _ABBREVIATIONS), "AllReduce"
    )


def fit_run_network(
    samples: Sequence[Sample], ring: float = 0.5, latency: float = 0.5, growth: float = 1.0
) -> Network:
    """Return the network that explains the communication of a run, for groups ``growth`` times as large.

    An operation runs on a ring if the probability of that exceeds ``ring``. ``latency`` is the quantile of
    its latency in the posterior distribution: one size does not separate latency from bandwidth, so the usual
    ranges of both, and the other operations of the run, are the prior. Both arguments are 0 to 1; drawn
    uniformly, they give networks from the posterior. Libraries choose algorithms by size and ranks: a ring
    that takes k times as long as a tree is k times less likely.
    """
    rows = {op: [item for item in samples if item.op == op] for op in sorted({item.op for item in samples})}
    moments = {op: _moments(_explanations(op, rows[op], ())) for op in rows}
    segments, source = {}, "literature"
    for op in rows:
        # Operations share a network, with somewhat different latencies and bandwidths.
        relatives = [
            (mean, square + _OPERATION_SPREAD**2) for at, (mean, square) in moments.items() if at != op
        ]
        fits = _explanations(op, rows[op], relatives)
        chances = fits[..., 2].sum(axis=1)
        possible = []
        for name, rows_of_name, chance in zip((TREE, RING), fits, chances.tolist(), strict=True):
            place = int(np.searchsorted(rows_of_name[:, 2].cumsum(), latency * chance))
            hop, per_byte = np.exp(rows_of_name[min(place, len(rows_of_name) - 1), :2]).tolist()
            possible.append(Segment(_ANY_SIZE, hop, per_byte, name))
        tree_ns, ring_ns = (
            sum(segment.time(op, row.bytes, round(growth * row.ranks)) for row in rows[op])
            for segment in possible
        )
        # Times on one number of ranks tell the algorithm only where its latency is a usual one.
        odds = chances[1] / max(chances[0], 1e-300)
        distance = np.log(possible[1].latency) - _USUAL_PARAMETERS[0]
        if distance > _MAX_DISTANCE * _USUAL_SPREAD[0] and len({row.ranks for row in rows[op]}) == 1:
            odds = _RING_SHARE / (1 - _RING_SHARE)
        odds /= max(ring_ns / tree_ns, 1.0)
        segments[op] = [possible[int(odds > ring * (1 + odds))]]
        source = "run" if _moments(fits)[1][0] < _OPERATION_SPREAD**2 else source
    return Network(segments, source)


def _explanations(op: str, rows: Sequence[Sample], relatives: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Return the logarithms of latency and ns per byte, and their probability, by tree and ring.

    Shape (2, shares of the latency, 3). ``relatives`` are means and variances of the logarithms by other
    operations; an operation of unknown bytes does not tell its bandwidth.
    """
    times = grouped(((row.ranks, row.bytes), max(row.own_ns, 1.0)) for row in rows)
    cases = [Sample(op, size, ranks, float(np.median(lengths))) for (ranks, size), lengths in times.items()]
    sized = op == "Barrier" or any(case.bytes > 0 for case in cases)
    table = np.empty((2, len(_LATENCY_SHARES), 3))
    for at, (algorithm, chance) in enumerate(((TREE, 1 - _RING_SHARE), (RING, _RING_SHARE))):
        columns = _columns(op, cases, algorithm)
        typical = np.exp(np.log(columns).mean(axis=0))
        unscaled = np.array([_LATENCY_SHARES, 1 - _LATENCY_SHARES]) / typical[:, None]
        missed = np.log([case.own_ns for case in cases])[:, None] - np.log(columns @ unscaled)
        parameters = np.log(unscaled) + missed.mean(axis=0)
        squares = ((parameters.T - _USUAL_PARAMETERS) / _USUAL_SPREAD) ** 2
        squares = sum(((parameters.T - mean) ** 2 / variance for mean, variance in relatives), squares)
        squares = squares[:, : 1 + sized].sum(axis=1)
        errors = missed.var(axis=0) + _MIN_ERROR**2
        table[at, :, :2] = parameters.T
        table[at, :, 2] = np.log(chance) - squares / 2 - len(cases) / 2 * np.log(errors)
    table[..., 2] = np.exp(table[..., 2] - table[..., 2].max())
    table[..., 2] /= table[..., 2].sum()
    return table


def _moments(fits: Floats) -> tuple[Floats, Floats]:
    weight = fits[..., 2:]
    mean = (weight * fits[..., :2]).sum(axis=(0, 1))
    return mean, (weight * (fits[..., :2] - mean) ** 2).sum(axis=(0, 1))


def fit_segments(samples: Sequence[Sample]) -> tuple[list[Segment], float]:
    """Return the segments of one operation by size, and their typical logarithmic error.

    The break points and the algorithm are those with the least value of Schwarz's criterion (1978).
    """
    op = samples[0].op
    sizes = sorted({sample.bytes for sample in samples})
    fewest = min(_MIN_SIZES, len(sizes))

    @cache
    def fit(first: int, last: int) -> tuple[Segment, float]:
        rows = [sample for sample in samples if sizes[first] <= sample.bytes <= sizes[last - 1]]
        return min((_segment(op, rows, name) for name in (TREE, RING)), key=lambda pair: pair[1])

    best: tuple[float, list[Segment], float] = (np.inf, [], 0.0)
    for count in range(_MAX_BREAKS + 1):
        for inner in combinations(range(1, len(sizes)), count):
            spans = [*pairwise([0, *inner, len(sizes)])]
            if min(last - first for first, last in spans) < fewest:
                continue
            fits = [fit(*span) for span in spans]
            mean = max(sum(squares for _, squares in fits) / len(samples), 1e-12)
            criterion = len(samples) * np.log(mean) + (3 * count + 2) * np.log(len(samples))
            if criterion < best[0]:
                limits = [sizes[last - 1] for _, last in spans[:-1]] + [_ANY_SIZE]
                segments = [replace(part, bytes=end) for (part, _), end in zip(fits, limits, strict=True)]
                best = (float(criterion), segments, float(np.sqrt(mean)))
    return best[1], best[2]


def _columns(op: str, rows: Sequence[Sample], algorithm: str) -> Floats:
    return np.array(
        [[hops(op, row.ranks, algorithm), max(row.bytes, 1.0) * volume(op, row.ranks)] for row in rows]
    )


def _segment(op: str, rows: Sequence[Sample], algorithm: str) -> tuple[Segment, float]:
    """Return one segment that explains some samples, and the sum of Huber's loss of its logarithmic errors.

    Rounds weight the samples anew, so that errors count by their logarithm and outliers less.
    """
    from scipy.optimize import nnls

    columns = _columns(op, rows, algorithm)
    maximum = np.maximum([row.own_ns for row in rows], 1.0)
    weight, missed = 1 / maximum, np.zeros(len(maximum))
    norm = columns.max(axis=0)
    parameters = norm
    for _ in range(_FIT_ROUNDS):
        parameters = nnls(columns / norm * weight[:, None], maximum * weight)[0] / norm
        time = np.maximum(columns @ parameters, 1.0)
        missed = np.log(maximum / time)
        off = np.maximum(np.abs(missed), 1e-6)
        slope = off / np.maximum(np.abs(maximum - time), 1e-6 * maximum)
        weight = slope / np.sqrt(np.maximum(off / _USUAL_ERROR, 1.0))
    latency, per_byte = parameters.tolist()
    off = np.abs(missed)
    loss = np.where(off < _USUAL_ERROR, off**2, (2 * off - _USUAL_ERROR) * _USUAL_ERROR)
    return Segment(_ANY_SIZE, latency, per_byte, algorithm), float(loss.sum())
