"""The data of the matrix of MPI messages: how much each rank sends to each other.

The page does not depend on the number of ranks: of more than fit, neighbours share a cell, which has their
sum. Only cells with messages are in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcprof.analysis.statistics.grouped import sums
from hpcprof.common.units import counted
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.report.contents import Contents
from hpcprof.report.mpi import messages

MOST_LINES = 512
"""The most lines and columns of the matrix; 4,096 ranks are 8 to a cell."""

_QUANTITIES = (
    ("bytes", "Bytes", "bytes"),
    ("messages", "Messages", "count"),
    ("transfer_ns", "Transfer", "ns"),
)


def message_matrix(contents: Contents) -> dict[str, Any] | None:
    """Return what the matrix of a run's messages is drawn from, None without messages.

    Returns
    -------
    dict
        ``ranks`` is the number of ranks and ``block`` that of the ranks that share a line. ``row`` and
        ``column`` are the lines of the sender and the receiver of each cell with messages, and each of
        ``quantities`` has the ``values`` of these. ``nodes`` has the first rank of each run of ranks on one
        node, and ``node_names`` its name; both are empty where the ranks of some node are not known.
    """
    table = contents.analyses["mpi_matrix"].columns if "mpi_matrix" in contents.analyses else {}
    if not table or not table["sender"]:
        return None
    sender, receiver = (np.asarray(table[name], np.int64) for name in ("sender", "receiver"))
    ranks = max(int(max(sender.max(), receiver.max())) + 1, *(rank + 1 for rank in contents.profiles))
    block = -(-ranks // MOST_LINES)
    keys, group = numbered_rows(sender // block, receiver // block)
    quantities = [
        {"id": name, "label": label, "unit": unit, "values": sums(group, values, len(keys)).tolist()}
        for name, label, unit in _QUANTITIES
        if None not in table[name] and (values := np.asarray(table[name], np.int64)).any()
    ]
    nodes, names = _nodes(contents, ranks)
    note = f"{messages(contents.rows('mpi_matrix'))}."
    if block > 1:
        note += f" {counted(block, 'rank')} in a row share a line and a column."
    return {
        "title": "Messages between ranks",
        "note": note,
        "ranks": ranks,
        "block": block,
        "row": keys[:, 0].tolist(),
        "column": keys[:, 1].tolist(),
        "quantities": quantities,
        "nodes": nodes,
        "node_names": names,
    }


def _nodes(contents: Contents, ranks: int) -> tuple[list[int], list[str]]:
    """Return where the ranks of each node begin, and the names of these; nothing if some are unknown."""
    hosts = [contents.profiles[rank].host if rank in contents.profiles else None for rank in range(ranks)]
    if None in hosts:
        return [], []
    first = [rank for rank in range(ranks) if rank == 0 or hosts[rank] != hosts[rank - 1]]
    return first, [str(hosts[rank]) for rank in first]
