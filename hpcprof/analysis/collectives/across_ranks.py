"""Collectives and messages across ranks: latency and bandwidth, and how far apart the ranks begin them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.collectives.clock_alignment import MIN_COLLECTIVES, AlignedClocks, clock_key
from hpcprof.analysis.collectives.communication import Communication
from hpcprof.analysis.collectives.matching import MatchedCollectives, in_few_sentences
from hpcprof.analysis.collectives.pair_matching import MatchedPairs, sender_later
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.profiles.collective_operations import bus_factor, whole_bytes
from hpcprof.profiles.columns.unique import numbered_rows, object_array
from hpcprof.profiles.timeline import Columns, Mask

NO_COLLECTIVES = "no rank has collectives"
_NO_MATCH_REASON = "all recorded operations are sends and receives, which are not matched"


class NullReasons(msgspec.Struct, frozen=True):
    """Reasons for nulls in the values of matched collectives or messages.

    ``fused`` of them share a kernel; some have no size, no communicator, a communicator of unknown size, or
    no aligned clocks.
    """

    fused: int
    unsized: bool
    unnamed: bool
    uncounted: bool
    unaligned: bool

    @classmethod
    def of_all(cls, parts: "Sequence[NullReasons]") -> "NullReasons":
        """Return the reasons of all parts together."""
        names = ("unsized", "unnamed", "uncounted", "unaligned")
        return cls(
            sum(part.fused for part in parts), *(any(getattr(part, name) for part in parts) for name in names)
        )


@dataclass(frozen=True)
class ListedOperations:
    """Matched collectives or messages of some communicators, their medians, and what is missing."""

    rows: Columns
    summary: Columns
    """The columns of both tables, with those that only sort them; empty without any."""
    problems: list[str]
    null_reasons: NullReasons
    missing: str

    def __len__(self) -> int:
        """Return the number of rows, also where they are left out."""
        return int(sum(self.summary.get("count", ())))


def list_collectives(communication: Communication) -> ListedOperations:
    """List the collectives of some communicators."""
    matched, aligned = communication.collectives, communication.clocks
    tables = [_collective_table(operation, aligned.get(clock_key(operation))) for operation in matched]
    listed = [operation for operation in matched if len(operation.seq)]
    null_reasons = NullReasons(
        fused=sum(int(np.count_nonzero(operation.fused > 1)) for operation in matched),
        unsized=any(bool(np.isnan(operation.message).any()) for operation in matched),
        unnamed=any(operation.comm_id is None for operation in matched),
        uncounted=any(operation.size is None for operation in listed),
        unaligned=any(clock_key(operation) not in aligned for operation in listed),
    )
    rows = join_columns(tables)
    medians = medians_of(rows, ("op", "comm_id", "bytes", "ranks"), ("algbw_gbps", "busbw_gbps"))
    return ListedOperations(rows, medians, communication.problems, null_reasons, communication.missing)


def collectives(parts: Sequence[ListedOperations], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """List the matched collectives, one row each, in the order of their lowest rank.

    ``latency_ns`` is the shortest duration of the kernel over the ranks, because the last rank to begin waits
    for no other. ``bytes`` is the size as nccl-tests counts it, ``algbw_gbps`` is bytes over latency in 1e9
    bytes per second, and ``busbw_gbps`` is that times the factor of nccl-tests. ``spread_ns`` is the time
    between the starts of the first and the last rank on the aligned clocks
    (`hpcprof.analysis.collectives.clock_alignment.align_clocks`).
    """
    return outcome_of(in_order(parts), parts, NO_COLLECTIVES, _NO_MATCH_REASON, _NULLS_OF_COLLECTIVES)


def collectives_summary(parts: Sequence[ListedOperations], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the medians of the collectives of each operation, communicator and size, by total latency."""
    return outcome_of(by_latency(parts), parts, NO_COLLECTIVES, _NO_MATCH_REASON, _NULLS_OF_COLLECTIVES)


def outcome_of(
    columns: Columns,
    parts: Sequence[ListedOperations],
    unrecorded: str,
    nothing: str,
    null_sentences: Mapping[str, str],
) -> Outcome:
    """Return the listed rows of all communicators, with the reason for missing rows.

    ``unrecorded`` is the reason if nothing was recorded, and ``nothing`` if nothing is matched;
    ``null_sentences`` has a sentence for each field of `NullReasons`, and for ``missing`` ranks.
    """
    if not parts:
        return no_rows(unrecorded)
    problems = in_few_sentences([problem for part in parts for problem in part.problems])
    if not columns:
        return no_rows("; ".join(problems) or nothing)
    values = msgspec.structs.asdict(NullReasons.of_all([part.null_reasons for part in parts]))
    values |= {"missing": parts[0].missing, "uncounted": values["uncounted"] and not values["unnamed"]}
    nulls = (sentence.format(**values) for name, sentence in null_sentences.items() if values[name])
    return Outcome(columns, "; ".join([*problems, *nulls]))


def join_columns(tables: Sequence[Columns]) -> Columns:
    """Take the columns out of several tables and return them as one; empty without tables."""
    names = [*tables[0]] if tables else []
    return {name: np.concatenate([table.pop(name) for table in tables]) for name in names}


def in_order(parts: Sequence[ListedOperations]) -> Columns:
    """Return the rows of all parts in the order of ``begin``, which is left out.

    Columns of numbers without missing values order the rows that begin together.
    """
    columns = join_columns([part.rows for part in parts if part.rows])
    if not columns:
        return {}
    keys = [values for name, values in columns.items() if values.dtype != object and name != "begin"]
    seq, begin = columns["seq"], columns["begin"]
    order = np.lexsort((seq, begin))
    # Few rows begin together: sorting all of them by every column takes several times as long.
    is_tied = (np.diff(begin[order]) == 0) & (np.diff(seq[order]) == 0)
    tied = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
    rows = order[tied]
    order[tied] = rows[np.lexsort([key[rows] for key in (*keys, seq, begin)])]
    return {name: values[order] for name, values in columns.items() if name != "begin"}


def by_latency(parts: Sequence[ListedOperations]) -> Columns:
    """Return the medians of all parts by ``total_ns``; both columns that sort are left out."""
    columns = join_columns([part.summary for part in parts if part.summary])
    if not columns:
        return {}
    order = np.lexsort((columns.pop("begin"), -columns.pop("total_ns")))
    return {name: values[order] for name, values in columns.items()}


def medians_of(rows: Columns, keys: Sequence[str], bandwidths: Sequence[str]) -> Columns:
    """Return the medians of latency, spread and bandwidths for each combination of keys.

    A communicator, and so its combinations, is in one part of the run. ``total_ns``, the total latency by its
    median, and ``begin`` of the first row are for sorting.
    """
    if not rows:
        return {}
    _, combination = numbered_rows(*(pd.factorize(rows[name])[0] for name in keys))
    _, first, count = np.unique(combination, return_index=True, return_counts=True)
    values = {name: rows[name].astype(float) for name in ("latency_ns", "spread_ns", *bandwidths)}
    grouped = pd.DataFrame(values | {"begin": rows["begin"]}, copy=False).groupby(combination)
    medians = grouped[[*values]].median()
    nullable_medians = {
        name: [None if pd.isna(value) else value for value in medians[name].tolist()] for name in medians
    }
    return {
        **{name: rows[name][first] for name in keys},
        "count": count,
        "latency_p50_ns": _integers_or_none(nullable_medians["latency_ns"]),
        **{f"{name[:-5]}_p50_gbps": object_array(nullable_medians[name]) for name in bandwidths},
        "spread_p50_ns": _integers_or_none(nullable_medians["spread_ns"]),
        "total_ns": count * medians["latency_ns"].to_numpy(),
        "begin": grouped["begin"].min().to_numpy(),
    }


def _integers_or_none(values: list[Any]) -> NDArray[np.object_]:
    return object_array(None if value is None else round(value) for value in values)


def _collective_table(operation: MatchedCollectives, clock: AlignedClocks | None) -> Columns:
    count = len(operation.seq)
    latency = (operation.end - operation.start).min(axis=1)
    # Unknown sizes have the number -1 and so select the last element, 0.
    size_number, messages = pd.factorize(operation.message)
    sizes = [whole_bytes(operation.op, int(message), operation.size) or 0 for message in messages.tolist()]
    size = np.array([*sizes, 0])[size_number]
    is_known = (size_number >= 0) & (whole_bytes(operation.op, 0, operation.size) is not None)
    timed = (latency > 0) & (operation.fused == 1) & is_known
    bandwidth = np.divide(size.astype(float), latency, out=np.zeros(count), where=timed)
    factor = None if operation.size is None else bus_factor(operation.op, operation.size)
    first = last = spread = np.full(count, None, object)
    if clock is not None:
        start = clock.aligned(operation.start)
        first, last = operation.ranks[start.argmin(axis=1)], operation.ranks[start.argmax(axis=1)]
        spread = np.rint(start.max(axis=1) - start.min(axis=1)).astype(np.int64)
    return {
        "op": np.repeat(object_array([operation.op]), count),
        "comm_id": np.repeat(object_array([operation.comm_id]), count),
        "seq": operation.seq,
        "bytes": nullable(size, is_known),
        "ranks": np.full(count, len(operation.ranks)),
        "latency_ns": latency,
        "algbw_gbps": nullable(np.round(bandwidth, 6), timed),
        "busbw_gbps": nullable(np.round(bandwidth * (factor or 0), 6), timed & (factor is not None)),
        "first_rank": first,
        "last_rank": last,
        "spread_ns": spread,
        "begin": operation.start[:, 0],
    }


def nullable(values: NDArray[Any], is_known: Mask) -> NDArray[Any]:
    """Return the known values, and None for the others."""
    return values if is_known.all() else np.where(is_known, values, object_array([None]))


_NULLS_OF_COLLECTIVES = {
    "fused": "{fused} collectives were launched in groups that share a kernel: they have the latency of the "
    "group and no bandwidth",
    "missing": "{missing}: latencies may include waiting for them",
    "unsized": "some sizes are unknown: they need NCCL's payloads in nsys exports, record_shapes=True in CPU "
    "traces of PyTorch, and the column bytes in a table of operations",
    "unnamed": "communicators are unknown: all ranks are assumed to share one",
    "uncounted": "the sizes of communicators, and so bandwidths, are unknown: the profiles do not contain "
    "them and may not cover all ranks",
    "unaligned": f"clocks are aligned from 2 ranks and {MIN_COLLECTIVES} all-reduces, all-gathers or "
    "barriers on; with fewer, first, last and spread are unknown",
}
"""The sentence for each reason for nulls (`NullReasons`), and for ranks that are missing."""


NO_MESSAGES = "no rank has sends or receives"


def list_messages(communication: Communication) -> ListedOperations:
    """List the messages in some communicators whose pairs of ranks share no others."""
    pairs = [pair for pair in communication.pairs if len(pair.seq)]
    clocks = communication.pair_clocks
    null_reasons = NullReasons(
        fused=sum(int(np.count_nonzero((pair.fused > 1).any(axis=1))) for pair in pairs),
        unsized=any(bool(np.isnan(pair.message).any()) for pair in pairs),
        unnamed=any(pair.comm_id is None for pair in pairs),
        uncounted=False,
        unaligned=any(pair.ranks not in clocks for pair in pairs),
    )
    rows = join_columns([_message_table(pair, clocks.get(pair.ranks)) for pair in pairs])
    medians = medians_of(rows, ("sender", "receiver", "comm_id", "bytes"), ("algbw_gbps",))
    return ListedOperations(rows, medians, communication.unpaired, null_reasons, communication.missing)


def point_to_point(parts: Sequence[ListedOperations], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """List the matched messages, one row each, in the order of their lower rank.

    ``latency_ns`` is the duration of the shorter of both kernels, because the one that begins last does not
    wait for the other. ``algbw_gbps`` is bytes over latency in 1e9 bytes per second, and None for calls that
    share a kernel. ``last_rank`` is the rank that began last, and ``spread_ns`` the time between both starts
    on the aligned clocks (`hpcprof.analysis.collectives.pair_matching.align_pairs`).
    """
    return outcome_of(in_order(parts), parts, NO_MESSAGES, NO_MESSAGES, _NULLS_OF_MESSAGES)


def point_to_point_summary(parts: Sequence[ListedOperations], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the medians of the messages of each pair, communicator and size, by total latency."""
    return outcome_of(by_latency(parts), parts, NO_MESSAGES, NO_MESSAGES, _NULLS_OF_MESSAGES)


def _message_table(pair: MatchedPairs, clock: AlignedClocks | None) -> Columns:
    count = len(pair.seq)
    latency = (pair.end - pair.start).min(axis=1)
    is_known = ~np.isnan(pair.message)
    timed = (latency > 0) & (pair.fused == 1).all(axis=1) & is_known
    size = np.where(is_known, pair.message, 0)
    bandwidth = np.divide(size, latency, out=np.zeros(count), where=timed)
    last = spread = np.full(count, None, object)
    if clock is not None:
        sender_lateness = sender_later(pair, clock)
        last = np.where(sender_lateness > 0, pair.sender, pair.receiver)
        spread = np.rint(np.abs(sender_lateness)).astype(np.int64)
    return {
        "sender": np.full(count, pair.sender),
        "receiver": np.full(count, pair.receiver),
        "comm_id": np.repeat(object_array([pair.comm_id]), count),
        "seq": pair.seq,
        "bytes": nullable(size.astype(np.int64), is_known),
        "latency_ns": latency,
        "algbw_gbps": nullable(np.round(bandwidth, 6), timed),
        "last_rank": last,
        "spread_ns": spread,
        "begin": pair.start[:, int(pair.sender > pair.receiver)],
    }


_NULLS_OF_MESSAGES = {
    "fused": "{fused} messages share a kernel with others: they have the latency of the group and no "
    "bandwidth",
    "unsized": "sizes are unknown if the profiles have no payloads of NCCL's calls",
    "unnamed": _NULLS_OF_COLLECTIVES["unnamed"],
    "unaligned": f"the clocks of two ranks are aligned from {MIN_COLLECTIVES} messages on, in both "
    "directions or with receives that wait; otherwise the last rank and the spread are unknown",
    "missing": "{missing}",
}
