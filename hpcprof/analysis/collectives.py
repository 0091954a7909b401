"""Collectives over ranks: how fast they are, and how far apart the ranks begin them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.matching import MINIMUM, Clocks, Matched, clocks, key, match
from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.analysis.summary import objects
from hpcprof.collective_operations import bus_factor, whole_bytes

NO_COLLECTIVES = "no rank has collectives"


def collectives(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """List the matched collectives, one row each, in the order of their lowest rank.

    ``latency_ns`` is the shortest duration of the kernel over the ranks: the last rank to begin waits
    for nobody. ``bytes`` is the size that nccl-tests states, ``algbw_gbps`` that by the latency in 1e9
    bytes a second, ``busbw_gbps`` times nccl-tests' factor. ``spread_ns`` lies between the first and
    the last rank's start on the aligned clocks (`hpcprof.analysis.matching.clocks`).
    """
    rows = results["rank_collectives"]
    if not len(rows):
        return nothing(NO_COLLECTIVES)
    matched, problems = match(rows)
    if not matched:
        return nothing("; ".join(problems) or "all recorded operations are sends and receives")
    aligned = clocks(matched)
    tables = [_table(one, aligned.get(key(one))) for one in matched]
    table = pd.concat([part for part in tables if len(part)] or tables, ignore_index=True)
    order = table.sort_values(["begin", "seq"], kind="stable").index
    return Outcome(
        table.loc[order].drop(columns="begin").reset_index(drop=True),
        "; ".join([*problems, *_why_null(table, matched, rows)]),
    )


def collectives_summary(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Summarize the collectives of each operation, communicator and size: medians, rows by total latency.

    Why rows or values are missing is said by `collectives`.
    """
    rows = results["collectives"]
    if not len(rows):
        return nothing("")
    keys = ["op", "comm_id", "bytes", "ranks"]
    table = rows.assign(count=1)
    values = ["latency_ns", "algbw_gbps", "busbw_gbps", "spread_ns"]
    numbers = table.astype(dict.fromkeys(values, float))
    summary = numbers.groupby(keys, dropna=False, sort=False).agg(
        {"count": "sum", **dict.fromkeys(values, "median")}
    )
    summary = summary.reset_index()
    order = np.argsort(-(summary["count"] * summary["latency_ns"]).to_numpy(), kind="stable")
    summary = summary.iloc[order]
    shown = {
        **{name: objects(_none(summary[name])) for name in keys},
        "count": summary["count"].to_numpy(),
        **{f"{name[:-3]}_p50_ns": _whole(summary[name]) for name in ("latency_ns", "spread_ns")},
        **{f"{name[:-5]}_p50_gbps": objects(_none(summary[name])) for name in ("algbw_gbps", "busbw_gbps")},
    }
    return Outcome(pd.DataFrame(shown))


def _none(column: pd.Series[Any]) -> list[Any]:
    return [None if pd.isna(value) else value for value in column.tolist()]


def _whole(column: pd.Series[Any]) -> Any:
    return objects(None if value is None else round(value) for value in _none(column))


def _table(one: Matched, clock: Clocks | None) -> pd.DataFrame:
    """Return the rows of one operation of one communicator; ``begin`` orders them."""
    count = len(one.seq)
    latency = (one.end - one.start).min(axis=1)
    messages, place = np.unique(one.message, return_inverse=True)
    sizes = [None if np.isnan(m) else whole_bytes(one.op, int(m), one.size) for m in messages.tolist()]
    size = [sizes[i] for i in place.tolist()]
    factor = None if one.size is None else bus_factor(one.op, one.size)
    timed = (latency > 0) & (one.fused == 1)
    bandwidth = [
        None if b is None or not known else b / t
        for b, t, known in zip(size, latency.tolist(), timed.tolist(), strict=True)
    ]
    columns: dict[str, Any] = {
        "op": [one.op] * count,
        "comm_id": objects([one.comm_id] * count),
        "seq": one.seq,
        "bytes": objects(size),
        "ranks": len(one.ranks),
        "latency_ns": latency,
        "algbw_gbps": objects(None if b is None else round(b, 6) for b in bandwidth),
        "busbw_gbps": objects(
            None if b is None or factor is None else round(b * factor, 6) for b in bandwidth
        ),
    }
    if clock is None:
        columns |= {name: objects([None] * count) for name in ("first_rank", "last_rank", "spread_ns")}
    else:
        start = clock.aligned(one.start)
        columns |= {
            "first_rank": objects(one.ranks[start.argmin(axis=1)].tolist()),
            "last_rank": objects(one.ranks[start.argmax(axis=1)].tolist()),
            "spread_ns": objects(np.rint(start.max(axis=1) - start.min(axis=1)).astype(np.int64).tolist()),
        }
    table: pd.DataFrame = pd.DataFrame(columns | {"begin": one.start[:, 0]})
    return table


def unprofiled(rows: pd.DataFrame) -> str:
    """Say how many ranks of the program have no rows of ``rank_collectives``; nothing if none or unknown."""
    world, there = rows["world_ranks"].dropna().max(), rows["rank"].nunique()
    return f"{world - there:.0f} of {world:.0f} ranks have no profile" if there < world else ""


def _why_null(table: pd.DataFrame, matched: list[Matched], rows: pd.DataFrame) -> list[str]:
    """Say why values are null, one sentence a cause."""
    reasons = []
    unknown = table["bytes"].isna() | table["busbw_gbps"].isna()
    fused = sum(int(np.count_nonzero(one.fused > 1)) for one in matched)
    if fused:
        reasons.append(
            f"{fused} collectives were launched in groups that share a kernel: their latency is the group's, "
            "and they have no bandwidth"
        )
    missing = unprofiled(rows)
    if missing:
        reasons.append(f"{missing}: latencies may include waiting for them")
    if any(np.isnan(one.message).any() for one in matched):
        reasons.append("sizes are unknown where the profiles hold no payloads of NCCL's calls")
    if any(one.comm_id is None for one in matched):
        reasons.append("communicators are unknown: all ranks are taken to share one")
    elif unknown.any() and any(one.size is None for one in matched):
        reasons.append(
            "the sizes of communicators, and so bandwidths, are unknown: the profiles do not tell them, and "
            "are not known to be of all ranks"
        )
    if table["spread_ns"].isna().any():
        reasons.append(
            f"clocks are not aligned where there are fewer than 2 ranks or {MINIMUM} all-reduces, "
            "all-gathers or barriers: first, last and spread are unknown"
        )
    return reasons
